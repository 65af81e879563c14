// Heads that read all before their window where what they leave out may have more than a share of
// their attention, beside a plain reading of that bound: masses in double precision from the keys
// in the cache and each step's queries. Each layer's output is that of attention to what the plain
// reading says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/half.h"
#include "kernels/selection_bound.h"
#include "kv/policy/selection.h"
#include "kv/policy/unread_bound.h"
#include "support/decode_outputs.h"
#include "support/grid.h"
#include "support/reselection_decode.h"
#include "support/salience_decode.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

constexpr int64_t kPrompt = 403;
constexpr int64_t kSteps = 24;
constexpr double kAnyMass = 1e-30;

std::vector<TokenId> Tokens() { return RandomTokens(kPrompt + kSteps, 96, 7); }

kv::SaliencePolicy WithBound(kv::SaliencePolicy policy, double epsilon) {
  policy.window = 24;
  policy.bound = {.epsilon = epsilon, .deviations = kv::DeviationsOf(0.05)};
  return policy;
}

// Steps that are weighed close no page.
kv::SaliencePolicy ByMass(double most, double epsilon, int page_slots = 16) {
  kv::SaliencePolicy policy;
  policy.beta = kAnyMass;
  policy.alpha = 0.125;
  policy.every = page_slots;
  policy.most = most;
  policy.queries = 6;
  return WithBound(policy, epsilon);
}

kv::SaliencePolicy BySummaries(double most, double epsilon) {
  kv::SaliencePolicy policy;
  policy.reselect = 2;
  policy.most = most;
  return WithBound(policy, epsilon);
}

HarnessConfig ConfigOf(Encoding encoding, const kv::SaliencePolicy& policy) {
  HarnessConfig config;
  config.encoding = encoding;
  config.chunk = 50;
  config.poison_freed = true;
  config.salience = policy;
  config.salient_on_host = true;
  if (TestDevice() != "cpu") {  // whose memory the cores do not read
    config.placement = kv::PlacementKind::kHostOnly;
    config.device_slabs = 0;
  }
  return config;
}

// By how much of its mass the bound holds for a query head that reads `read` of the keys before the
// window, and the closed pages behind them.
double RoomOf(const std::vector<Bounded>& masses, const std::vector<bool>& read, int64_t slots,
              const MassBound& bound, uint64_t seed) {
  const auto before = static_cast<int64_t>(read.size());
  double core = 0.0, sum = 0.0, squares = 0.0;
  for (size_t key = 0; key < masses.size(); ++key) {
    core += key >= read.size() || read[key] ? masses[key].value : 0.0;
  }
  const int64_t blocks = before / slots;
  const int samples = static_cast<int>(std::min<int64_t>(blocks, 64));
  for (int i = 0; i < samples; ++i) {
    const selection::SampledBlock sampled = selection::SampleOf(seed, 0, i, blocks);
    double mass = 0.0;
    for (int64_t key = sampled.block * slots; key < (sampled.block + 1) * slots; ++key) {
      if (!read[static_cast<size_t>(key)]) mass += masses[static_cast<size_t>(key)].value;
    }
    mass *= (1.0 - bound.epsilon) * static_cast<double>(sampled.stratum);
    sum += mass;
    squares += mass * mass;
  }
  const double variance =
      blocks > samples ? (squares - sum * sum / samples) * samples / (samples - 1.0) : 0.0;
  return (bound.epsilon * core - sum - bound.deviations * std::sqrt(std::max(0.0, variance))) /
         (core + sum);
}

class SalienceBound : public ::testing::TestWithParam<Encoding> {
 protected:
  SalienceBound() { model_ = Tiny(TinyConfig(TestDevice() == "cpu" ? DType::kF32 : DType::kBF16)); }

