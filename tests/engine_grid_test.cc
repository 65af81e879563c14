// Residence never changes a bit, and every plan agrees with the all-resident one (DESIGN:
// "Exactness and how it is shown"). Run again under other defaults through HEADWAY_TEST_CONFIG.
#include <gtest/gtest.h>

#include "kernels/ref/ref_sampling.h"
#include "kernels/sampler.h"
#include "support/grid.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

class Grid : public ::testing::TestWithParam<DType> {};

TEST_P(Grid, ResidenceAndHeadGroupNeverChangeABit) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = HarnessConfig::Default();
  const int64_t page = config.page_slots;
  for (int64_t length : {int64_t{1}, page - 1, page, page + 1, 7 * page + 3, 12 * page}) {
    const std::vector<TokenId> tokens = RandomTokens(length, 96, static_cast<uint64_t>(length));
    const int64_t decode = std::min<int64_t>(length - 1, 5);
    HarnessConfig resident = config;
    resident.placement = kv::PlacementKind::kFirstFit;
    resident.device_slabs = 1 << 20;
    resident.group_heads = 0;
    const LogitRows expected = RunTokens(*model, resident, tokens, decode);
    for (kv::PlacementKind placement :
         {kv::PlacementKind::kFirstFit, kv::PlacementKind::kLru, kv::PlacementKind::kHostOnly,
          kv::PlacementKind::kDiskOnly, kv::PlacementKind::kRecent}) {
      for (int group : {1, 2}) {
        for (int64_t device_slabs : {0, 3}) {
          HarnessConfig other = config;
          other.placement = placement;
          other.group_heads = group;
          other.device_slabs = device_slabs;
          other.host_slabs = 5;
          other.staging_slabs = 1 + static_cast<int>(device_slabs % 2);
          ExpectSameAnywhere(*model, other, expected, RunTokens(*model, other, tokens, decode),
                             "length " + std::to_string(length) + " placement " +
                                 std::to_string(static_cast<int>(placement)) + " group " +
                                 std::to_string(group) + " device slabs " +
                                 std::to_string(device_slabs));
        }
      }
    }
  }
}

// Chunks and segments long enough for dense kernels that small ones do not reach.
TEST_P(Grid, ResidenceNeverChangesABitOfLongChunks) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = HarnessConfig::Default();
  config.chunk = 256;
  config.page_slots = 64;
  config.segment_pages = 6;
  const std::vector<TokenId> tokens = RandomTokens(1100, 96, 12);
  HarnessConfig resident = config;
  resident.placement = kv::PlacementKind::kFirstFit;
  resident.device_slabs = 1 << 20;
  const LogitRows expected = RunTokens(*model, resident, tokens, 3);
  HarnessConfig away = config;
  away.placement = kv::PlacementKind::kHostOnly;
  away.device_slabs = 0;
  ExpectSameAnywhere(*model, away, expected, RunTokens(*model, away, tokens, 3), "host only");
  HarnessConfig ref = config;
  ref.use_ref_kernels = true;
  ref.chunk = 1100;
  const std::vector<TokenId> start(tokens.begin(), tokens.begin() + 400);
  const LogitRows defined = RunTokens(*Tiny(TinyConfig(GetParam())), ref, start, 0);
  ExpectNear(*model, defined, LogitRows(expected.begin(), expected.begin() + 400), "ref");
}

TEST_P(Grid, ChunkSegmentAndThreadsAgreeWithinTolerance) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(151, 96, 5);
  HarnessConfig config = HarnessConfig::Default();
  const LogitRows expected = RunTokens(*model, config, tokens, 20);
  for (int64_t chunk : {1, 2, 7, 33, 200}) {
    for (int64_t segment_pages : {1, 3, 50}) {
      for (int threads : {1, 3}) {
        HarnessConfig other = config;
        other.chunk = chunk;
        other.segment_pages = segment_pages;
        other.threads = threads;
        ExpectNear(*model, expected, RunTokens(*model, other, tokens, 20),
                   "chunk " + std::to_string(chunk) + " segment pages " +
                       std::to_string(segment_pages) + " threads " + std::to_string(threads));
      }
    }
  }
}

