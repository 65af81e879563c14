// Salient tokens of encoded caches: what is chosen of them, by masses or by summaries, are the
// numbers that codes stand for, and steps attend to these and to the window as codes have it.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "support/decode_outputs.h"
#include "support/grid.h"
#include "support/reselection_decode.h"
#include "support/salience_decode.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

constexpr int64_t kPrompt = 203;  // 11 tokens behind the last whole page of 16
constexpr int64_t kSteps = 40;
constexpr int64_t kWindow = 24;

std::vector<TokenId> Tokens() { return RandomTokens(kPrompt + kSteps, 96, 7); }

// The least beta that leaves something out.
constexpr double kAnyMass = 1e-30;

// Steps that are weighed close no page.
kv::SaliencePolicy ByMass(double beta, double most, int page_slots) {
  kv::SaliencePolicy policy;
  policy.beta = beta;
  policy.window = kWindow;
  policy.alpha = 0.125;
  policy.every = page_slots;
  policy.most = most;
  policy.queries = 6;
  return policy;
}

kv::SaliencePolicy BySummaries(int64_t reselect, double most) {
  kv::SaliencePolicy policy;
  policy.reselect = reselect;
  policy.window = kWindow;
  policy.most = most;
  return policy;
}

HarnessConfig ConfigOf(Encoding encoding) {
  HarnessConfig config;
  config.encoding = encoding;
  config.chunk = 50;
  config.poison_freed = true;
  return config;
}

// How caches are cut and where they lie, and what is salient of them by masses.
std::vector<HarnessConfig> MassCuts(Encoding encoding) {
  std::vector<HarnessConfig> cuts(3, ConfigOf(encoding));
  cuts[0].salience = ByMass(1.0, 1.0, 16);
  cuts[0].salient_on_host = true;
  cuts[1].placement = kv::PlacementKind::kRecent;
  cuts[1].device_slabs = 9;
  cuts[1].page_slots = 4;
  cuts[1].segment_pages = 3;
  cuts[1].group_heads = 1;
  cuts[1].salience = ByMass(0.5, 0.5, 4);
  cuts[2].chunk = 300;
  cuts[2].placement = kv::PlacementKind::kHostOnly;
  cuts[2].device_slabs = 0;
  cuts[2].page_slots = 8;
  cuts[2].salience = ByMass(kAnyMass, 0.25, 8);  // the largest masses
  cuts[2].salient_on_host = true;
  cuts[2].salient_by_cores = 0.6;
  return cuts;
}

// The same by summaries.
std::vector<HarnessConfig> SummaryCuts(Encoding encoding) {
  std::vector<HarnessConfig> cuts(3, ConfigOf(encoding));
  cuts[0].salience = BySummaries(1, 0.5);
  cuts[0].salient_on_host = true;
  cuts[1].placement = kv::PlacementKind::kRecent;
  cuts[1].device_slabs = 9;
  cuts[1].segment_pages = 3;
  cuts[1].group_heads = 1;
  cuts[1].salience = BySummaries(3, 0.4);
  cuts[2].chunk = 300;
  cuts[2].placement = kv::PlacementKind::kHostOnly;
  cuts[2].device_slabs = 0;
  cuts[2].page_slots = 32;
  cuts[2].segment_pages = 1;
  cuts[2].salience = BySummaries(1000, 0.7);
  cuts[2].salient_on_host = true;
  cuts[2].salient_by_cores = 0.3;
  return cuts;
}

class SalientEncodings : public ::testing::TestWithParam<Encoding> {
 protected:
  SalientEncodings() {
    model_ = Tiny(TinyConfig(TestDevice() == "cpu" ? DType::kF32 : DType::kBF16));
  }

