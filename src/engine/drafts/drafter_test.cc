// What generation with drafts draws: tokens of the model's own distribution, whatever is proposed.
#include "engine/drafts/drafter.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "base/random.h"
#include "kernels/host_sampler.h"
#include "kernels/sampler.h"

namespace headway {
namespace {

constexpr int kVocab = 6;
using Logits = std::array<float, kVocab>;

// A model of one token's memory, and its drafts, which know something of it.
constexpr std::array<Logits, kVocab> kModel = {{{1.0f, 0.2f, -0.5f, 0.7f, -2.0f, 0.1f},
                                                {-1.0f, 2.0f, 0.3f, 0.0f, 0.4f, 0.0f},
                                                {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f},
                                                {0.5f, -0.4f, 1.5f, 1.4f, -1.0f, 0.6f},
                                                {-0.2f, 0.9f, 0.8f, -3.0f, 1.1f, 0.3f},
                                                {2.0f, -1.0f, 0.0f, 0.2f, 0.3f, 1.9f}}};

class SomeDrafter : public Drafter {
 public:
  explicit SomeDrafter(int kind) : kind_(kind) {}

  void Append(std::span<const TokenId> tokens) override { last_ = tokens.back(); }
  Status Propose(int64_t most, std::vector<TokenId>* drafts) override {
    TokenId token = last_;
    for (int64_t i = 0; i < most; ++i) {
      const Logits& row = kModel[static_cast<size_t>(token)];
      token = kind_ == 0
                  ? static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin())
              : kind_ == 1 ? 3
                           : static_cast<TokenId>(random_.Below(kVocab));
      drafts->push_back(token);
    }
    return OkStatus();
  }

 private:
  const int kind_;
  TokenId last_ = 0;
  Random random_{5};
};

// What a step gives: the tokens that are accepted behind `last`.
std::vector<TokenId> Decode(Drafter& drafter, Sampler& sampler, TokenId last, int64_t most) {
  static HostSampler host;
  std::vector<TokenId> drafts;
  EXPECT_TRUE(drafter.Propose(most, &drafts).ok());
  std::vector<TokenId> picked;
  const std::span<const SampleItem> items = sampler.Next(drafts);
  for (size_t i = 0; i < items.size(); ++i) {
    Logits logits = kModel[static_cast<size_t>(i == 0 ? last : drafts[i - 1])];
    SampleItem item = items[i];
    item.logits = logits.data();
    item.vocab = kVocab;
    picked.push_back(*TokenOf(host.Sample(item)));
  }
  const int64_t right = drafter.Accepted(drafts, picked);
  sampler.Keep(right + 1);
  picked.resize(static_cast<size_t>(right) + 1);
  for (const TokenId token : picked) sampler.Accept(token);
  drafter.Append(picked);
  return picked;
}

// 100,000 tokens: how often each follows each, by a χ² test with 6 * 5 degrees of freedom at 1e-4.
TEST(Drafter, TokensHaveTheModelsDistribution) {
  for (int kind = 0; kind < 3; ++kind) {
    SamplingOptions options;
    options.temperature = 0.9f;
    options.seed = 11;
    Sampler sampler(options);
    SomeDrafter drafter(kind);
    std::array<std::array<int64_t, kVocab>, kVocab> seen = {};
    TokenId last = 0;
    int64_t tokens = 0, steps = 0;
    drafter.Append({&last, 1});
    for (; tokens < 100'000; ++steps) {
      for (const TokenId token : Decode(drafter, sampler, last, 1 + steps % 5)) {
        ++seen[static_cast<size_t>(last)][static_cast<size_t>(token)];
        last = token;
        ++tokens;
      }
    }
    EXPECT_GT(tokens, steps + steps / 10) << "nothing was accepted";
    double squares = 0.0;
    for (size_t from = 0; from < kVocab; ++from) {
      double all = 0.0, weight = 0.0;
      for (size_t to = 0; to < kVocab; ++to) {
        all += static_cast<double>(seen[from][to]);
        weight += std::exp(double{kModel[from][to]} / 0.9);
      }
      for (size_t to = 0; to < kVocab; ++to) {
        const double expected = all * std::exp(double{kModel[from][to]} / 0.9) / weight;
        const double apart = static_cast<double>(seen[from][to]) - expected;
        squares += apart * apart / expected;
      }
    }
    EXPECT_LT(squares, 67.6) << "drafter " << kind;
  }
}

// Token for token what comes without drafts, with penalties that count what is accepted.
TEST(Drafter, TheSameSeedGivesTheSameTokens) {
  SamplingOptions options;
  options.temperature = 1.0f;
  options.repetition_penalty = 1.1f;
  options.presence_penalty = 0.2f;
  options.frequency_penalty = 0.01f;
  options.top_p = 0.9f;
  Sampler plain(options), drafted(options);
  SomeDrafter drafter(2), none(2);
  std::vector<TokenId> expected = {0}, tokens = {0};
  while (expected.size() < 2000) {
    const std::vector<TokenId> one = Decode(none, plain, expected.back(), 0);
    expected.insert(expected.end(), one.begin(), one.end());
  }
  while (tokens.size() < 2000) {
    const std::vector<TokenId> some = Decode(drafter, drafted, tokens.back(), 4);
    tokens.insert(tokens.end(), some.begin(), some.end());
  }
  tokens.resize(2000);
  EXPECT_EQ(tokens, expected);
}

}  // namespace
}  // namespace headway