TEST_P(Grid, AgreesWithTheReferenceKernels) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(90, 96, 6);
  HarnessConfig ref = HarnessConfig::Default();
  ref.use_ref_kernels = true;
  const LogitRows expected = RunTokens(*Tiny(TinyConfig(GetParam())), ref, tokens, 10);
  HarnessConfig config = HarnessConfig::Default();
  ExpectNear(*model, expected, RunTokens(*model, config, tokens, 10), TestDevice() + " and ref");
}

TEST_P(Grid, ABatchOfUnequalLengthsEqualsItsSequencesAlone) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const HarnessConfig config = HarnessConfig::Default();
  const std::vector<int64_t> lengths = {1, 5, 40, 61};
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 4, 80);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const RopeFrequencies rope = RopeOf(*model, 80);
  std::vector<kv::SequenceId> ids;
  std::vector<std::vector<TokenId>> tokens;
  for (size_t i = 0; i < lengths.size(); ++i) {
    ids.push_back(*(*h)->NewSequence());
    tokens.push_back(RandomTokens(lengths[i] + 8, 96, 100 + i));
    ASSERT_TRUE((*h)->Append(ids[i], std::span(tokens[i]).first(lengths[i]), rope).ok());
  }
  // Steps that mix decodes with short prefills.
  std::vector<LogitRows> got(lengths.size());
  std::vector<size_t> at(lengths.begin(), lengths.end());
  for (int step = 0; step < 8; ++step) {
    std::vector<StepInput> inputs;
    for (size_t i = 0; i < ids.size(); ++i) {
      const size_t n = i == 2 && step == 0 ? 3 : 1;
      if (at[i] + n > tokens[i].size()) continue;
      inputs.push_back({ids[i], std::span(tokens[i]).subspan(at[i], n), &rope, LogitsMode::kAll});
    }
    Result<std::vector<LogitRows>> rows = (*h)->Step(inputs);
    ASSERT_TRUE(rows.ok()) << rows.status().message();
    for (size_t e = 0; e < inputs.size(); ++e) {
      size_t i = 0;
      while (ids[i] != inputs[e].sequence) ++i;
      at[i] += inputs[e].tokens.size();
      for (auto& row : (*rows)[e]) got[i].push_back(std::move(row));
    }
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    const LogitRows alone = RunTokens(*model, config, tokens[i], 8);
    const LogitRows tail(alone.end() - 8, alone.end());
    ExpectNear(*model, tail, got[i], "sequence " + std::to_string(i));
  }
}

TEST_P(Grid, SampledTokensAreThoseOfTheLogits) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  Result<std::unique_ptr<StepHarness>> h =
      StepHarness::Create(*model, HarnessConfig::Default(), 3, 40);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const RopeFrequencies rope = RopeOf(*model, 40);
  const std::vector<TokenId> tokens = RandomTokens(30, 96, 12);
  SamplingOptions options;
  options.temperature = 0.9f;
  options.top_k = 40;
  options.top_p = 0.9f;
  options.min_p = 0.01f;
  options.repetition_penalty = 1.2f;
  options.frequency_penalty = 0.3f;
  std::vector<Sampler> samplers = {Sampler(SamplingOptions{}), Sampler(options)};
  samplers[1].AcceptPrompt(tokens);
  std::vector<kv::SequenceId> ids;
  for (int i = 0; i < 3; ++i) {
    ids.push_back(*(*h)->NewSequence());
    ASSERT_TRUE((*h)->Append(ids.back(), std::span(tokens).first(20), rope).ok());
  }
  // The same tokens in three sequences: one gives logits, the others a token each. Rows of the
  // residual stream that are wanted lie apart in the first step and side by side in the others.
  size_t at = 20;
  for (const size_t n : {3u, 1u, 1u}) {
    std::vector<StepInput> inputs;
    std::vector<TokenId> sampled(2, -1);
    const std::vector<Sampler> copies = samplers;
    for (size_t i = 0; i < 3; ++i) {
      StepInput input{ids[i], std::span(tokens).subspan(at, n), &rope};
      if (i == 0) {
        input.logits = LogitsMode::kAll;
      } else {
        input.sampler = &samplers[i - 1];
        input.sampled = &sampled[i - 1];
      }
      inputs.push_back(input);
    }
    at += n;
    Result<std::vector<LogitRows>> rows = (*h)->Step(inputs);
    ASSERT_TRUE(rows.ok()) << rows.status().message();
    ASSERT_EQ((*rows)[0].size(), n);
    EXPECT_TRUE((*rows)[1].empty() && (*rows)[2].empty());
    for (size_t i = 0; i < 2; ++i) {
      Sampler copy = copies[i];
      std::vector<float> logits = (*rows)[0].back();
      SampleItem item = copy.Next();
      item.logits = logits.data();
      item.vocab = static_cast<int64_t>(logits.size());
      EXPECT_EQ(ref::Sample(item).token, sampled[i]);
      samplers[i].Accept(sampled[i]);
    }
  }
}