  // Half of the text, some steps, the rest of it, and steps to its end: every step is checked that
  // closes no page, whose codes come behind its attention.
  template <typename Decode>
  void ExpectSteps(HarnessConfig config) {
    std::vector<DecodeOutput> outputs;
    config.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
      return std::make_unique<RecordingKernels>(std::move(kernels), &outputs);
    };
    const std::vector<TokenId> tokens = Tokens();
    Decode decode(*model_, config, tokens);
    ASSERT_TRUE(decode.ok());
    int64_t checked = 0, others = 0;
    decode.after_step = [&](const Lists& lists) {
      // A prompt's last chunk may have been of one token.
      const std::vector<DecodeOutput> of_step(outputs.end() - model_->shape().layers,
                                              outputs.end());
      outputs.clear();
      const int64_t position = lists[0][0].back();
      if ((position + 1) % config.page_slots == 0) return;
      const int64_t before = kv::TokensBefore(config.salience, position, config.page_slots);
      others += ExpectOutputs({decode.harness(), model_->shape(), decode.sequence(), lists},
                              of_step, before);
      checked += model_->shape().layers * model_->shape().query_heads;
    };
    decode.Prompt(kPrompt / 2);
    for (int64_t step = 0; step < 9 && !HasFailure(); ++step) decode.Step();
    decode.Prompt(kPrompt);
    for (int64_t step = 0; step < kSteps && !HasFailure(); ++step) decode.Step();
    EXPECT_GT(others, checked / 2);  // salient tokens matter
    if constexpr (requires { decode.decided; }) {
      EXPECT_GE(decode.decided, decode.open * 9 / 10);
    }
  }

  std::unique_ptr<Model> model_;
};

TEST_P(SalientEncodings, MassesChooseWhatCodesStandFor) {
  if (TestDevice() != "cpu") GTEST_SKIP() << "reads outputs where kernels have them";
  for (const HarnessConfig& cut : MassCuts(GetParam())) {
    SCOPED_TRACE("pages of " + std::to_string(cut.page_slots));
    ExpectSteps<SalienceDecode>(cut);
  }
}

TEST_P(SalientEncodings, SummariesChooseWhatCodesStandFor) {
  if (TestDevice() != "cpu") GTEST_SKIP() << "reads outputs where kernels have them";
  for (const HarnessConfig& cut : SummaryCuts(GetParam())) {
    SCOPED_TRACE("pages of " + std::to_string(cut.page_slots));
    ExpectSteps<ReselectionDecode>(cut);
  }
}

// Two sequences at most of one text.
class Decoding {
 public:
  Decoding(Model& model, const HarnessConfig& config)
      : tokens_(Tokens()),
        rope_(RopeOf(model, kPrompt + kSteps)),
        chooses_(config.salience.chooses()) {
    Result<std::unique_ptr<StepHarness>> made =
        StepHarness::Create(model, config, 2, kPrompt + kSteps);
    EXPECT_TRUE(made.ok()) << made.status().message();
    h_ = std::move(*made);
    sequence = *h_->NewSequence();
  }

  // Reads the prompt from what the sequence has of it, and chooses.
  void Read() {
    const int64_t there = h_->store().Length(sequence);
    const auto rest = std::span(tokens_).first(kPrompt).subspan(static_cast<size_t>(there));
    EXPECT_TRUE(h_->Append(sequence, rest, rope_).ok());
    if (!chooses_) return;
    EXPECT_TRUE(h_->salience().Choose(sequence, h_->executor().observed()).ok());
  }
  // The logits of so many steps.
  LogitRows Steps(kv::SequenceId of, int64_t count) {
    LogitRows rows;
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(h_->store().Length(of));
      const StepInput input{of, std::span(tokens_).subspan(at, 1), &rope_, LogitsMode::kAll};
      Result<std::vector<LogitRows>> step = h_->Step({&input, 1});
      EXPECT_TRUE(step.ok()) << step.status().message();
      if (!step.ok()) return {};
      rows.push_back(std::move((*step)[0][0]));
    }
    return rows;
  }
  kv::Store& store() { return h_->store(); }

  kv::SequenceId sequence = -1;

 private:
  const std::vector<TokenId> tokens_;
  const RopeFrequencies rope_;
  const bool chooses_;
  std::unique_ptr<StepHarness> h_;
};

// The logits of steps behind the prompt.
LogitRows RowsOf(Model& model, const HarnessConfig& config) {
  Decoding decoding(model, config);
  decoding.Read();
  return decoding.Steps(decoding.sequence, kSteps);
}

// Nothing is left out: the encoded cache's exact steps, but for the order of additions.
TEST_P(SalientEncodings, AllTokensAreTheWholeCache) {
  const HarnessConfig exact = ConfigOf(GetParam());
  const LogitRows expected = RowsOf(*model_, exact);
  for (const kv::SaliencePolicy& policy : {ByMass(kAnyMass, 1.0, 16), BySummaries(100, 1.0)}) {
    for (const bool on_host : {false, true}) {
      HarnessConfig all = exact;
      all.salience = policy;
      all.salient_on_host = on_host;
      ExpectNear(*model_, expected, RowsOf(*model_, all), policy.reselects() ? "anew" : "mass");
    }
  }
}

