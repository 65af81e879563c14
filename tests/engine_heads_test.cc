// Streaming heads: the engine's logits are those of plain attention under their mask, whatever the
// plan, and their memory is of a constant size. Run again under other defaults through
// HEADWAY_TEST_CONFIG.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/half.h"
#include "base/random.h"
#include "support/forwarding_kernels.h"
#include "support/grid.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

constexpr int kLayers = 3, kKvHeads = 3;  // of TinyConfig

kv::HeadPattern Pattern(int64_t sink, int64_t recent) {
  return {sink, recent, {{true, false, true}, {false, true, true}, {true, true, false}}};
}

// Another kernel library that computes attention from its definition, key by key in double, under
// the mask of a pattern. All tokens come in one step, whose keys are all in one run.
class PlainAttention : public ForwardingKernels {
 public:
  PlainAttention(std::unique_ptr<Kernels> kernels, kv::HeadPattern pattern)
      : ForwardingKernels(std::move(kernels)), pattern_(std::move(pattern)) {}

  // Of the last token: the share of attention behind sink and recent keys, [layers][query heads],
  // whether the heads stream or not.
  std::vector<std::vector<double>> far;

  void Attend(Stream&, const PageFormat& format, int group, const AttentionParams& params,
              std::span<const AttentionItem> items) override {
    ASSERT_EQ(items.size(), 1u);
    const AttentionItem& item = items[0];
    ASSERT_EQ(item.heads, kKvHeads);
    far.emplace_back();
    for (int head = 0; head < item.heads * group; ++head) {
      for (int64_t t = 0; t < item.tokens; ++t) {
        const double mass = Query(format, params, item, head / group, head, t);
        if (t + 1 == item.tokens) far.back().push_back(mass);
      }
    }
  }

 private:
  double Query(const PageFormat& format, const AttentionParams& params, const AttentionItem& item,
               int kv_head, int head, int64_t t) const {
    const int layer = static_cast<int>(far.size()) - 1;
    const int dim = format.head_dim;
    const auto element = [&](const std::byte* plane, int64_t key, int i) {
      const PageRun& pages = item.keys.pages;
      const std::byte* page =
          plane + kv_head * pages.head_stride + key / format.page_slots * pages.page_stride;
      return static_cast<double>(
          LoadAsFloat(page, key % format.page_slots * dim + i, format.dtype));
    };
    const float* q = static_cast<const float*>(item.q) + t * item.q_stride + head * dim;
    std::vector<double> o(static_cast<size_t>(dim), 0.0);
    double sum = 0.0, all = 0.0, near = 0.0;
    for (int64_t key = 0; key <= t; ++key) {
      double logit = 0.0;
      for (int i = 0; i < dim; ++i) logit += q[i] * element(item.keys.pages.k, key, i);
      const double weight = std::exp(params.scale * logit);
      const bool is_near = key < pattern_.sink || key > t - pattern_.recent;
      all += weight;
      if (is_near) near += weight;
      if (pattern_.IsStreaming(layer, kv_head) && !is_near) continue;
      sum += weight;
      for (int i = 0; i < dim; ++i)
        o[static_cast<size_t>(i)] += weight * element(item.keys.pages.v, key, i);
    }
    for (int i = 0; i < dim; ++i) {
      item.o[t * item.o_stride + head * dim + i] =
          static_cast<float>(o[static_cast<size_t>(i)] / sum);
    }
    item.lse[t * item.lse_stride + head] = static_cast<float>(std::log(sum));
    return 1.0 - near / all;
  }

  const kv::HeadPattern pattern_;
};

