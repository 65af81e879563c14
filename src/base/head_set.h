// HeadSet: the KV heads that a rank holds of a layer; RankHeads: those of all ranks.
#ifndef HEADWAY_BASE_HEAD_SET_H_
#define HEADWAY_BASE_HEAD_SET_H_

#include <cstddef>
#include <numeric>
#include <vector>

namespace headway {

struct HeadSet {
  std::vector<int> heads;  // by their index in the model, ascending

  static HeadSet All(int kv_heads) {
    HeadSet set;
    set.heads.resize(static_cast<size_t>(kv_heads));
    std::iota(set.heads.begin(), set.heads.end(), 0);
    return set;
  }
  int size() const { return static_cast<int>(heads.size()); }
};

// Which rank has which heads of a model, as one of the ranks knows it.
struct RankHeads {
  int kv_heads = 0;                         // of a layer of the model
  int rank = 0;                             // this one
  std::vector<std::vector<HeadSet>> ranks;  // [ranks][layers]

  // One rank has all.
  static RankHeads Alone(int layers, int kv_heads) {
    return {
        kv_heads, 0, {std::vector<HeadSet>(static_cast<size_t>(layers), HeadSet::All(kv_heads))}};
  }
  const HeadSet& In(int layer) const {
    return ranks[static_cast<size_t>(rank)][static_cast<size_t>(layer)];
  }
};

}  // namespace headway

#endif  // HEADWAY_BASE_HEAD_SET_H_
