// SharedHeads: of the KV heads that a rank has, those that other ranks hold, too. In a step over
// prompts the first holder of such a head alone attends for it. What is kept of prompts lies in
// parts with all holders, which say to each other what their parts weigh.
#ifndef HEADWAY_ENGINE_STEP_SHARED_HEADS_H_
#define HEADWAY_ENGINE_STEP_SHARED_HEADS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/head_set.h"

namespace headway {

struct SharedHead {
  int slot = 0;                     // among the places of this rank
  std::vector<HeadHolder> holders;  // by rank
  int own = 0;                      // this rank's place among them

  bool first() const { return own == 0; }
};

class SharedHeads {
 public:
  explicit SharedHeads(const RankHeads& heads);

  int ranks() const { return ranks_; }
  int rank() const { return rank_; }
  // Those of this rank, by slot.
  std::span<const SharedHead> In(int layer) const { return layers_[static_cast<size_t>(layer)]; }
  // Whether any ranks share a head of the layer.
  bool AnyIn(int layer) const { return any_[static_cast<size_t>(layer)]; }

 private:
  int ranks_ = 1, rank_ = 0;
  std::vector<std::vector<SharedHead>> layers_;
  std::vector<bool> any_;  // [layers]
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_SHARED_HEADS_H_
