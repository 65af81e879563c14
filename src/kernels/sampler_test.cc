#include "kernels/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kernels/host_sampler.h"
#include "kernels/sampling.h"

namespace headway {
namespace {

using testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> RandomLogits(Random& random, int vocab) {
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& logit : logits) logit = 3.0f * random.Normal();
  return logits;
}

// What the host picks; `logits` are penalised.
Result<TokenId> Pick(Sampler& sampler, std::span<float> logits) {
  static HostSampler host;
  SampleItem item = sampler.Next();
  item.logits = logits.data();
  item.vocab = static_cast<int64_t>(logits.size());
  return TokenOf(host.Sample(item));
}

TokenId SampleOf(Sampler& sampler, std::vector<float> logits) {
  const Result<TokenId> token = Pick(sampler, logits);
  EXPECT_TRUE(token.ok()) << token.status().message();
  return token.ok() ? *token : -1;
}

// The definition, by sorting: what each token's probability should be.
std::vector<double> Expected(const std::vector<float>& logits, const SamplingOptions& params) {
  const size_t vocab = logits.size();
  std::vector<size_t> order(vocab);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  std::vector<double> weights(vocab, 0.0);
  const size_t k = params.top_k == 0 ? vocab : static_cast<size_t>(params.top_k);
  const float kth = logits[order[std::min(k, vocab) - 1]];
  double total = 0.0;
  for (size_t i = 0; i < vocab; ++i) {
    if (logits[i] < kth) continue;
    weights[i] = std::exp((double{logits[i]} - logits[order[0]]) / params.temperature);
    total += weights[i];
  }
  double before = 0.0;
  for (const size_t token : order) {
    const double weight = weights[token];
    // With top_p = 1 rounding in `before` must not drop the last.
    if (params.top_p < 1.0f && before >= params.top_p * total) weights[token] = 0.0;
    if (weight < params.min_p) weights[token] = 0.0;
    before += weight;
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= sum;
  return weights;
}

// Pearson's chi-square over the tokens expected at least 5 times (the others as one class) against
// its mean + 5 standard deviations; a token of probability 0 must not come at all.
void CheckDistribution(const std::vector<float>& logits, const SamplingOptions& params, int draws) {
  const std::vector<double> expected = Expected(logits, params);
  std::vector<int> counts(logits.size(), 0);
  Sampler sampler(params);
  for (int i = 0; i < draws; ++i) ++counts[static_cast<size_t>(SampleOf(sampler, logits))];
  double chi_square = 0.0;
  double rest_expected = 0.0;
  double rest = 0.0;
  int classes = 0;
  const auto add = [&](double count, double mean) {
    chi_square += (count - mean) * (count - mean) / mean;
    ++classes;
  };
  for (size_t i = 0; i < logits.size(); ++i) {
    const double mean = expected[i] * draws;
    if (mean == 0.0) {
      EXPECT_EQ(counts[i], 0) << "token " << i;
    } else if (mean < 5.0) {
      rest_expected += mean;
      rest += counts[i];
    } else {
      add(counts[i], mean);
    }
  }
  if (rest_expected >= 5.0) add(rest, rest_expected);
  const double freedom = std::max(1, classes - 1);
  EXPECT_LT(chi_square, freedom + 5.0 * std::sqrt(2.0 * freedom));
}

TEST(SamplerTest, GreedyTakesTheLowestTokenOfTheLargestLogit) {
  Sampler sampler(SamplingOptions{});
  EXPECT_EQ(SampleOf(sampler, {0.5f, 2.0f, -1.0f, 2.0f}), 1);
  EXPECT_EQ(SampleOf(sampler, {-kInf, -5.0f, -kInf}), 1);
  EXPECT_EQ(SampleOf(sampler, {-3.0f}), 0);
}

TEST(SamplerTest, GreedyIgnoresTheFilters) {
  SamplingOptions params;
  params.top_k = 3;
  params.top_p = 0.1f;
  params.min_p = 0.9f;
  Sampler sampler(params);
  Random random(1);
  for (int i = 0; i < 20; ++i) {
    const std::vector<float> logits = RandomLogits(random, 50);
    const auto largest = std::max_element(logits.begin(), logits.end());
    EXPECT_EQ(SampleOf(sampler, logits), largest - logits.begin());
  }
}

TEST(SamplerTest, DrawsFromTheSoftmaxAtTheTemperature) {
  Random random(2);
  const std::vector<float> logits = RandomLogits(random, 40);
  for (const float temperature : {0.3f, 1.0f, 2.5f}) {
    SamplingOptions params;
    params.temperature = temperature;
    params.seed = 7;
    CheckDistribution(logits, params, 20000);
  }
}

TEST(SamplerTest, DrawsFromWhatTheFiltersKeep) {
  Random random(3);
  for (int round = 0; round < 24; ++round) {
    const std::vector<float> logits = RandomLogits(random, 1 + static_cast<int>(random.Below(300)));
    SamplingOptions params;
    params.temperature = 0.5f + static_cast<float>(random.Uniform());
    params.top_k = static_cast<int>(random.Below(3)) * static_cast<int>(random.Below(40));
    params.top_p =
        random.Below(2) == 0 ? 1.0f : 0.05f + 0.9f * static_cast<float>(random.Uniform());
    params.min_p = random.Below(2) == 0 ? 0.0f : 0.3f * static_cast<float>(random.Uniform());
    params.seed = random.Next();
    SCOPED_TRACE("round " + std::to_string(round));
    CheckDistribution(logits, params, 3000);
  }
}

TEST(SamplerTest, TopKKeepsEqualsOfTheKthAndTopPTheLowerOfEquals) {
  SamplingOptions params;
  params.temperature = 1.0f;
  params.top_k = 2;
  const std::vector<float> logits = {1.0f, 0.0f, 2.0f, 1.0f, 0.5f};
  std::set<TokenId> seen;
  Sampler top_k(params);
  for (int i = 0; i < 500; ++i) seen.insert(SampleOf(top_k, logits));
  EXPECT_EQ(seen, (std::set<TokenId>{0, 2, 3}));

  params.top_k = 0;
  params.top_p = 0.5f;
  Sampler top_p(params);
  seen.clear();
  // Four equals: two of them make a half.
  for (int i = 0; i < 500; ++i) seen.insert(SampleOf(top_p, {1.0f, 1.0f, 1.0f, 1.0f}));
  EXPECT_EQ(seen, (std::set<TokenId>{0, 1}));
}

TEST(SamplerTest, ATinyTopPAndATopKOfOneAreGreedy) {
  Random random(4);
  SamplingOptions tiny;
  tiny.temperature = 1.5f;
  tiny.top_p = 1e-9f;
  SamplingOptions one;
  one.temperature = 1.5f;
  one.top_k = 1;
  Sampler by_p(tiny);
  Sampler by_k(one);
  Sampler greedy(SamplingOptions{});
  for (int i = 0; i < 50; ++i) {
    const std::vector<float> logits = RandomLogits(random, 1000);
    const TokenId expected = SampleOf(greedy, logits);
    EXPECT_EQ(SampleOf(by_p, logits), expected);
    EXPECT_EQ(SampleOf(by_k, logits), expected);
  }
}

TEST(SamplerTest, RepetitionPenaltyCountsPromptAndAnswer) {
  SamplingOptions params;
  params.repetition_penalty = 2.0f;
  Sampler sampler(params);
  const std::vector<TokenId> prompt = {0, 0, 2, 99, -1};  // the last two lie outside the logits
  sampler.AcceptPrompt(prompt);
  sampler.Accept(3);
  std::vector<float> logits = {4.0f, 1.0f, -1.0f, 3.0f, -3.0f};
  const Result<TokenId> token = Pick(sampler, logits);
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(logits, (std::vector<float>{2.0f, 1.0f, -2.0f, 1.5f, -3.0f}));
  EXPECT_EQ(*token, 0);
}

TEST(SamplerTest, PresenceAndFrequencyPenaltiesCountTheAnswerAlone) {
  SamplingOptions params;
  params.presence_penalty = 0.5f;
  params.frequency_penalty = 0.25f;
  Sampler sampler(params);
  const std::vector<TokenId> prompt = {0, 1};
  sampler.AcceptPrompt(prompt);
  sampler.Accept(1);
  sampler.Accept(1);
  sampler.Accept(2);
  std::vector<float> logits = {1.0f, 1.0f, 1.0f, 1.0f};
  ASSERT_TRUE(Pick(sampler, logits).ok());
  EXPECT_EQ(logits, (std::vector<float>{1.0f, 0.0f, 0.25f, 1.0f}));
}

TEST(SamplerTest, TheSameSeedGivesTheSameTokensAndACopyContinues) {
  SamplingOptions params;
  params.temperature = 1.0f;
  params.top_p = 0.9f;
  params.repetition_penalty = 1.1f;
  params.seed = 42;
  Sampler a(params);
  Sampler b(params);
  params.seed = 43;
  Sampler other(params);
  Random random(5);
  int differing = 0;
  for (int i = 0; i < 100; ++i) {
    const std::vector<float> logits = RandomLogits(random, 500);
    const TokenId token = SampleOf(a, logits);
    EXPECT_EQ(token, SampleOf(b, logits));
    differing += token != SampleOf(other, logits) ? 1 : 0;
    a.Accept(token);
    b.Accept(token);
    if (i == 50) b = Sampler(a);
  }
  EXPECT_GT(differing, 20);
}

// With drafts and without.
TEST(SamplerTest, WhatIsPutBackIsDrawnAgain) {
  SamplingOptions options;
  options.temperature = 1.0f;
  Sampler sampler(options);
  for (const std::vector<TokenId>& drafts : {std::vector<TokenId>{}, {3, 1, 3}}) {
    const uint64_t first = sampler.Next(drafts).front().draw;
    sampler.PutBack();
    EXPECT_EQ(sampler.Next(drafts).front().draw, first);
    EXPECT_NE(sampler.Next(drafts).front().draw, first);
  }
}

TEST(SamplerTest, ExtremeTemperaturesAreDefined) {
  SamplingOptions params;
  params.temperature = std::numeric_limits<float>::denorm_min();
  Sampler cold(params);
  EXPECT_EQ(SampleOf(cold, {1.0f, 1.0001f, -kInf}), 1);
  params.temperature = std::numeric_limits<float>::max();
  Sampler hot(params);
  std::set<TokenId> seen;
  for (int i = 0; i < 200; ++i) seen.insert(SampleOf(hot, {-1e30f, 1e30f, -kInf, 0.0f}));
  EXPECT_EQ(seen, (std::set<TokenId>{0, 1, 3}));
}

// sampling.h promises 6e-9; rounding `below` * scale to a float moves the exponent, up to 41, by
// 2^-24 of itself twice over, its step is 2^-26, and the weight is rounded down to an integer.
TEST(SamplerTest, WeightsAreExponentials) {
  Random random(8);
  for (int i = 0; i < 20000; ++i) {
    const float temperature = std::exp(2.0f * random.Normal());
    const auto below = static_cast<float>(random.Uniform()) * 30.0f * temperature;
    const double exact =
        std::exp(-double{below} / double{temperature}) * static_cast<double>(kWeightOne);
    const auto weight = static_cast<double>(SampleWeight(below, WeightScale(temperature)));
    EXPECT_NEAR(weight, exact, exact * (6e-9 + 41.0 * 0x1p-23 + 0x1p-26) + 1.0);
  }
  EXPECT_EQ(SampleWeight(0.0f, WeightScale(1.0f)), kWeightOne);
  EXPECT_EQ(SampleWeight(0.0f, WeightScale(std::numeric_limits<float>::denorm_min())), kWeightOne);
  EXPECT_EQ(SampleWeight(kInf, WeightScale(std::numeric_limits<float>::max())), 0u);
}

TEST(SamplerTest, LogitsThatAreNoNumbersAreAnError) {
  for (const float temperature : {0.0f, 1.0f}) {
    SamplingOptions params;
    params.temperature = temperature;
    Sampler sampler(params);
    std::vector<float> with_nan = {1.0f, 2.0f, kNan, 3.0f};
    std::vector<float> with_inf = {1.0f, kInf};
    std::vector<float> masked = {-kInf, -kInf};
    const Result<TokenId> nan = Pick(sampler, with_nan);
    EXPECT_EQ(nan.status().code(), StatusCode::kCorrupt);
    EXPECT_THAT(nan.status().message(), HasSubstr("nan as the logit of token 2"));
    const Result<TokenId> inf = Pick(sampler, with_inf);
    EXPECT_EQ(inf.status().code(), StatusCode::kCorrupt);
    EXPECT_THAT(inf.status().message(), HasSubstr("inf as the logit of token 1"));
    EXPECT_EQ(Pick(sampler, masked).status().code(), StatusCode::kCorrupt);
    EXPECT_EQ(Pick(sampler, {}).status().code(), StatusCode::kCorrupt);
  }
}

TEST(SamplerTest, ValidateNamesWhatIsOutOfBounds) {
  EXPECT_TRUE(SamplingOptions{}.Validate().ok());
  const auto message = [](auto&& change) {
    SamplingOptions params;
    change(params);
    const Status status = params.Validate();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(message([](SamplingOptions& p) { p.temperature = -1.0f; }), HasSubstr("temperature"));
  EXPECT_THAT(message([](SamplingOptions& p) { p.temperature = kNan; }), HasSubstr("temperature"));
  EXPECT_THAT(message([](SamplingOptions& p) { p.temperature = kInf; }), HasSubstr("temperature"));
  EXPECT_THAT(message([](SamplingOptions& p) { p.top_k = -1; }), HasSubstr("top_k"));
  EXPECT_THAT(message([](SamplingOptions& p) { p.top_p = 0.0f; }), HasSubstr("top_p"));
  EXPECT_THAT(message([](SamplingOptions& p) { p.top_p = 1.1f; }), HasSubstr("top_p"));
  EXPECT_THAT(message([](SamplingOptions& p) { p.min_p = kNan; }), HasSubstr("min_p"));
  EXPECT_THAT(message([](SamplingOptions& p) { p.repetition_penalty = 0.0f; }),
              HasSubstr("repetition_penalty"));
  EXPECT_THAT(message([](SamplingOptions& p) { p.presence_penalty = 2.5f; }),
              HasSubstr("presence_penalty"));
  EXPECT_THAT(message([](SamplingOptions& p) { p.frequency_penalty = -kInf; }),
              HasSubstr("frequency_penalty"));
}

}  // namespace
}  // namespace headway
