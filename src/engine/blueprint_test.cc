#include "engine/blueprint.h"

#include <gtest/gtest.h>

#include <memory>

#include "engine/blueprint_testing.h"
#include "engine/paths/listed_from_disk.h"

namespace headway {
namespace {

// Prompts lie in host memory, weights on the device, and nothing of the cut is the planner's
// choice: each sequence more takes as many bytes.
TEST(Blueprint, AsManySequencesAreAdmittedAsTheFormulaSays) {
  Subject subject(128);
  subject.settings.placement = kv::PlacementKind::kHostOnly;
  subject.settings.eviction.method = kv::EvictionMethod::kAdaSnap;
  subject.settings.eviction.budget = 1024;
  subject.settings.eviction.room = 512;
  subject.settings.gpu_layers = 2;
  subject.settings.cut = {.chunk = 512, .head_group = 2, .segment = 1024, .staging_slabs = 1};
  const auto [info, sizes] = PlanGpuBackend(int64_t{80} << 30);
  for (const Encoding encoding : {Encoding::kNone, Encoding::kInt8}) {
    subject.settings.encoding = encoding;
    BlueprintInputs inputs;
    inputs.settings = &subject.settings;
    inputs.config = &subject.config;
    inputs.pattern = &subject.pattern;
    inputs.backend = info;
    inputs.kernels = sizes.get();
    inputs.device_memory = int64_t{2} << 30;
    const auto bytes = [&](int64_t sequences) {
      const Result<Blueprint> blueprint =
          MakeBlueprint(inputs, {std::vector<int64_t>(static_cast<size_t>(sequences), 30000)});
      if (!blueprint.ok()) {
        EXPECT_EQ(blueprint.status().code(), StatusCode::kOutOfBudget);
        return int64_t{-1};
      }
      return blueprint->plan.Bytes(Tier::kDevice);
    };
    const int64_t admitted = FittingSequences(inputs, 30000);
    const int64_t one = bytes(1), more = bytes(2) - one;
    const auto formula = 1 + (*inputs.device_memory - one) / more;
    EXPECT_EQ(admitted, formula);
    EXPECT_GT(admitted, 20);
    EXPECT_GT(bytes(admitted), 0);
    EXPECT_EQ(bytes(admitted + 1), -1);
  }
}

// What it observes comes to the host, where that does not read the device's memory.
TEST(Blueprint, AnEvictorsMemoryOnTheHostIsPlanned) {
  Subject subject(128);
  subject.settings.eviction.method = kv::EvictionMethod::kSnap;
  subject.settings.eviction.budget = 256;
  const auto planned = [](const Result<Blueprint>& blueprint) {
    EXPECT_TRUE(blueprint.ok()) << blueprint.status().message();
    int64_t bytes = 0;
    for (const plan::MemoryRow& row : blueprint->plan.memory) {
      if (row.tier == Tier::kHost && row.tag == "observed weights") bytes += row.bytes;
    }
    return bytes;
  };
  EXPECT_EQ(planned(subject.OnGpu()), 2 * 1000 * 4);  // sums of two heads
  EXPECT_EQ(planned(subject.OnCpu()), 0);
  subject.settings.eviction.method = kv::EvictionMethod::kDefensive;
  EXPECT_EQ(planned(subject.OnGpu()), 3 * 2 * 1000 * 4);  // maxima and norms, too
  subject.settings.eviction.method = kv::EvictionMethod::kStreaming;
  EXPECT_EQ(planned(subject.OnGpu()), 0);
}

// Salient tokens are kept in the model's dtype, whatever the cache's encoding; keys of encoded
// pages are decoded to be weighed.
TEST(Blueprint, SalientTokensOfEncodedCachesArePlanned) {
  Subject subject(128);
  subject.settings.salience.beta = 1.0;
  subject.settings.salience.window = 256;
  subject.settings.salience.most = 0.25;
  const auto planned = [](const Result<Blueprint>& blueprint, Tier tier, const char* tag) {
    EXPECT_TRUE(blueprint.ok()) << blueprint.status().message();
    int64_t bytes = 0;
    for (const plan::MemoryRow& row : blueprint->plan.memory) {
      if (row.tier == tier && row.tag == tag) bytes += row.bytes;
    }
    return bytes;
  };
  // Of two layers of two heads; 250 tokens take 4 pages of 64.
  const int64_t salient = 4 * 2 * 4 * 64 * 128 * 2;
  for (const bool on_host : {false, true}) {
    subject.settings.salient_on_host = on_host;
    const Tier tier = on_host ? Tier::kHost : Tier::kDevice;
    subject.settings.encoding = Encoding::kNone;
    const Result<Blueprint> plain = subject.OnGpu();
    EXPECT_EQ(planned(plain, tier, "KV: kept tokens"), salient);
    for (const Encoding encoding : {Encoding::kInt8, Encoding::kFp8E4M3, Encoding::kInt4}) {
      subject.settings.encoding = encoding;
      const Result<Blueprint> encoded = subject.OnGpu();
      EXPECT_EQ(planned(encoded, tier, "KV: kept tokens"), salient);
      // Keys of 1,024 tokens of two heads.
      EXPECT_EQ(planned(encoded, Tier::kDevice, "activations"),
                planned(plain, Tier::kDevice, "activations") + 2 * 1024 * 128 * 2);
      EXPECT_LT(planned(encoded, Tier::kDevice, "KV: resident slabs"),
                planned(plain, Tier::kDevice, "KV: resident slabs"));
    }
  }
}

TEST(Blueprint, BoundsOfWhatIsSalientNeedTheCacheOnTheHost) {
  Subject subject(128);
  subject.settings.salience.beta = 1.0;
  subject.settings.salience.bound.epsilon = 0.1;
  subject.settings.salient_on_host = true;
  EXPECT_TRUE(subject.OnCpu().ok());
  ExpectUnsupported(subject.OnGpu(),
                    "hgca_epsilon: the host's cores read keys before the window, and cannot where "
                    "they lie in a GPU's memory; give placement host-only");
  subject.settings.placement = kv::PlacementKind::kHostOnly;
  EXPECT_TRUE(subject.OnGpu().ok());
}

TEST(Blueprint, PagesWhoseBlocksADeviceDoesNotChooseAreRefused) {
  Subject subject(128);
  subject.settings.salience.reselect = 2;
  for (const Encoding encoding : {Encoding::kInt8, Encoding::kLossless}) {
    subject.settings.encoding = encoding;
    EXPECT_TRUE(subject.OnGpu().ok());
  }
  subject.settings.cut.page_slots = 256;
  EXPECT_TRUE(subject.OnCpu().ok());
  ExpectUnsupported(subject.OnGpu(),
                    "hgca_reselect and kv_encoding lossless in pages of 256 tokens do not go "
                    "together on this device");
}

TEST(Blueprint, HeadsThatKernelsDoNotAttendToAreRefused) {
  for (const int head_dim : {8, 64, 256}) {
    EXPECT_TRUE(Subject(head_dim).OnGpu().ok()) << head_dim;
    EXPECT_TRUE(Subject(head_dim).OnCpu().ok()) << head_dim;
  }
  for (const int head_dim : {4, 20, 264}) {
    ExpectUnsupported(Subject(head_dim).OnGpu(), "this device does not attend to heads of " +
                                                     std::to_string(head_dim) +
                                                     " elements; use device cpu");
    EXPECT_TRUE(Subject(head_dim).OnCpu().ok()) << head_dim;
  }
}

TEST(Blueprint, EachGpuOfAProcessMapsTheMemoryOfAllRanks) {
  Subject subject(64);
  const double alone = subject.OnGpu()->request.map_share;
  subject.settings.mapped_ranks = 4;
  EXPECT_GT(alone, 0.0);
  EXPECT_EQ(subject.OnGpu()->request.map_share, 4 * alone);
}

TEST(Blueprint, EncodingsThatKernelsDoNotAttendToAreRefused) {
  Subject odd(5);
  EXPECT_TRUE(odd.OnCpu().ok());
  for (const Encoding encoding : {Encoding::kInt8, Encoding::kFp8E4M3, Encoding::kInt4}) {
    odd.settings.encoding = encoding;
    ExpectUnsupported(odd.OnCpu(), std::string("kv_encoding ") + EncodingName(encoding) +
                                       ": this device does not attend to heads of 5 elements in "
                                       "it; leave it out");
    Subject even(6);
    even.settings.encoding = encoding;
    EXPECT_TRUE(even.OnCpu().ok());
  }
}

// Kernels that want more of an address than the cache gives.
class WideKernels : public KernelSizes {
 public:
  explicit WideKernels(int64_t pages, int64_t params) : pages_(pages), params_(params) {}
  DType ActivationDType(DType) const override { return DType::kF32; }
  int64_t DecodeSplit(int64_t, int) const override { return 512; }
  int64_t WorkspaceBytes(const KernelLimits&) const override { return 0; }
  bool TakesEncoding(Encoding) const override { return true; }
  bool SupportsAttention(const AttentionRequest& request) const override {
    return request.page_alignment % pages_ == 0 &&
           (request.encoding == Encoding::kNone || request.param_alignment % params_ == 0);
  }

