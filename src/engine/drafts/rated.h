// RatedDrafter: for measuring what drafts are worth with weights that say nothing: its drafts are
// any tokens, each is taken as right with a probability, and what is generated means nothing.
#ifndef HEADWAY_ENGINE_DRAFTS_RATED_H_
#define HEADWAY_ENGINE_DRAFTS_RATED_H_

#include <cstdint>
#include <vector>

#include "base/random.h"
#include "engine/drafts/drafter.h"

namespace headway {

class RatedDrafter : public Drafter {
 public:
  explicit RatedDrafter(double right) : right_(right) {}

  void Append(std::span<const TokenId> tokens) override { last_ = tokens.back(); }
  Status Propose(int64_t most, std::vector<TokenId>* drafts) override {
    drafts->insert(drafts->end(), static_cast<size_t>(most), last_);
    return OkStatus();
  }
  int64_t Accepted(std::span<const TokenId> drafts, std::span<const TokenId> /*picked*/) override {
    int64_t right = 0;
    while (right < std::ssize(drafts) && random_.Uniform() < right_) ++right;
    return right;
  }

 private:
  const double right_;
  TokenId last_ = 0;
  Random random_{1};
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_DRAFTS_RATED_H_
