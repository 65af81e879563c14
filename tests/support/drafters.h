// Drafters of which a test knows what they are worth.
#ifndef HEADWAY_TESTS_SUPPORT_DRAFTERS_H_
#define HEADWAY_TESTS_SUPPORT_DRAFTERS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/random.h"
#include "engine/drafts/drafter.h"

namespace headway::testing {

// Knows what will be generated behind a prompt, and proposes it, each token rightly with a
// probability.
class KnowingDrafter : public Drafter {
 public:
  KnowingDrafter(int64_t prompt, std::vector<TokenId> continuation, double right)
      : continuation_(std::move(continuation)), right_(right), at_(-prompt) {}

  void Append(std::span<const TokenId> tokens) override { at_ += std::ssize(tokens); }
  Status Propose(int64_t most, std::vector<TokenId>* drafts) override {
    for (int64_t i = at_; i < at_ + most; ++i) {
      const bool known = i < std::ssize(continuation_);
      const TokenId token = known ? continuation_[static_cast<size_t>(i)] : 0;
      drafts->push_back(random_.Uniform() < right_ ? token : (token + 1) % 3);
    }
    return OkStatus();
  }

 private:
  const std::vector<TokenId> continuation_;
  const double right_;
  int64_t at_;  // in the continuation
  Random random_{17};
};

// Proposes one token, over and over.
class StubbornDrafter : public Drafter {
 public:
  explicit StubbornDrafter(TokenId token) : token_(token) {}

  void Append(std::span<const TokenId> /*tokens*/) override {}
  Status Propose(int64_t most, std::vector<TokenId>* drafts) override {
    drafts->insert(drafts->end(), static_cast<size_t>(most), token_);
    return OkStatus();
  }

 private:
  const TokenId token_;
};

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_DRAFTERS_H_