 private:
  const int64_t pages_, params_;
};

TEST(Blueprint, AlignmentsThatTheCacheLacksAreRefused) {
  Subject subject(8);
  subject.settings.encoding = Encoding::kInt8;
  EXPECT_TRUE(subject.Draw({}, WideKernels(4096, 16)).ok());
  ExpectUnsupported(subject.Draw({}, WideKernels(1 << 20, 16)),
                    "this device does not attend to heads of 8 elements");
  ExpectUnsupported(subject.Draw({}, WideKernels(4096, 4096)),
                    "kv_encoding int8: this device does not attend to heads of 8 elements in it; "
                    "leave it out");
}

// A selecting subject whose model was trained for `window` tokens; contexts have 1,000.
Subject Selecting(int64_t window) {
  Subject subject(64);
  subject.config.max_position = window;
  subject.config.rope.type = RopeType::kDefault;
  subject.settings.selection.summary = {SummaryKind::kMoments, 16};
  subject.settings.selection.keys = 64;
  subject.settings.selection.sink = 16;
  subject.settings.selection.recent = 32;
  return subject;
}

TEST(Blueprint, AContextThatIsLongerThanTheWindowReachesBeyondIt) {
  const auto of = [](const Result<Blueprint>& blueprint) {
    return blueprint->layout.executor.selection;
  };
  EXPECT_FALSE(of(Selecting(1000).OnCpu()).reaches());
  EXPECT_EQ(of(Selecting(1000).OnCpu()).prompts, kv::SelectionPolicy::Prompts::kExact);
  Subject longer = Selecting(800);
  const Result<Blueprint> reaching = longer.OnCpu();
  EXPECT_EQ(of(reaching).distance, 200);
  EXPECT_EQ(of(reaching).prompts, kv::SelectionPolicy::Prompts::kSelected);
  // No distance is longer than the window.
  EXPECT_LE(reaching->plan.cache.chunk, 800 - 64 - 16 - 32 - 15);
  Subject off = Selecting(800);
  off.settings.reach = Settings::Reach::kOff;
  EXPECT_FALSE(of(off.OnCpu()).reaches());
  for (const SummaryKind decodes_alone : {SummaryKind::kMasses, SummaryKind::kPairs}) {
    Subject other = Selecting(800);
    other.settings.selection.summary.kind = decodes_alone;
    EXPECT_FALSE(of(other.OnCpu()).reaches());
  }
  Subject on = Selecting(1000);
  on.settings.reach = Settings::Reach::kOn;
  EXPECT_TRUE(of(on.OnCpu()).reaches());
  for (Subject* each : {&on, &longer}) {
    each->settings.session.emplace().path = "s.session";
    EXPECT_TRUE(of(each->OnCpu()).reaches()) << "with a session, too";
  }
  longer.settings.selection.bound = {.epsilon = 0.1, .deviations = 1.6};
  ExpectUnsupported(longer.OnCpu(),
                    "sparse_epsilon: no error is bounded beyond the window of 800 tokens that this "
                    "model was trained for, where exact attention is no measure; leave it out, or "
                    "give reach off");
  longer.settings.selection.bound = {};
  longer.settings.selection.dense_every = 64;
  ExpectUnsupported(longer.OnCpu(),
                    "sparse_dense_every: beyond the window of 800 tokens that this model was "
                    "trained for no token attends to all keys; leave it out, or give reach off");
  on.config.rope.type = RopeType::kNone;
  ExpectUnsupported(on.OnCpu(), "reach on: this model does not rotate its keys");
}

// As far as chunks have a position each, these are within the window; 1,000 tokens have 125 blocks
// of 8 keys.
TEST(Blueprint, QueriesOfStagesAreBehindTheRecentKeys) {
  const auto staged = [](int64_t window, KeyPositions first, KeyPositions others) {
    Subject subject = Selecting(window);
    kv::SelectionPolicy& policy = subject.settings.selection;
    policy.summary = {SummaryKind::kStages, 8};
    policy.share = BudgetShare::kHead;
    policy.first_positions = first;
    policy.positions = others;
    policy.keys = 16;
    policy.sink = 8;
    return subject.OnCpu();
  };
  constexpr KeyPositions kOne = KeyPositions::kOne;
  constexpr KeyPositions kChunks = KeyPositions::kChunks;
  constexpr KeyPositions kBranches = KeyPositions::kBranches;
  const auto distance = [&](KeyPositions first, KeyPositions others) {
    const Result<Blueprint> blueprint = staged(800, first, others);
    return blueprint->layout.executor.selection.distance;
  };
  EXPECT_EQ(distance(kOne, kOne), 200);
  EXPECT_EQ(distance(kChunks, kBranches), 32);
  EXPECT_EQ(distance(kBranches, kBranches), 32);
  EXPECT_TRUE(staged(158, kChunks, kChunks).ok());
  EXPECT_TRUE(staged(157, kBranches, kBranches).ok());
  for (const KeyPositions others : {kChunks, kBranches}) {
    const Result<Blueprint> blueprint = staged(157, kChunks, others);
    ASSERT_FALSE(blueprint.ok());
    EXPECT_EQ(blueprint.status().message(),
              "hip_positions by chunk: a stage has up to 125 chunks, which with the recent keys do "
              "not fit into the 157 tokens that this model was trained for; give longer chunks, or "
              "relative, or one");
  }
}

// There are summaries and room for lists; what is predicted are steps that read every key, at the
// distances that the model has.
TEST(Blueprint, StepsThatDraftLeavePlansExact) {
  Subject subject = Selecting(800);
  const Result<Blueprint> selecting = subject.OnCpu();
  subject.settings.selection.steps = kv::SelectionPolicy::Steps::kDrafting;
  subject.settings.drafts = {.by = DraftSettings::By::kSparse, .tokens = 7, .acceptance = {}};
  const Result<Blueprint> drafting = subject.OnCpu();
  ASSERT_TRUE(drafting.ok()) << drafting.status().message();
  const ExecutorLimits& limits = drafting->layout.executor;
  EXPECT_TRUE(limits.selection.drafts());
  EXPECT_FALSE(limits.selection.reaches());
  EXPECT_EQ(limits.drafts, 7);
  EXPECT_EQ(drafting->layout.store.summary_frames, selecting->layout.store.summary_frames);
  EXPECT_GT(selecting->request.selection.keys, 0.0);
  EXPECT_EQ(drafting->request.selection.keys, 0.0);
  EXPECT_EQ(limits.selection.from, 0);
}

// A subject of 100,000 tokens that looks twice.
Subject LookingTwice() {
  Subject subject = Selecting(200'000);
  subject.length = 100'000;
  subject.settings.selection.summary.sketch = SketchKind::kTwoBits;
  subject.settings.selection.breadth = kv::SelectionPolicy::kTwoLooks;
  return subject;
}

int64_t BytesOf(const Blueprint& blueprint, Tier tier, const std::string& tag) {
  int64_t bytes = 0;
  for (const plan::MemoryRow& row : blueprint.plan.memory) {
    if (row.tier == tier && row.tag == tag) bytes += row.bytes;
  }
  return bytes;
}

TEST(Blueprint, SketchesLieOnTheDeviceOrWhereTheyAreAskedFor) {
  Subject subject = LookingTwice();
  constexpr const char* kTag = "KV: keys in 2 bits";
  for (const std::optional<Tier> asked :
       {std::optional<Tier>(), std::optional(Tier::kDevice), std::optional(Tier::kHost)}) {
    subject.settings.selection.sketches = asked;
    for (const Result<Blueprint>& drawn : {subject.OnGpu(), subject.OnCpu()}) {
      ASSERT_TRUE(drawn.ok()) << drawn.status().message();
      const Tier tier = asked.value_or(Tier::kDevice);
      const kv::StoreOptions& store = drawn->layout.store;
      EXPECT_EQ(store.sketches, tier);
      const int64_t bytes = store.summary_frames * store.format.sketch_bytes();
      EXPECT_GE(bytes, int64_t{2} * 2 * 64 / 4 * subject.length);
      EXPECT_EQ(BytesOf(*drawn, Tier::kDevice, kTag), tier == Tier::kDevice ? bytes : 0);
      EXPECT_EQ(BytesOf(*drawn, Tier::kHost, kTag), tier == Tier::kHost ? bytes : 0);
      // A GPU has page tables for what it reaches of the host's memory.
      const bool maps = drawn->own_memory && tier == Tier::kHost;
      EXPECT_EQ(BytesOf(*drawn, Tier::kDevice, "page tables of host memory") > 0, maps);
    }
  }
}

// On any device decode reads listed pages from disk into memory of the host, beside which lists
// have theirs: also those that come down, where the host does not read the device's memory.
TEST(Blueprint, MemoryOfPagesThatAreListedOnDiskIsPlanned) {
  Subject subject = Selecting(2000);
  subject.settings.placement = kv::PlacementKind::kDiskOnly;
  subject.settings.memory.disk = int64_t{1} << 30;
  subject.settings.memory.disk_directory = "/tmp";
  const auto planned = [](const Result<Blueprint>& blueprint) {
    EXPECT_TRUE(blueprint.ok()) << blueprint.status().message();
    const kv::StoreOptions& store = blueprint->layout.store;
    EXPECT_EQ(blueprint->layout.executor.listed_frames > 0, store.listed_slabs > 0);
    int64_t bounce = 0;
    for (const plan::MemoryRow& row : blueprint->plan.memory) {
      const bool pages = row.tag == "KV: bounce buffers" || row.tag == "KV: pages from disk";
      if (row.tier == Tier::kHost && pages) bounce += row.bytes;
    }
    EXPECT_EQ(bounce, (store.bounce_slabs + store.listed_slabs) * store.format.slab_bytes() +
                          store.list_bytes);
    // Beside those of two rounds pages have room that stay.
    EXPECT_EQ(store.listed_slabs > blueprint->plan.listed_slabs, store.listed_slabs > 0);
    EXPECT_EQ(blueprint->plan.listed_slabs > 0, store.listed_slabs > 0);
    return store.listed_slabs;
  };
  EXPECT_GT(planned(subject.OnCpu()), 0);
  EXPECT_GT(planned(subject.OnGpu()), 0);
  ExecutorLimits limits = subject.OnGpu()->layout.executor;
  const auto lists = [&] {
    return ListedFromDisk::ListBytes(subject.config.shape, limits, {.split = 128, .parts = 4});
  };
  const int64_t on_gpu = lists();
  limits.host_reads_device = true;
  EXPECT_GT(lists(), 0);
  EXPECT_GT(on_gpu, lists());
  // Keys that are read to choose lie in memory.
  subject.settings.selection.share = BudgetShare::kHead;
  subject.settings.selection.bound = {.epsilon = 0.1, .deviations = 1.6};
  EXPECT_EQ(planned(subject.OnGpu()), 0);
}

// A choice is for two tokens, a search for three choices, and a page closes every 64 tokens.
TEST(Blueprint, ASearchServesWholeChoicesUntilAPageCloses) {
  Subject subject = Selecting(1000);
  subject.settings.selection.refresh = 2;
  subject.settings.selection.breadth = 8;
  subject.settings.selection.candidates_refresh = 5;
  Result<Blueprint> blueprint = subject.OnCpu();
  ASSERT_TRUE(blueprint.ok()) << blueprint.status().message();
  EXPECT_EQ(blueprint->request.selection.choices, 3.0);
  EXPECT_EQ(blueprint->layout.executor.selection.SearchSteps(64), 6);
  subject.settings.selection.candidates_refresh = 500;
  blueprint = subject.OnCpu();
  EXPECT_EQ(blueprint->request.selection.choices, 32.0);
  EXPECT_EQ(blueprint->layout.executor.selection.SearchSteps(64), 64);
  // Eight times 200 keys are more than there are.
  const double few = blueprint->request.selection.candidate_bytes;
  subject.settings.selection.keys = 200;
  blueprint = subject.OnCpu();
  EXPECT_NEAR(blueprint->request.selection.candidate_bytes, few * 1000 / (512 + 48), few * 0.03);
}

// Far blocks come to one place, so that what is chosen takes no more of the window than a block.
TEST(Blueprint, BlocksThatComeTogetherLeaveMoreOfTheWindowToAChunk) {
  Subject subject = Selecting(200);
  subject.settings.selection.far_positions = kv::SelectionPolicy::FarPositions::kTogether;
  constexpr int64_t kChunk = 200 - 16 - 32 - 15;
  subject.settings.cut.chunk = kChunk;
  EXPECT_EQ(subject.OnCpu()->plan.cache.chunk, kChunk);
  subject.settings.cut.chunk = kChunk + 1;
  EXPECT_EQ(subject.OnCpu().status().code(), StatusCode::kInvalidArgument);
}

// Of 1,000 tokens a share of a half is 500 keys, which are listed as 32 blocks.
TEST(Blueprint, AShareOfASequenceLeavesAsMuchLessOfTheWindowToAChunk) {
  constexpr int64_t kChunk = 800 - 512 - 16 - 32 - 15;
  Subject subject = Selecting(800);
  subject.settings.selection.growth = 0.5;
  const Result<Blueprint> reaching = subject.OnCpu();
  ASSERT_TRUE(reaching.ok());
  EXPECT_LE(reaching->plan.cache.chunk, kChunk);
  subject.settings.cut.chunk = kChunk;
  EXPECT_EQ(subject.OnCpu()->plan.cache.chunk, kChunk);
  subject.settings.cut.chunk = kChunk + 1;
  EXPECT_EQ(subject.OnCpu().status().code(), StatusCode::kInvalidArgument);
  subject.settings.cut.chunk.reset();
  subject.settings.selection.growth = 0.75;
  EXPECT_EQ(subject.OnCpu().status().code(), StatusCode::kInvalidArgument);
}

TEST(Blueprint, WhatDoesNotFitIntoTheWindowIsRefused) {
  const Status none = Selecting(150).OnCpu().status();
  EXPECT_EQ(none.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(none.message().find("at most"), std::string::npos) << "no chunk fits";
  Subject chunk = Selecting(800);
  chunk.settings.cut.chunk = 700;
  EXPECT_EQ(chunk.OnCpu().status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(chunk.OnCpu().status().message().find("at most chunk "), std::string::npos);
}

// Copies of what is chosen are for keys that lie behind a bus.
TEST(Blueprint, APageCacheIsThereWhereKeysLieInHostMemory) {
  const auto cache = [](const Result<Blueprint>& blueprint) {
    EXPECT_EQ(blueprint->layout.store.page_cache_bytes, blueprint->plan.page_cache);
    return blueprint->plan.page_cache;
  };
  Subject subject = Selecting(2000);
  EXPECT_EQ(cache(subject.OnGpu()), 0);  // all keys are on the GPU
  EXPECT_EQ(cache(subject.OnCpu()), 0);
  subject.settings.cut.segment = 64;
  subject.settings.cut.chunk = 64;
  subject.settings.cut.staging_slabs = 1;
  const Result<Blueprint> resident = subject.OnGpu();
  // Most of the slabs have no room there.
  int64_t kv = -(resident->plan.slabs[0] - 8) * resident->plan.slab_bytes;
  for (const plan::MemoryRow& row : resident->plan.memory) {
    if (row.tier == Tier::kDevice && row.tag.starts_with("KV:")) kv += row.bytes;
  }
  subject.settings.memory.kv = kv;
  const Result<Blueprint> some = subject.OnGpu();
  ASSERT_TRUE(some.ok()) << some.status().message();
  EXPECT_GT(cache(some), 0);
  subject.settings.page_cache = 0;
  const Result<Blueprint> without = subject.OnGpu();
  EXPECT_EQ(cache(without), 0);
  subject.settings.page_cache = 100000;
  EXPECT_EQ(cache(subject.OnGpu()), 100000);
  EXPECT_LT(subject.OnGpu()->plan.slabs[0], without->plan.slabs[0]);
  subject.settings.page_cache = int64_t{1} << 40;
  EXPECT_EQ(subject.OnGpu().status().code(), StatusCode::kOutOfBudget);
  ExpectUnsupported(subject.OnCpu(),
                    "sparse_cache: this device reads host memory where it lies; leave it out");
}

// A step brings what its layers choose: those with a window choose nothing, and none chooses more
// keys than there are.
TEST(Blueprint, APageCacheIsForTheKeysThatAStepChooses) {
  const auto step_bytes = [](const Subject& subject) {
    return subject.OnGpu()->request.page_cache.step_bytes;
  };
  Subject subject = Selecting(2000);
  const int64_t all = step_bytes(subject);
  EXPECT_GT(all, 0);
  Subject windows = subject;
  windows.config.windows[0] = 128;
  EXPECT_EQ(2 * step_bytes(windows), all);
  subject.settings.selection.keys = 100'000;
  Subject whole = subject;
  whole.settings.selection.keys = whole.length;
  EXPECT_EQ(step_bytes(subject), step_bytes(whole));
}

}  // namespace
}  // namespace headway
