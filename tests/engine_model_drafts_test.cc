// Generation with drafts of another model gives what plain generation gives, wherever either cache
// lies; the model that drafts follows what is certain and keeps no guess.
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

namespace headway::testing {
namespace {

// Of the same vocabulary, and of another family.
std::unique_ptr<Model> OtherTiny() { return Tiny(TinyNeoXConfig(DType::kF32, true)); }

std::vector<std::pair<std::string, HarnessConfig>> Places() {
  HarnessConfig resident, recent, disk, tiny, half, recompute;
  recent.placement = kv::PlacementKind::kRecent;
  recent.device_slabs = 4;
  disk.placement = kv::PlacementKind::kDiskOnly;
  disk.device_slabs = disk.host_slabs = 0;
  tiny.page_slots = 8;
  tiny.segment_pages = 3;
  half.placement = recompute.placement = kv::PlacementKind::kHostOnly;
  half.device_slabs = recompute.device_slabs = 0;
  half.host_share = 0.4;
  recompute.x_segments = 2;
  return {{"resident", resident}, {"recent", recent}, {"disk", disk},
          {"tiny", tiny},         {"half", half},     {"recomputed", recompute}};
}

class ModelDrafts : public ::testing::TestWithParam<DType> {};

// Of the same weights nearly all are right, of others some are now and then.
TEST_P(ModelDrafts, GreedyTokensArePlainOnesWhereverTheCacheLies) {
  for (const bool windows : {false, true}) {
    ModelConfig tiny = TinyConfig(GetParam());
    if (windows) tiny.windows = {40, 0, 17};
    const std::unique_ptr<Model> model = Tiny(tiny), same = Tiny(tiny), other = OtherTiny();
    const Request request = RequestOf(RandomTokens(140, 96, 11), 120);
    for (const auto& [name, config] : Places()) {
      for (Model* const by : {same.get(), other.get()}) {
        DraftsBy drafts_by{.model = by};
        drafts_by.config.page_slots = config.page_slots;
        Bench drafts(*model, config, 1, 260, drafts_by);
        const Generation got = drafts.Run(request);
        ASSERT_EQ(std::ssize(got.tokens), 120) << name;
        ExpectGreedy(*model, config, request, got.tokens, name);
        const Timings& timings = drafts.generator->timings();
        EXPECT_GT(timings.drafted_tokens, 60) << name;
        if (by == same.get()) {
          EXPECT_GT(timings.accepted_drafts, timings.drafted_tokens * 3 / 4) << name;
        }
        const Slot& slot = drafts.generator->slots()[0];
        EXPECT_EQ(drafts.harness->store().Length(*slot.sequence), 259);
        EXPECT_EQ(std::ssize(slot.tokens), 259);
        EXPECT_LE(drafts.draft_model->Length(0), 259);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, ModelDrafts,
                         ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& param) { return std::string(DTypeName(param.param)); });

// The cache of the model that drafts may lie anywhere, too; of what is on disk it sees nothing
// while it guesses.
TEST(ModelDraftKinds, TheModelThatDraftsIsWhereItIs) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kF32));
  const Request request = RequestOf(RandomTokens(140, 96, 12), 120);
  Bench plain(*model, {}, 1, 260);
  const std::vector<TokenId> expected = plain.Run(request).tokens;
  for (const auto& [name, config] : Places()) {
    HarnessConfig own;
    own.page_slots = config.page_slots;
    Bench drafts(*model, own, 1, 260, {.model = model.get(), .config = config});
    EXPECT_EQ(drafts.Run(request).tokens, expected) << name;
    EXPECT_GT(drafts.generator->timings().accepted_drafts, name == "disk" ? 40 : 60) << name;
  }
}

// The same seed gives the same tokens, with every option of sampling. The same model picks by the
// same random numbers and penalties, and so what it drafts is right.
TEST(ModelDraftKinds, SampledTokensAreThoseWithoutDrafts) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kF32)), other = OtherTiny();
  for (int kind = 0; kind < kSamplingKinds; ++kind) {
    Request request = RequestOf(RandomTokens(70, 96, 3), 400);
    request.sampling = SamplingOfKind(kind);
    Bench plain(*model, {}, 1, 470);
    const std::vector<TokenId> expected = plain.Run(request).tokens;
    for (Model* const by : {model.get(), other.get()}) {
      Bench drafts(*model, {}, 1, 470, {.model = by});
      EXPECT_EQ(drafts.Run(request).tokens, expected) << "kind " << kind;
      const Timings& timings = drafts.generator->timings();
      EXPECT_GT(timings.drafted_tokens, 300);
      if (by == model.get()) {
        EXPECT_GT(timings.accepted_drafts, timings.drafted_tokens * 9 / 10);
      }
    }
  }
}

TEST(ModelDraftKinds, AnotherDrafterStandsForTheModel) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kF32));
  ExpectAnotherDrafterStandsIn(*model, [&](int64_t length, const NewDrafter& drafter) {
    return Bench(*model, {}, 1, length, {.drafter = drafter, .model = model.get()});
  });
}

TEST(ModelDraftKinds, EndsEndWhereTheyWould) {
  ModelConfig config = TinyConfig(DType::kF32);
  config.eos = {5, 17};
  const std::unique_ptr<Model> model = Tiny(config);
  ExpectSameEnds(*model, 30, [&](int64_t length) {
    return Bench(*model, {}, 1, length, {.model = model.get()});
  });
}

