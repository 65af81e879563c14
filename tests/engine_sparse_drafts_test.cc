// Generation with drafts of steps over chosen keys gives what plain generation gives, wherever the
// cache lies and however its pages are stored; only steps that draft choose.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "support/draft_bench.h"
#include "support/draft_kinds.h"
#include "support/drafters.h"
#include "support/forwarding_kernels.h"
#include "support/grid.h"
#include "support/selection_policies.h"

namespace headway::testing {
namespace {

kv::SelectionPolicy Drafting(kv::SelectionPolicy policy) {
  policy.steps = kv::SelectionPolicy::Steps::kDrafting;
  return policy;
}

HarnessConfig Sparse(HarnessConfig config, int64_t keys = 32) {
  config.selection = Drafting(PolicyOf(keys));
  return config;
}

// Calls what it is given before each choice.
class WatchesChoices : public ForwardingKernels {
 public:
  WatchesChoices(std::unique_ptr<Kernels> inner, std::function<void()> on_choice)
      : ForwardingKernels(std::move(inner)), on_choice_(std::move(on_choice)) {}

  void SelectBlocks(Stream& s, const PageFormat& format, const SummaryFormat& summary, int group,
                    float scale, std::span<const SelectItem> items) override {
    on_choice_();
    ForwardingKernels::SelectBlocks(s, format, summary, group, scale, items);
  }

 private:
  const std::function<void()> on_choice_;
};

HarnessConfig Watched(HarnessConfig config, std::function<void()> on_choice) {
  config.wrap_kernels = [on_choice](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<WatchesChoices>(std::move(kernels), on_choice);
  };
  return config;
}

std::vector<std::pair<std::string, HarnessConfig>> Places() {
  HarnessConfig resident, recent, lru, disk, tiny, apart, half, recompute;
  recent.placement = kv::PlacementKind::kRecent;
  recent.device_slabs = 4;
  lru.placement = kv::PlacementKind::kLru;
  lru.device_slabs = 2;
  lru.host_slabs = 4;
  disk.placement = kv::PlacementKind::kDiskOnly;
  disk.device_slabs = disk.host_slabs = 0;
  tiny.page_slots = 8;
  tiny.segment_pages = 3;
  apart.group_heads = 1;
  apart.page_slots = 64;
  half.placement = recompute.placement = kv::PlacementKind::kHostOnly;
  half.device_slabs = recompute.device_slabs = 0;
  half.host_share = 0.4;
  recompute.x_segments = 2;
  return {{"resident", resident}, {"recent", recent}, {"lru", lru},   {"disk", disk},
          {"tiny", tiny},         {"apart", apart},   {"half", half}, {"recomputed", recompute}};
}

class SparseDrafts : public ::testing::TestWithParam<DType> {};

TEST_P(SparseDrafts, GreedyTokensArePlainOnesWhereverTheCacheLies) {
  for (const bool windows : {false, true}) {
    ModelConfig tiny = TinyConfig(GetParam());
    if (windows) tiny.windows = {40, 0, 17};
    const std::unique_ptr<Model> model = Tiny(tiny);
    const Request request = RequestOf(RandomTokens(140, 96, 11), 120);
    for (const auto& [name, config] : Places()) {
      Bench drafts(*model, Sparse(config), 1, 260);
      const Generation got = drafts.Run(request);
      ASSERT_EQ(std::ssize(got.tokens), 120) << name;
      ExpectGreedy(*model, config, request, got.tokens, name);
      EXPECT_GT(drafts.generator->timings().drafted_tokens, 60) << name;
      EXPECT_FALSE(drafts.generator->slots()[0].approximate);
      const Slot& slot = drafts.generator->slots()[0];
      EXPECT_EQ(drafts.harness->store().Length(*slot.sequence), 259);
      EXPECT_EQ(std::ssize(slot.tokens), 259);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, SparseDrafts,
                         ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& param) { return std::string(DTypeName(param.param)); });

// The plain run tells what they are: chunks of one token and of some round other keys.
TEST(SparseDraftKinds, GreedyTokensArePlainOnesOverEncodedPages) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kF32));
  const Request request = RequestOf(RandomTokens(140, 96, 12), 120);
  for (const Encoding encoding : {Encoding::kInt8, Encoding::kFp8E4M3, Encoding::kInt4}) {
    HarnessConfig config;
    config.encoding = encoding;
    Bench plain(*model, config, 1, 260);
    const std::vector<TokenId> expected = plain.Run(request).tokens;
    Bench drafts(*model, Sparse(config), 1, 260);
    EXPECT_EQ(drafts.Run(request).tokens, expected) << EncodingName(encoding);
    EXPECT_GT(drafts.generator->timings().drafted_tokens, 60);
  }
}

// Policies that keep lists, look twice, bound an error, or read keys to choose.
TEST(SparseDraftKinds, EveryPolicyDrafts) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kF32));
  const Request request = RequestOf(RandomTokens(140, 96, 13), 120);
  Bench plain(*model, {}, 1, 260);
  const std::vector<TokenId> expected = plain.Run(request).tokens;
  kv::SelectionPolicy refreshed = PolicyOf(32);
  refreshed.refresh = 4;
  for (const kv::SelectionPolicy& policy :
       {TwoLooks(32), KeepsCandidates(32, 4), refreshed, SearchesPages(32), Bounded(16, 0.3),
        PolicyOf(32, SummaryKind::kBoxes), PolicyOf(32, SummaryKind::kMasses)}) {
    HarnessConfig config;
    config.selection = Drafting(policy);
    Bench drafts(*model, config, 1, 260);
    EXPECT_EQ(drafts.Run(request).tokens, expected);
    EXPECT_GT(drafts.generator->timings().accepted_drafts, 10);
  }
}

