// What a generator draws with drafts by lookup: tokens with the probabilities that plain steps of
// the model give them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/drafts/lookup.h"
#include "support/draft_bench.h"
#include "support/grid.h"

namespace headway::testing {
namespace {

constexpr int kVocab = 8;
constexpr size_t kTokens = 3;  // of each answer that are looked at
constexpr float kTemperature = 0.8f;
constexpr int64_t kDraws = 100'000;
constexpr size_t kCall = 500;     // answers of a call
constexpr int64_t kPrompt = 258;  // 4 pages that all answers share, and 2 tokens

HarnessConfig Config() {
  HarnessConfig config;
  config.page_slots = 64;  // so that all drafts of an answer lie in one page
  config.chunk = 128;
  return config;
}

// The probabilities of the token behind `tokens`, by plain steps.
std::vector<double> Probabilities(Model& model, const std::vector<TokenId>& tokens) {
  const LogitRows rows = RunTokens(model, Config(), tokens, std::ssize(tokens) - kPrompt);
  if (rows.empty()) return std::vector<double>(kVocab);
  std::vector<double> all;
  double sum = 0.0;
  for (const float logit : rows.back()) {
    all.push_back(std::exp(double{logit} / double{kTemperature}));
    sum += all.back();
  }
  for (double& each : all) each /= sum;
  return all;
}

// Of all answers of `length` tokens behind `tokens`, in the order of their tokens.
void AppendAnswers(Model& model, std::vector<TokenId> tokens, size_t length, double share,
                   std::vector<double>* all) {
  if (length == 0) return all->push_back(share);
  const std::vector<double> next = Probabilities(model, tokens);
  for (TokenId token = 0; token < kVocab; ++token) {
    tokens.push_back(token);
    AppendAnswers(model, tokens, length - 1, share * next[static_cast<size_t>(token)], all);
    tokens.pop_back();
  }
}

// The value that χ² exceeds with a probability of 1e-4 (Wilson and Hilferty, 1931).
double Most(double freedom) {
  const double of = 2.0 / (9.0 * freedom);
  return freedom * std::pow(1.0 - of + 3.719 * std::sqrt(of), 3);
}

// χ² of what was drawn; answers of which fewer than 10 are expected are one kind.
void ExpectDrawnFrom(const std::vector<double>& probabilities, const std::vector<int64_t>& seen) {
  double squares = 0.0, freedom = -1.0, rare = 0.0, rare_seen = 0.0;
  const auto add = [&](double expected, double drawn) {
    squares += (drawn - expected) * (drawn - expected) / expected;
    freedom += 1.0;
  };
  for (size_t i = 0; i < seen.size(); ++i) {
    const double expected = probabilities[i] * static_cast<double>(kDraws);
    const auto drawn = static_cast<double>(seen[i]);
    if (expected >= 10.0) {
      add(expected, drawn);
    } else {
      rare += expected;
      rare_seen += drawn;
    }
  }
  if (rare >= 10.0) add(rare, rare_seen);
  EXPECT_GE(freedom, static_cast<double>(seen.size()) / 2) << "most are too rare";
  EXPECT_LT(squares, Most(freedom)) << seen.size() << " answers";
}

// 100,000 answers with seeds of their own, by χ² tests at 1e-4: their first token, which comes
// without drafts, their first two, and three, of which the last two are verified in one step.
TEST(DrawnDrafts, AnswersHaveTheModelsProbabilities) {
  ModelConfig config = TinyConfig(DType::kF32);
  config.shape.vocab = kVocab;
  config.shape.layers = 1;
  config.windows.assign(1, 0);
  const std::unique_ptr<Model> model = Tiny(config);
  const std::vector<TokenId> prompt = RandomTokens(kPrompt, kVocab, 21);
  const NewDrafter lookup = [] { return std::make_unique<LookupDrafter>(); };
  Bench drafts(*model, Config(), 16, kPrompt + 8, lookup);
  std::vector<std::vector<TokenId>> answers;
  int64_t drafted = 0, accepted = 0;
  while (std::ssize(answers) < kDraws) {
    std::vector<Request> requests(kCall, RequestOf(prompt, kTokens + 1));
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].sampling.temperature = kTemperature;
      requests[i].sampling.seed = answers.size() + i;
    }
    Result<std::vector<Generation>> made = drafts.generator->Generate(requests, {});
    ASSERT_TRUE(made.ok()) << made.status().message();
    for (Generation& each : *made) answers.push_back(std::move(each.tokens));
    drafted += drafts.generator->timings().drafted_tokens;
    accepted += drafts.generator->timings().accepted_drafts;
  }
  // Nearly every answer has drafts, of which many are right and many are wrong.
  EXPECT_GT(drafted, kDraws);
  EXPECT_GT(accepted, drafted / 20);
  EXPECT_LT(accepted, drafted / 2);

  for (size_t length = 1; length <= kTokens; ++length) {
    std::vector<double> probabilities;
    AppendAnswers(*model, prompt, length, 1.0, &probabilities);
    std::vector<int64_t> seen(probabilities.size());
    for (const std::vector<TokenId>& answer : answers) {
      size_t at = 0;
      for (size_t i = 0; i < length; ++i) at = at * kVocab + static_cast<size_t>(answer[i]);
      ++seen[at];
    }
    ExpectDrawnFrom(probabilities, seen);
  }
}

}  // namespace
}  // namespace headway::testing