// More requests than slots, which share steps with prompts, and slots that go on with what they
// hold of other prompts.
TEST(ModelDraftKinds, BatchesGiveWhatEachGivesAlone) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kF32)), other = OtherTiny();
  const std::vector<TokenId> begin = RandomTokens(100, 96, 40);
  std::vector<Request> requests;
  std::vector<std::vector<TokenId>> expected;
  for (int64_t i = 0; i < 7; ++i) {
    std::vector<TokenId> prompt(begin.begin(), begin.begin() + 10 + 13 * i);
    const std::vector<TokenId> own = RandomTokens(20 * i, 96, 50 + i);
    prompt.insert(prompt.end(), own.begin(), own.end());
    requests.push_back(RequestOf(std::move(prompt), 150 - 10 * i));
    requests.back().sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    Bench alone(*model, {}, 1, 360);
    expected.push_back(alone.Run(requests.back()).tokens);
  }
  HarnessConfig config;
  config.chunk = 16;
  for (Model* const by : {model.get(), other.get()}) {
    Bench drafts(*model, config, 3, 360, {.model = by, .config = config});
    for (int round = 0; round < 2; ++round) {
      Result<std::vector<Generation>> got = drafts.generator->Generate(requests, {});
      ASSERT_TRUE(got.ok()) << got.status().message();
      for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ((*got)[i].tokens, expected[i]) << i;
      const Timings& timings = drafts.generator->timings();
      if (by == model.get()) {
        EXPECT_GT(timings.accepted_drafts, timings.drafted_tokens * 3 / 4);
      }
    }
    drafts.generator->Reset();
    EXPECT_EQ(drafts.draft_model->Length(0), 0);
  }
}

// Tokens that the other model does not have: prompts with one are decoded plainly, and so is what
// comes behind one.
TEST(ModelDraftKinds, VocabulariesMayBePaddedOtherwise) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kF32));
  for (const int vocab : {90, 120}) {
    ModelConfig other = TinyConfig(DType::kF32);
    other.shape.vocab = vocab;
    const std::unique_ptr<Model> by = Tiny(other);
    Bench drafts(*model, {}, 1, 460, {.model = by.get()});
    for (uint64_t seed = 0; seed < 6; ++seed) {
      Request request = RequestOf(RandomTokens(60, 88, seed), 80);
      if (seed % 3 == 2) request.prompt[30] = 93;
      request.sampling.temperature = 1.0f;
      request.sampling.seed = seed;
      Bench plain(*model, {}, 1, 460);
      EXPECT_EQ(drafts.Run(request).tokens, plain.Run(request).tokens) << vocab << " " << seed;
      const int64_t drafted = drafts.generator->timings().drafted_tokens;
      if (vocab == 120 || seed % 3 != 2) {
        EXPECT_GT(drafted, 0) << vocab << " " << seed;
      } else {
        EXPECT_EQ(drafted, 0) << vocab << " " << seed;
      }
    }
  }
}

// Calls what it is given before tokens are picked.
class WatchesPicks : public ForwardingKernels {
 public:
  WatchesPicks(std::unique_ptr<Kernels> inner, std::function<void()> on_pick)
      : ForwardingKernels(std::move(inner)), on_pick_(std::move(on_pick)) {}

  void Sample(Stream& s, std::span<const SampleItem> items) override {
    on_pick_();
    ForwardingKernels::Sample(s, items);
  }

 private:
  const std::function<void()> on_pick_;
};

// In the middle of the rounds of either model: no draft is left in any sequence, and each goes on
// as if nothing had been.
TEST(ModelDraftKinds, CancelledWhileDraftingAndContinued) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kF32));
  std::vector<Request> requests;
  std::vector<std::vector<TokenId>> expected;
  for (int64_t i = 0; i < 3; ++i) {
    requests.push_back(RequestOf(RandomTokens(120 + 9 * i, 96, 60 + i), 100));
    Bench alone(*model, {}, 1, 260);
    expected.push_back(alone.Run(requests.back()).tokens);
  }
  for (const int64_t at : {1, 4, 11, 32, 60}) {
    std::atomic<bool> stop = false;
    int64_t picks = 0;
    HarnessConfig watched;
    watched.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
      return std::make_unique<WatchesPicks>(std::move(kernels), [&] { stop = ++picks == at; });
    };
    Bench drafts(*model, {}, 3, 260, {.model = model.get(), .config = watched});
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
      EXPECT_LE(drafts.draft_model->Length(i),
                std::ssize(requests[i].prompt) + std::ssize(got.tokens));
    }
    const Result<std::vector<Generation>> again = drafts.generator->Generate(requests, {});
    ASSERT_TRUE(again.ok()) << again.status().message();
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ((*again)[i].tokens, expected[i]) << i;
  }
}

// Drafts that are paced have pauses, behind which the model reads what it has missed.
TEST(ModelDraftKinds, PacedDraftsAreRight) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kF32)), other = OtherTiny();
  const Request request = RequestOf(RandomTokens(100, 96, 16), 400);
  Bench plain(*model, {}, 1, 500);
  const std::vector<TokenId> expected = plain.Run(request).tokens;
  for (Model* const by : {model.get(), other.get()}) {
    Bench drafts(*model, {}, 1, 500, {.model = by, .paces = true});
    EXPECT_EQ(drafts.Run(request).tokens, expected);
    EXPECT_GT(drafts.generator->timings().drafted_tokens, 0);
  }
}

}  // namespace
}  // namespace headway::testing
