// Drafts of each kind over long answers: more than 10,000 tokens that are greedy ones of plain
// steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/drafts/lookup.h"
#include "support/draft_bench.h"
#include "support/grid.h"
#include "support/selection_policies.h"

namespace headway::testing {
namespace {

constexpr int64_t kPrompt = 140;
constexpr int64_t kTokens = 1700;

// What was checked; clear tokens are the best by more than rounding moves logits.
struct Tally {
  int64_t clear = 0;
  std::set<TokenId> different;
};

// Every token is the one that plain decode steps pick behind those before it where that is clear;
// else it is as good as that, within rounding.
void ExpectPlainGreedy(Model& model, const Request& request, const std::vector<TokenId>& tokens,
                       Tally* tally) {
  std::vector<TokenId> all = request.prompt;
  all.insert(all.end(), tokens.begin(), tokens.end());
  const LogitRows rows = RunTokens(model, {}, all, std::ssize(tokens));
  ASSERT_EQ(rows.size(), all.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::vector<float> row = rows[request.prompt.size() - 1 + i];
    const double tolerance =
        GoldenTolerance(model.shape(), std::ssize(all), model.shape().dtype, row);
    const float chosen = row[static_cast<size_t>(tokens[i])];
    std::partial_sort(row.begin(), row.begin() + 2, row.end(), std::greater<>());
    const bool clear = row[0] - row[1] > 2 * tolerance;
    ASSERT_GE(chosen, clear ? row[0] : row[0] - 2 * tolerance) << "token " << i;
    tally->clear += clear ? 1 : 0;
    tally->different.insert(tokens[i]);
  }
}

// A model whose answers do not soon repeat themselves.
std::unique_ptr<Model> Untied(DType dtype) {
  ModelConfig config = TinyConfig(dtype);
  config.tied_embeddings = false;
  return Tiny(config);
}

// By lookup, by steps over few keys, and by a model of the same weights, rounded: all are right at
// times and wrong at times.
TEST(LongDrafts, TenThousandTokensArePlainGreedyOnes) {
  const std::unique_ptr<Model> model = Untied(DType::kF32), rounded = Untied(DType::kBF16);
  HarnessConfig sparse;
  sparse.selection = PolicyOf(64);
  sparse.selection.steps = kv::SelectionPolicy::Steps::kDrafting;
  Tally tally;
  for (const std::string by : {"lookup", "sparse", "model"}) {
    int64_t drafted = 0, accepted = 0;
    for (uint64_t seed = 31; seed < 33; ++seed) {
      SCOPED_TRACE(by + ", prompt " + std::to_string(seed));
      DraftsBy drafts_by;
      if (by == "lookup") drafts_by.drafter = [] { return std::make_unique<LookupDrafter>(); };
      if (by == "model") drafts_by.model = rounded.get();
      Bench drafts(*model, by == "sparse" ? sparse : HarnessConfig(), 1, kPrompt + kTokens,
                   drafts_by);
      const Request request = RequestOf(RandomTokens(kPrompt, 96, seed), kTokens);
      const Generation got = drafts.Run(request);
      ASSERT_EQ(std::ssize(got.tokens), kTokens);
      ExpectPlainGreedy(*model, request, got.tokens, &tally);
      if (HasFatalFailure()) return;
      drafted += drafts.generator->timings().drafted_tokens;
      accepted += drafts.generator->timings().accepted_drafts;
    }
    EXPECT_GT(accepted, 300) << by;
    EXPECT_LT(accepted, drafted) << by;
  }
  EXPECT_GE(tally.clear, 10'000);
  EXPECT_GT(tally.different.size(), 20u);
}

}  // namespace
}  // namespace headway::testing
