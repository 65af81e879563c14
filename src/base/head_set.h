// HeadSet: the KV heads that a rank holds of a layer; RankHeads: those of all ranks. Several ranks
// may hold a head: each attends to a part of what is kept of a prompt.
#ifndef HEADWAY_BASE_HEAD_SET_H_
#define HEADWAY_BASE_HEAD_SET_H_

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace headway {

struct HeadSet {
  std::vector<int> heads;  // by their index in the model, ascending
  // Of each, what this rank has beside others that hold it; empty: all of each.
  std::vector<double> shares = {};

  static HeadSet All(int kv_heads) {
    HeadSet set;
    set.heads.resize(static_cast<size_t>(kv_heads));
    std::iota(set.heads.begin(), set.heads.end(), 0);
    return set;
  }
  int size() const { return static_cast<int>(heads.size()); }
  double ShareOf(int slot) const {
    return shares.empty() ? 1.0 : shares[static_cast<size_t>(slot)];
  }
};

// A rank that holds a head, at which of the places that it has for heads, and its share of it.
struct HeadHolder {
  int rank = 0;
  int slot = 0;
  double share = 1.0;
};

// What the holders of a head divide among them.
enum class HeadSplit : uint8_t {
  kSequences,  // each has all tokens of some sequences
  kTokens,     // each has some tokens of every sequence
};

// Which rank has which heads of a model, as one of the ranks knows it.
struct RankHeads {
  int kv_heads = 0;                         // of a layer of the model
  int rank = 0;                             // this one
  std::vector<std::vector<HeadSet>> ranks;  // [ranks][layers]
  HeadSplit split = HeadSplit::kSequences;  // of heads that several ranks hold

  // One rank has all.
  static RankHeads Alone(int layers, int kv_heads) {
    return {
        kv_heads, 0, {std::vector<HeadSet>(static_cast<size_t>(layers), HeadSet::All(kv_heads))}};
  }
  const HeadSet& In(int layer) const {
    return ranks[static_cast<size_t>(rank)][static_cast<size_t>(layer)];
  }
  // Those of a head of the model, by rank.
  std::vector<HeadHolder> HoldersOf(int layer, int head) const;
  // Whether several ranks hold some head.
  bool Shares() const;
};

}  // namespace headway

#endif  // HEADWAY_BASE_HEAD_SET_H_
