// SalientBlocks: which blocks of the cache before a dense window a KV head attends to, where steps
// choose them anew by their summaries (SaliencePolicy::reselect), and in which places of the head's
// memory they lie. A choice lists the blocks that matter to its query; those that are there keep
// their places, and the others take those of the blocks that were not listed for longest. A head
// attends to all that is there, so a block that queries keep asking for is moved once.
#ifndef HEADWAY_KV_POLICY_SALIENT_BLOCKS_H_
#define HEADWAY_KV_POLICY_SALIENT_BLOCKS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/selection.h"
#include "kv/policy/salience.h"

namespace headway::kv {

class SalientBlocks {
 public:
  static constexpr SummaryFormat kSummary = {SummaryKind::kMoments, 16};
  // Of blocks before the window, those that a head has places for.
  static int64_t Places(const SaliencePolicy& policy, int64_t blocks);

  // How many of `blocks` the next choice lists: the first one as many as there are places, later
  // ones half of that, so that others stay that queries wanted before.
  int64_t ToList(int64_t blocks, int64_t places) const;

  // Makes room for `listed`, which ascend and are at most `places`; these are never fewer than at
  // the choice before. What is to be moved is appended to *moves, ascending by block and by place.
  struct Move {
    int32_t block = 0;
    int32_t place = 0;

    bool operator==(const Move&) const = default;
  };
  void Choose(std::span<const int32_t> listed, int64_t places, std::vector<Move>* moves);

  // The block of each place.
  std::span<const int32_t> blocks() const { return blocks_; }
  bool Has(int32_t block) const;

 private:
  std::vector<int32_t> blocks_;    // [places]
  std::vector<int64_t> listed_;    // [places]: the choice that listed its block last
  std::vector<int32_t> by_block_;  // places, in the order of their blocks
  int64_t choices_ = 0;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_POLICY_SALIENT_BLOCKS_H_