  // Steps beside the plain reading; those that close a page are not checked, since their keys are
  // encoded behind their attention.
  template <typename Decode>
  void ExpectSteps(HarnessConfig config) {
    std::vector<DecodeOutput> outputs;
    config.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
      return std::make_unique<RecordingKernels>(std::move(kernels), &outputs);
    };
    const std::vector<TokenId> tokens = Tokens();
    Decode decode(*model_, config, tokens);
    ASSERT_TRUE(decode.ok());
    int64_t told = 0;  // heads that had read all behind the step before
    decode.after_step = [&](const Lists& lists) {
      const std::vector<DecodeOutput> of_step(outputs.end() - model_->shape().layers,
                                              outputs.end());
      outputs.clear();
      const HostAttention::Bounded bounded = decode.harness().host_attention().bounded();
      const int64_t read_all = bounded.read_all - told;
      told = bounded.read_all;
      const int64_t position = lists[0][0].back();
      if ((position + 1) % config.page_slots == 0) return;
      Lists read = lists;
      int64_t expected = 0, close = 0;
      AddBounds(config, decode, of_step, &read, &expected, &close);
      EXPECT_GE(read_all, expected) << position;
      EXPECT_LE(read_all, expected + close) << position;
      heads_ += std::ssize(lists) * std::ssize(lists[0]);
      read_all_ += read_all;
      close_ += close;
      if (close > 0) return;
      const int64_t before = kv::TokensBefore(config.salience, position, config.page_slots);
      ExpectOutputs({decode.harness(), model_->shape(), decode.sequence(), read}, of_step, before);
    };
    decode.Prompt(kPrompt);
    for (int64_t step = 0; step < kSteps && !HasFailure(); ++step) decode.Step();
  }

  // Has heads for which the bound fails list all keys.
  template <typename Decode>
  void AddBounds(const HarnessConfig& config, Decode& decode,
                 const std::vector<DecodeOutput>& of_step, Lists* lists, int64_t* expected,
                 int64_t* close) {
    StepHarness& h = decode.harness();
    const ModelShape& shape = model_->shape();
    const int64_t position = (*lists)[0][0].back();
    const int64_t before = kv::TokensBefore(config.salience, position, config.page_slots);
    const int64_t closed = position / config.page_slots * config.page_slots;
    for (int layer = 0; layer < shape.layers; ++layer) {
      const uint64_t seed = kv::SampleSeed(position, layer);
      for (int head = 0; head < shape.kv_heads; ++head) {
        std::vector<int64_t>& list =
            (*lists)[static_cast<size_t>(layer)][static_cast<size_t>(head)];
        std::vector<bool> read(static_cast<size_t>(before));
        for (const int64_t key : list) {
          if (key < before) read[static_cast<size_t>(key)] = true;
        }
        const Cached keys = ReadHead(h, h.store(), decode.sequence(), layer, head);
        double room = 1e30;
        for (int member = 0; member < shape.group(); ++member) {
          const float* const q = of_step[static_cast<size_t>(layer)].q.data() +
                                 (head * shape.group() + member) * shape.head_dim;
          // Shares of the keys in closed pages are their masses but for one factor.
          room = std::min(room,
                          RoomOf(WeightsOf(q, keys, closed, h.store().format().page), read,
                                 kv::BoundSlots(config.page_slots), config.salience.bound, seed));
        }
        if (std::abs(room) < 1e-4) {
          ++*close;
        } else if (room < 0.0) {
          ++*expected;
          list.resize(static_cast<size_t>(position + 1));
          for (int64_t key = 0; key <= position; ++key) list[static_cast<size_t>(key)] = key;
        }
      }
    }
  }

  std::unique_ptr<Model> model_;
  int64_t heads_ = 0, read_all_ = 0, close_ = 0;
};

TEST_P(SalienceBound, HeadsReadAllWhereAPlainReadingSaysSo) {
  if (TestDevice() != "cpu") GTEST_SKIP() << "reads outputs where kernels have them";
  // Pages of 4: more blocks than are sampled.
  for (const double epsilon : {0.4, 0.46, 0.48, 0.52}) {
    SCOPED_TRACE(epsilon);
    HarnessConfig config = ConfigOf(GetParam(), ByMass(0.5, epsilon, 4));
    config.page_slots = 4;
    config.segment_pages = 3;
    config.group_heads = 1;
    ExpectSteps<SalienceDecode>(config);
    config = ConfigOf(GetParam(), BySummaries(0.5, epsilon));
    config.placement = kv::PlacementKind::kHostOnly;
    config.device_slabs = 0;
    ExpectSteps<ReselectionDecode>(config);
  }
  EXPECT_GT(read_all_, heads_ / 8);
  EXPECT_LT(read_all_, heads_ * 7 / 8);
  EXPECT_LT(close_, heads_ / 50);
}

// The logits of steps behind the prompt, of two sequences in one batch where there are `both`.
LogitRows RowsOf(Model& model, const HarnessConfig& config, HostAttention::Bounded* bounded,
                 bool both = false) {
  const std::vector<TokenId> tokens = Tokens();
  const RopeFrequencies rope = RopeOf(model, kPrompt + kSteps);
  Result<std::unique_ptr<StepHarness>> made =
      StepHarness::Create(model, config, 2, kPrompt + kSteps);
  EXPECT_TRUE(made.ok()) << made.status().message();
  if (!made.ok()) return {};
  StepHarness& h = **made;
  std::vector<kv::SequenceId> sequences;
  for (int64_t cut = both ? 60 : 0; cut >= 0; cut -= 60) {
    sequences.push_back(*h.NewSequence());
    const auto prompt = std::span(tokens).first(static_cast<size_t>(kPrompt - cut));
    EXPECT_TRUE(h.Append(sequences.back(), prompt, rope).ok());
    if (!config.salience.chooses()) continue;
    EXPECT_TRUE(h.salience().Choose(sequences.back(), h.executor().observed()).ok());
  }
  LogitRows rows;
  for (int64_t i = 0; i < kSteps; ++i) {
    std::vector<StepInput> inputs;
    for (const kv::SequenceId sequence : sequences) {
      const auto at = static_cast<size_t>(h.store().Length(sequence));
      inputs.push_back({sequence, std::span(tokens).subspan(at, 1), &rope, LogitsMode::kAll});
    }
    Result<std::vector<LogitRows>> step = h.Step(inputs);
    EXPECT_TRUE(step.ok()) << step.status().message();
    if (!step.ok()) return {};
    rows.push_back(std::move(step->back()[0]));
  }
  if (bounded != nullptr) *bounded = h.host_attention().bounded();
  return rows;
}