// Logits behind each token, by PlainAttention; `far` as there.
LogitRows PlainLogits(const ModelConfig& tiny, std::span<const TokenId> tokens,
                      const kv::HeadPattern& pattern,
                      std::vector<std::vector<double>>* far = nullptr) {
  HarnessConfig config;
  config.chunk = static_cast<int64_t>(tokens.size());
  config.use_ref_kernels = true;
  PlainAttention* plain = nullptr;
  config.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
    auto wrapped = std::make_unique<PlainAttention>(std::move(kernels), pattern);
    plain = wrapped.get();
    return wrapped;
  };
  const std::unique_ptr<Model> model = Tiny(tiny);
  Result<std::unique_ptr<StepHarness>> h =
      StepHarness::Create(*model, config, 1, static_cast<int64_t>(tokens.size()));
  EXPECT_TRUE(h.ok()) << h.status().message();
  if (!h.ok()) return {};
  Result<LogitRows> rows = (*h)->Append(*(*h)->NewSequence(), tokens,
                                        RopeOf(*model, static_cast<int64_t>(tokens.size())));
  EXPECT_TRUE(rows.ok()) << rows.status().message();
  if (far != nullptr) *far = plain->far;
  return rows.ok() ? std::move(*rows) : LogitRows();
}

class StreamingHeads : public ::testing::TestWithParam<DType> {};

TEST_P(StreamingHeads, EqualPlainAttentionUnderTheMask) {
  const ModelConfig tiny = TinyConfig(GetParam());
  const std::unique_ptr<Model> model = Tiny(tiny);
  const std::vector<TokenId> tokens = RandomTokens(170, 96, 3);
  for (const auto& [sink, recent] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 1}, {5, 21}, {16, 64}, {1, 17}, {40, 3}, {500, 1}, {3, 500}}) {
    const LogitRows expected = PlainLogits(tiny, tokens, Pattern(sink, recent));
    for (int64_t chunk : {1, 7, 64, 200}) {
      HarnessConfig config = HarnessConfig::Default();
      config.chunk = chunk;
      config.pattern = Pattern(sink, recent);
      ExpectNear(*model, expected, RunTokens(*model, config, tokens, 30),
                 "sink " + std::to_string(sink) + " recent " + std::to_string(recent) + " chunk " +
                     std::to_string(chunk));
    }
  }
}

TEST_P(StreamingHeads, LongChunksEqualPlainAttention) {
  const ModelConfig tiny = TinyConfig(GetParam());
  const std::unique_ptr<Model> model = Tiny(tiny);
  const std::vector<TokenId> tokens = RandomTokens(700, 96, 4);
  const LogitRows expected = PlainLogits(tiny, tokens, Pattern(70, 130));
  HarnessConfig config = HarnessConfig::Default();
  config.chunk = 256;
  config.page_slots = 64;
  config.segment_pages = 4;
  config.pattern = Pattern(70, 130);
  ExpectNear(*model, expected, RunTokens(*model, config, tokens, 10), "long chunks");
}

TEST_P(StreamingHeads, ResidenceAndHeadGroupNeverChangeABit) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(155, 96, 5);
  HarnessConfig config = HarnessConfig::Default();
  config.pattern = Pattern(9, 30);
  HarnessConfig resident = config;
  resident.placement = kv::PlacementKind::kFirstFit;
  resident.device_slabs = 1 << 20;
  resident.group_heads = 0;
  const LogitRows expected = RunTokens(*model, resident, tokens, 20);
  for (kv::PlacementKind placement : {kv::PlacementKind::kFirstFit, kv::PlacementKind::kLru,
                                      kv::PlacementKind::kHostOnly, kv::PlacementKind::kDiskOnly}) {
    for (int group : {1, 2, 3}) {
      HarnessConfig other = config;
      other.placement = placement;
      other.group_heads = group;
      other.device_slabs = 2;
      other.host_slabs = 3;
      ExpectSameAnywhere(*model, other, expected, RunTokens(*model, other, tokens, 20),
                         "placement " + std::to_string(static_cast<int>(placement)) + " group " +
                             std::to_string(group));
    }
  }
}

TEST_P(StreamingHeads, AbsentOrAllSeeingOnesAreNoneAtAll) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(100, 96, 6);
  HarnessConfig config = HarnessConfig::Default();
  const LogitRows exact = RunTokens(*model, config, tokens, 10);
  config.pattern = {4, 8, {kLayers, std::vector<bool>(kKvHeads, false)}};
  ExpectSameBits(exact, RunTokens(*model, config, tokens, 10), "no head streams");
  config.pattern = {0, 100, {kLayers, std::vector<bool>(kKvHeads, true)}};
  ExpectNear(*model, exact, RunTokens(*model, config, tokens, 10), "all keys are recent");
}