// Steps that draft choose in each layer, others never; where nothing is left out none drafts.
TEST(SparseDraftKinds, OnlyStepsThatDraftChoose) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kF32));
  const Request request = RequestOf(RandomTokens(140, 96, 14), 60);
  int64_t choices = 0;
  const HarnessConfig config = Watched(Sparse({}), [&] { ++choices; });
  Bench drafts(*model, config, 1, 200);
  drafts.Run(request);
  EXPECT_EQ(choices, drafts.generator->timings().drafted_tokens * model->shape().layers);
  EXPECT_GT(choices, 0);
  Bench whole(*model, Sparse({}, 190), 1, 200);
  whole.Run(request);
  EXPECT_EQ(whole.generator->timings().drafted_tokens, 0);
}

// The same seed gives the same tokens, with every option of sampling. Drafts are picked by the same
// random numbers and penalties: many are right, though two draws of 96 tokens seldom agree.
TEST(SparseDraftKinds, SampledTokensAreThoseWithoutDrafts) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kF32));
  for (int kind = 0; kind < kSamplingKinds; ++kind) {
    Request request = RequestOf(RandomTokens(150, 96, 3), 400);
    request.sampling = SamplingOfKind(kind);
    Bench plain(*model, {}, 1, 550);
    const std::vector<TokenId> expected = plain.Run(request).tokens;
    for (const int64_t keys : {16, 96}) {
      Bench drafts(*model, Sparse({}, keys), 1, 550);
      EXPECT_EQ(drafts.Run(request).tokens, expected) << "kind " << kind << " keys " << keys;
      const Timings& timings = drafts.generator->timings();
      EXPECT_GT(timings.accepted_drafts, 20);
      if (keys == 96) {
        EXPECT_GT(timings.accepted_drafts, timings.drafted_tokens / 10) << kind;
      }
    }
  }
}

TEST(SparseDraftKinds, AnotherDrafterStandsForTheSteps) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kF32));
  ExpectAnotherDrafterStandsIn(*model, [&](int64_t length, const NewDrafter& drafter) {
    return Bench(*model, Sparse({}), 1, length, drafter);
  });
}

TEST(SparseDraftKinds, EndsEndWhereTheyWould) {
  ModelConfig config = TinyConfig(DType::kF32);
  config.eos = {5, 17};
  const std::unique_ptr<Model> model = Tiny(config);
  ExpectSameEnds(*model, 130, [&](int64_t length) { return Bench(*model, Sparse({}), 1, length); });
}

// More requests than slots, which share steps with prompts; what is read of them is unequal, and
// some are too short for drafts at first.
TEST(SparseDraftKinds, BatchesGiveWhatEachGivesAlone) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kF32));
  std::vector<Request> requests;
  std::vector<std::vector<TokenId>> expected;
  for (int64_t i = 0; i < 7; ++i) {
    requests.push_back(RequestOf(RandomTokens(10 + 33 * i, 96, 40 + i), 150 - 10 * i));
    requests.back().sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    Bench alone(*model, {}, 1, 360);
    expected.push_back(alone.Run(requests.back()).tokens);
  }
  HarnessConfig config = Sparse({});
  config.chunk = 16;
  Bench drafts(*model, config, 3, 360);
  Result<std::vector<Generation>> got = drafts.generator->Generate(requests, {});
  ASSERT_TRUE(got.ok()) << got.status().message();
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ((*got)[i].tokens, expected[i]) << i;
  EXPECT_GT(drafts.generator->timings().accepted_drafts, 100);
}

// In the middle of a step that drafts for some of the sequences: no draft is left in any of them,
// and each goes on as if nothing had been.
TEST(SparseDraftKinds, CancelledWhileDraftingAndContinued) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kF32));
  std::vector<Request> requests;
  std::vector<std::vector<TokenId>> expected;
  for (int64_t i = 0; i < 3; ++i) {
    requests.push_back(RequestOf(RandomTokens(120 + 9 * i, 96, 60 + i), 100));
    Bench alone(*model, {}, 1, 260);
    expected.push_back(alone.Run(requests.back()).tokens);
  }
  for (const int64_t at : {1, 11, 32, 77, 120}) {
    std::atomic<bool> stop = false;
    int64_t choices = 0;
    const auto count = [&] { stop = ++choices == at; };
    Bench drafts(*model, Watched(Sparse({}), count), 3, 260);
    Hooks hooks;
    hooks.cancel = &stop;
    Result<std::vector<Generation>> cancelled = drafts.generator->Generate(requests, hooks);
    ASSERT_TRUE(cancelled.ok()) << cancelled.status().message();
    for (size_t i = 0; i < requests.size(); ++i) {
      const Generation& got = (*cancelled)[i];
      EXPECT_EQ(got.finish, FinishReason::kCancelled);
      EXPECT_TRUE(std::equal(got.tokens.begin(), got.tokens.end(), expected[i].begin()));
      const Slot& slot = drafts.generator->slots()[i];
      EXPECT_EQ(drafts.harness->store().Length(*slot.sequence), std::ssize(slot.tokens));
      EXPECT_LT(std::ssize(slot.tokens), std::ssize(requests[i].prompt) + std::ssize(got.tokens));
    }
    const Result<std::vector<Generation>> again = drafts.generator->Generate(requests, {});
    ASSERT_TRUE(again.ok()) << again.status().message();
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ((*again)[i].tokens, expected[i]) << i;
  }
}

}  // namespace
}  // namespace headway::testing