// And where nothing is salient the window alone is there, however that was asked for.
TEST_P(SalientEncodings, NothingIsTheWindow) {
  HarnessConfig window = ConfigOf(GetParam());
  window.salience = ByMass(1e6, 1.0, 16);
  const LogitRows expected = RowsOf(*model_, window);
  window.salience = BySummaries(1, 1e-6);
  ExpectSameBits(expected, RowsOf(*model_, window), "summaries");
  window.salience = ByMass(kAnyMass, 1e-6, 16);
  window.salient_on_host = true;
  ExpectSameBits(expected, RowsOf(*model_, window), "no room");
}

// A fork shares encoded pages and attends to all of them until something is chosen for it; what was
// chosen for the first one stays. A sequence that is cut back and goes on chooses anew.
TEST_P(SalientEncodings, ForksAndCutsChooseForThemselves) {
  HarnessConfig exact = ConfigOf(GetParam());
  exact.chunk = 48;  // so that the prompt's last chunk begins with its open page
  const LogitRows whole = RowsOf(*model_, exact);
  for (const kv::SaliencePolicy& policy : {ByMass(kAnyMass, 0.3, 16), BySummaries(2, 0.3)}) {
    HarnessConfig config = exact;
    config.salience = policy;
    config.salient_on_host = policy.reselects();
    const LogitRows expected = RowsOf(*model_, config);
    Decoding decoding(*model_, config);
    decoding.Read();
    const Result<kv::SequenceId> fork = decoding.store().Fork(decoding.sequence);
    ASSERT_TRUE(fork.ok()) << fork.status().message();
    ExpectSameBits(whole, decoding.Steps(*fork, kSteps), "fork");
    ExpectSameBits(expected, decoding.Steps(decoding.sequence, kSteps), "first");
    const Result<int64_t> kept = decoding.store().Truncate(decoding.sequence, kPrompt - 5);
    ASSERT_TRUE(kept.ok() && *kept == kPrompt / 16 * 16);
    decoding.Read();
    ExpectSameBits(expected, decoding.Steps(decoding.sequence, kSteps), "cut back");
  }
}

// Kernels, copies and cores that come late take what they would have taken.
TEST_P(SalientEncodings, ResidenceAndLateLanesChangeNoBit) {
  for (const kv::SaliencePolicy& policy : {ByMass(kAnyMass, 0.3, 16), BySummaries(2, 0.3)}) {
    for (const bool on_host : {false, true}) {
      HarnessConfig config = ConfigOf(GetParam());
      config.salience = policy;
      config.salient_on_host = on_host;
      const LogitRows expected = RowsOf(*model_, config);
      config.placement = kv::PlacementKind::kHostOnly;
      config.device_slabs = 0;
      ExpectSameBits(expected, RowsOf(*model_, config), "host");
      config.placement = kv::PlacementKind::kRecent;
      config.device_slabs = 3;
      ExpectSameBits(expected, RowsOf(*model_, config), "some");
      for (const Lane lane :
           {Lane::kCompute, Lane::kHostToDevice, Lane::kDeviceToHost, Lane::kHostCompute}) {
        Delays delays(7);
        delays.Set(lane, /*every=*/3, 100, 400);
        config.delays = &delays;
        ExpectSameBits(expected, RowsOf(*model_, config), LaneName(lane));
      }
      config.delays = nullptr;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, SalientEncodings,
                         ::testing::Values(Encoding::kInt8, Encoding::kFp8E4M3, Encoding::kInt4),
                         [](const auto& param) { return EncodingName(param.param); });

// Without loss: the bits of plain pages.
TEST(SalientLossless, EqualsPlainPagesBitForBit) {
  if (TestDevice() != "cpu") GTEST_SKIP() << "prompts may take another kernel";
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kBF16));
  for (const kv::SaliencePolicy& policy : {ByMass(0.7, 0.5, 5), BySummaries(2, 0.3)}) {
    for (const bool on_host : {false, true}) {
      HarnessConfig config = ConfigOf(Encoding::kNone);
      config.salience = policy;
      config.salient_on_host = on_host;
      const LogitRows expected = RowsOf(*model, config);
      config.encoding = Encoding::kLossless;
      ExpectSameBits(expected, RowsOf(*model, config), on_host ? "host" : "device");
    }
  }
}

}  // namespace
}  // namespace headway::testing