TEST_P(StreamingHeads, BatchesOfPrefillAndDecodeEqualSequencesAlone) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = HarnessConfig::Default();
  config.pattern = Pattern(6, 19);
  const std::vector<TokenId> a = RandomTokens(90, 96, 7), b = RandomTokens(64, 96, 8);
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 2, 100);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const RopeFrequencies rope = RopeOf(*model, 100);
  const kv::SequenceId first = *(*h)->NewSequence(), second = *(*h)->NewSequence();
  ASSERT_TRUE((*h)->Append(first, std::span(a).first(80), rope).ok());
  LogitRows rows_a, rows_b;
  for (size_t at = 80, from = 0; at < 90; ++at) {  // a decodes while b is prefilled
    const size_t n = at == 82 ? 1 : 7;
    const StepInput inputs[] = {{first, std::span(a).subspan(at, 1), &rope, LogitsMode::kAll},
                                {second, std::span(b).subspan(from, n), &rope, LogitsMode::kAll}};
    Result<std::vector<LogitRows>> rows = (*h)->Step(inputs);
    ASSERT_TRUE(rows.ok()) << rows.status().message();
    for (auto& row : (*rows)[0]) rows_a.push_back(std::move(row));
    for (auto& row : (*rows)[1]) rows_b.push_back(std::move(row));
    from += n;
  }
  const LogitRows alone = RunTokens(*model, config, a, 10);
  ExpectNear(*model, LogitRows(alone.end() - 10, alone.end()), rows_a, "decoded");
  ASSERT_EQ(rows_b.size(), b.size());
  ExpectNear(*model, RunTokens(*model, config, b, 0), rows_b, "prefilled");
}

TEST_P(StreamingHeads, TakeNoMoreMemoryAsTheContextGrows) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = HarnessConfig::Default();
  config.pattern = {6, 19, {kLayers, std::vector<bool>(kKvHeads, true)}};
  config.device_slabs = config.host_slabs = 0;  // no room for a single slab
  config.placement = kv::PlacementKind::kHostOnly;
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 1, 1000);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const RopeFrequencies rope = RopeOf(*model, 1000);
  const kv::SequenceId sequence = *(*h)->NewSequence();
  const int64_t bytes = (*h)->store().Usage(Tier::kDevice).bytes;
  EXPECT_GT(bytes, 0);
  int64_t held = 0;
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE((*h)->Append(sequence, RandomTokens(100, 96, 30 + i), rope).ok());
    for (Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
      EXPECT_EQ((*h)->store().Usage(tier).slabs, 0);
    }
    EXPECT_EQ((*h)->store().Usage(Tier::kDevice).bytes, bytes);
    if (i == 1) held = (*h)->store().Usage(Tier::kDevice).tokens_bytes;
    if (i > 1) {
      EXPECT_EQ((*h)->store().Usage(Tier::kDevice).tokens_bytes, held);
    }
  }
  EXPECT_LE(held, bytes);
}

TEST_P(StreamingHeads, GoBackALittleAndNotFar) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = HarnessConfig::Default();
  config.pattern = Pattern(6, 19);
  const std::vector<TokenId> tokens = RandomTokens(150, 96, 9);
  const LogitRows expected = RunTokens(*model, config, tokens, 150 - 7 * config.page_slots);
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 1, 200);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const RopeFrequencies rope = RopeOf(*model, 150);
  const kv::SequenceId sequence = *(*h)->NewSequence();
  ASSERT_TRUE((*h)->Append(sequence, tokens, rope).ok());
  EXPECT_EQ((*h)->store().Truncate(sequence, 150 - 10 * config.page_slots / 2).status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ((*h)->store().Length(sequence), 150);
  Result<int64_t> kept = (*h)->store().Truncate(sequence, 150 - config.page_slots);
  ASSERT_TRUE(kept.ok()) << kept.status().message();
  Result<LogitRows> rows =
      (*h)->Append(sequence, std::span(tokens).subspan(static_cast<size_t>(*kept)), rope);
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  ExpectNear(*model, LogitRows(expected.begin() + *kept, expected.end()), *rows, "went back");
  EXPECT_EQ(*(*h)->store().Truncate(sequence, 0), 0);
  ASSERT_TRUE((*h)->Append(sequence, tokens, rope).ok());
}

