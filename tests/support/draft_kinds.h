// What holds of all kinds of drafts that models make, beside plain generation. `drafting`
// makes a bench of one sequence, up to `length` tokens, that drafts.
#ifndef HEADWAY_TESTS_SUPPORT_DRAFT_KINDS_H_
#define HEADWAY_TESTS_SUPPORT_DRAFT_KINDS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "support/draft_bench.h"
#include "support/drafters.h"
#include "support/grid.h"

namespace headway::testing {

// Drafts that stand for the model's: all wrong, and all right.
template <typename New>
void ExpectAnotherDrafterStandsIn(Model& model, const New& drafting) {
  const Request request = RequestOf(RandomTokens(140, 96, 15), 120);
  Bench plain(model, {}, 1, 260);
  const std::vector<TokenId> expected = plain.Run(request).tokens;
  for (const double right : {0.0, 1.0}) {
    const NewDrafter drafter = [&] {
      return std::make_unique<KnowingDrafter>(140, expected, right);
    };
    Bench drafts = drafting(260, drafter);
    EXPECT_EQ(drafts.Run(request).tokens, expected);
    const Timings& timings = drafts.generator->timings();
    if (right == 1.0) {
      EXPECT_EQ(timings.accepted_drafts, timings.drafted_tokens);
    } else {
      EXPECT_LT(timings.accepted_drafts, timings.drafted_tokens / 4);
    }
  }
}

// Prompts of so many tokens are gone on with to where the model ends. It has ends of text.
template <typename New>
void ExpectSameEnds(Model& model, int64_t prompt, const New& drafting) {
  int ended = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Request request = RequestOf(RandomTokens(prompt, 96, seed), 60);
    request.ignore_eos = false;
    request.sampling.temperature = 1.5f;
    request.sampling.seed = seed;
    Bench plain(model, {}, 1, prompt + 60);
    const Generation expected = plain.Run(request);
    ended += expected.finish == FinishReason::kEos ? 1 : 0;
    Bench drafts = drafting(prompt + 60);
    const Generation got = drafts.Run(request);
    EXPECT_EQ(got.tokens, expected.tokens) << seed;
    EXPECT_EQ(got.finish, expected.finish) << seed;
    EXPECT_EQ(drafts.harness->store().Length(*drafts.generator->slots()[0].sequence),
              plain.harness->store().Length(*plain.generator->slots()[0].sequence));
  }
  EXPECT_GT(ended, 10);
}

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_DRAFT_KINDS_H_