TEST_P(Grid, SlidingWindowsEqualTheReference) {
  ModelConfig tiny = TinyConfig(GetParam());
  tiny.windows = {24, 0, 9};
  const std::unique_ptr<Model> model = Tiny(tiny);
  const std::vector<TokenId> tokens = RandomTokens(160, 96, 8);
  HarnessConfig ref = HarnessConfig::Default();
  ref.use_ref_kernels = true;
  ref.chunk = 200;  // one step: no page is freed or streamed
  const LogitRows expected = RunTokens(*Tiny(tiny), ref, tokens, 0);
  for (int64_t chunk : {5, 64}) {
    HarnessConfig config = HarnessConfig::Default();
    config.chunk = chunk;
    ExpectNear(*model, expected, RunTokens(*model, config, tokens, 30),
               "chunk " + std::to_string(chunk));
  }
}

TEST_P(Grid, OtherFamiliesEqualTheReferenceWhereverTheirCacheLies) {
  const std::vector<TokenId> tokens = RandomTokens(160, 96, 9);
  for (const ModelConfig& tiny :
       {TinyOptConfig(GetParam(), false), TinyOptConfig(GetParam(), true),
        TinyNeoXConfig(GetParam(), false), TinyNeoXConfig(GetParam(), true)}) {
    SCOPED_TRACE(tiny.architecture);
    const std::unique_ptr<Model> model = Tiny(tiny);
    HarnessConfig ref = HarnessConfig::Default();
    ref.use_ref_kernels = true;
    ref.chunk = 200;
    const LogitRows defined = RunTokens(*Tiny(tiny), ref, tokens, 0);
    HarnessConfig config = HarnessConfig::Default();
    config.chunk = 37;
    const LogitRows expected = RunTokens(*model, config, tokens, 30);
    ExpectNear(*model, defined, expected, "ref");
    HarnessConfig away = config;
    away.placement = kv::PlacementKind::kHostOnly;
    away.device_slabs = 0;
    ExpectSameBits(expected, RunTokens(*model, away, tokens, 30), "host only");
    HarnessConfig other = config;
    other.chunk = 8;
    other.segment_pages = 1;
    ExpectNear(*model, expected, RunTokens(*model, other, tokens, 30), "chunk 8");
  }
}

// More sequences than logits were once computed for at a time.
TEST_P(Grid, ALargeBatchOfOptEqualsItsSequencesAlone) {
  constexpr int kBatch = 70;
  const std::unique_ptr<Model> model = Tiny(TinyOptConfig(GetParam(), false));
  const HarnessConfig config = HarnessConfig::Default();
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, kBatch, 20);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const RopeFrequencies rope = RopeOf(*model, 20);
  std::vector<std::vector<TokenId>> tokens;
  std::vector<StepInput> inputs;
  for (int i = 0; i < kBatch; ++i) {
    const size_t prompt = 1 + static_cast<size_t>(i) % 17;
    const kv::SequenceId id = *(*h)->NewSequence();
    tokens.push_back(RandomTokens(static_cast<int64_t>(prompt) + 1, 96, 200 + i));
    ASSERT_TRUE((*h)->Append(id, std::span(tokens.back()).first(prompt), rope).ok());
    inputs.push_back({id, {}, &rope, LogitsMode::kAll});
  }
  for (size_t i = 0; i < inputs.size(); ++i) inputs[i].tokens = std::span(tokens[i]).last(1);
  Result<std::vector<LogitRows>> rows = (*h)->Step(inputs);
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  for (size_t i = 0; i < inputs.size(); i += 13) {
    const LogitRows alone = RunTokens(*model, config, tokens[i], 1);
    ASSERT_EQ((*rows)[i].size(), 1u);
    ExpectNear(*model, LogitRows(alone.end() - 1, alone.end()), (*rows)[i],
               "sequence " + std::to_string(i));
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, Grid, ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& param) { return std::string(DTypeName(param.param)); });

}  // namespace
}  // namespace headway::testing