TEST_P(StreamingHeads, ProbedAttentionIsThatOfPlainAttention) {
  const ModelConfig tiny = TinyConfig(GetParam());
  const std::unique_ptr<Model> model = Tiny(tiny);
  const std::vector<TokenId> tokens = RandomTokens(120, 96, 10);
  for (const auto& [sink, recent] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {20, 30}, {70, 60}, {3, 1000}}) {
    std::vector<std::vector<double>> expected;
    PlainLogits(tiny, tokens, {sink, recent, {}}, &expected);
    ASSERT_EQ(expected.size(), static_cast<size_t>(kLayers));
    const HarnessConfig config = HarnessConfig::Default();
    Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 1, 120);
    ASSERT_TRUE(h.ok()) << h.status().message();
    const RopeFrequencies rope = RopeOf(*model, 120);
    const kv::SequenceId sequence = *(*h)->NewSequence();
    ASSERT_TRUE((*h)->Append(sequence, std::span(tokens).first(119), rope).ok());
    std::vector<float> far(static_cast<size_t>(kLayers) * expected[0].size());
    const StepInput input{sequence, std::span(tokens).last(1), &rope, LogitsMode::kNone};
    const Status status = (*h)->executor().StepWithFarMass(input, {sink, recent}, far);
    ASSERT_TRUE(status.ok()) << status.message();
    // Shares of attention differ as logits do, which are near 1 in this model.
    const double tolerance = TestDevice() == "cpu" && GetParam() == DType::kF32 ? 1e-4 : 0.03;
    for (size_t i = 0; i < far.size(); ++i) {
      EXPECT_NEAR(far[i], expected[i / expected[0].size()][i % expected[0].size()], tolerance)
          << "sink " << sink << " recent " << recent << " head " << i;
    }
  }
}

// Items of one query row.
class CountsDecodeItems : public ForwardingKernels {
 public:
  CountsDecodeItems(std::unique_ptr<Kernels> inner, int64_t* items)
      : ForwardingKernels(std::move(inner)), items_(items) {}
  void Attend(Stream& stream, const PageFormat& format, int group, const AttentionParams& params,
              std::span<const AttentionItem> items) override {
    *items_ += std::count_if(items.begin(), items.end(),
                             [](const AttentionItem& item) { return item.tokens == 1; });
    ForwardingKernels::Attend(stream, format, group, params, items);
  }

 private:
  int64_t* const items_;
};

// Where each head is a group of its own, and all of them have as many states.
TEST_P(StreamingHeads, AnOpenPageIsOneItemOfAllHeads) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(70, 96, 12);
  HarnessConfig config;
  int64_t items = 0;
  config.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<CountsDecodeItems>(std::move(kernels), &items);
  };
  const auto run = [&](int group_heads) {
    config.group_heads = group_heads;
    items = 0;
    return RunTokens(*model, config, tokens, 4);
  };
  constexpr int kSlabs = 2;  // of a head, before 66 tokens
  const LogitRows together = run(0);
  EXPECT_EQ(items, 4 * kLayers * (kSlabs + 1));
  ExpectSameBits(together, run(1), "a group for each head");
  EXPECT_EQ(items, 4 * kLayers * (kSlabs * kKvHeads + 1));
}

INSTANTIATE_TEST_SUITE_P(DTypes, StreamingHeads,
                         ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& param) { return std::string(DTypeName(param.param)); });

}  // namespace
}  // namespace headway::testing