// A bound that nothing but all keys meets reads all; one that everything meets changes no bit.
TEST_P(SalienceBound, EndsAreTheWholeCacheAndTheSalientTokens) {
  HarnessConfig exact = ConfigOf(GetParam(), {});
  exact.salient_on_host = false;
  const LogitRows whole = RowsOf(*model_, exact, nullptr);
  for (const auto& policy : {ByMass(0.3, 0.0), BySummaries(0.3, 0.0)}) {
    HarnessConfig config = ConfigOf(GetParam(), policy);
    HostAttention::Bounded bounded;
    const LogitRows without = RowsOf(*model_, config, &bounded);
    EXPECT_EQ(bounded.heads, 0);
    config.salience.bound.epsilon = 1.0;
    ExpectSameBits(without, RowsOf(*model_, config, &bounded), "all is allowed");
    EXPECT_EQ(bounded.heads, kSteps * model_->shape().layers * model_->shape().kv_heads);
    EXPECT_EQ(bounded.read_all, 0);
    config.salience.bound.epsilon = 1e-9;
    ExpectNear(*model_, whole, RowsOf(*model_, config, &bounded), "nothing is allowed");
    EXPECT_EQ(bounded.read_all, bounded.heads);
  }
}

TEST_P(SalienceBound, ResidenceBatchesAndLateLanesChangeNoBit) {
  for (const auto& policy : {ByMass(0.5, 0.47), BySummaries(0.5, 0.47)}) {
    HarnessConfig config = ConfigOf(GetParam(), policy);
    HostAttention::Bounded bounded;
    const LogitRows expected = RowsOf(*model_, config, &bounded);
    EXPECT_GT(bounded.read_all, 0);
    EXPECT_LT(bounded.read_all, bounded.heads);
    if (TestDevice() == "cpu") {  // products of a GPU depend on how many rows there are
      ExpectSameBits(expected, RowsOf(*model_, config, nullptr, /*both=*/true), "batch");
    }
    config.threads = 3;
    config.group_heads = 1;
    ExpectSameBits(expected, RowsOf(*model_, config, nullptr), "threads and groups");
    if (TestDevice() == "cpu") {
      config.placement = kv::PlacementKind::kRecent;
      config.device_slabs = 3;
      ExpectSameBits(expected, RowsOf(*model_, config, nullptr), "some");
    }
    config.placement = kv::PlacementKind::kHostOnly;
    config.device_slabs = 0;
    ExpectSameBits(expected, RowsOf(*model_, config, nullptr), "host");
    for (const Lane lane :
         {Lane::kCompute, Lane::kHostToDevice, Lane::kDeviceToHost, Lane::kHostCompute}) {
      Delays delays(7);
      delays.Set(lane, /*every=*/3, 100, 400);
      config.delays = &delays;
      ExpectSameBits(expected, RowsOf(*model_, config, nullptr), LaneName(lane));
      config.delays = nullptr;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, SalienceBound,
                         ::testing::Values(Encoding::kNone, Encoding::kInt8, Encoding::kFp8E4M3,
                                           Encoding::kInt4),
                         [](const auto& param) { return EncodingName(param.param); });

// Without loss: the bits of plain pages.
TEST(SalienceBoundLossless, EqualsPlainPagesBitForBit) {
  if (TestDevice() != "cpu") GTEST_SKIP() << "prompts may take another kernel";
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kBF16));
  for (const auto& policy : {ByMass(0.5, 0.47), BySummaries(0.5, 0.47)}) {
    HarnessConfig config = ConfigOf(Encoding::kNone, policy);
    HostAttention::Bounded bounded;
    const LogitRows expected = RowsOf(*model, config, &bounded);
    EXPECT_GT(bounded.read_all, 0);
    config.encoding = Encoding::kLossless;
    ExpectSameBits(expected, RowsOf(*model, config, nullptr), "lossless");
  }
}

}  // namespace
}  // namespace headway::testing
