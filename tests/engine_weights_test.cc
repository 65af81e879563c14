// Weights that stream change no bit: the same kernels see the same numbers in the same order,
// however many layers stay on the device.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "headway/engine.h"
#include "support/grid.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

class Weights : public ::testing::TestWithParam<DType> {};

// A model of 5 layers, so that buffers are used again within a step.
ModelConfig Deep(DType dtype) {
  ModelConfig config = TinyConfig(dtype);
  config.shape.layers = 5;
  config.windows.assign(5, 0);
  return config;
}

TEST_P(Weights, ThatStreamChangeNoBit) {
  const std::vector<TokenId> tokens = RandomTokens(90, 96, 3);
  for (const ModelConfig& tiny :
       {Deep(GetParam()), TinyOptConfig(GetParam(), false), TinyOptConfig(GetParam(), true)}) {
    SCOPED_TRACE(tiny.architecture);
    const int layers = tiny.shape.layers;
    HarnessConfig config = HarnessConfig::Default();
    config.chunk = 37;
    config.weight_layers = -1;
    const LogitRows expected = RunTokens(*Tiny(tiny), config, tokens, 30);
    for (const int resident : {0, 1, layers - 1, layers}) {
      const std::unique_ptr<Model> model = Tiny(tiny);
      for (const bool away : {false, true}) {
        HarnessConfig other = config;
        other.weight_layers = resident;
        if (away) {
          other.placement = kv::PlacementKind::kHostOnly;
          other.device_slabs = 0;
        }
        ExpectSameAnywhere(*model, other, expected, RunTokens(*model, other, tokens, 30),
                           std::to_string(resident) + " layers resident");
      }
      int streamed = 0;
      for (int layer = 0; layer < layers; ++layer) {
        streamed += model->HostBlock(layer).empty() ? 0 : 1;
      }
      EXPECT_EQ(streamed, layers - resident);
    }
  }
}

// A step that is given up leaves layers in the buffers that the next step does not begin with.
TEST_P(Weights, OfAStepThatIsGivenUpDoNoHarm) {
  const std::vector<TokenId> tokens = RandomTokens(64, 96, 5);
  HarnessConfig config = HarnessConfig::Default();
  config.weight_layers = -1;
  const LogitRows expected = RunTokens(*Tiny(Deep(GetParam())), config, tokens, 0);
  config.weight_layers = 1;
  const std::unique_ptr<Model> model = Tiny(Deep(GetParam()));
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 2, 80);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const RopeFrequencies rope = RopeOf(*model, 64);
  for (int attempt = 0; attempt < 8; ++attempt) {
    const kv::SequenceId id = *(*h)->NewSequence();
    const StepInput input{id, std::span(tokens).first(60), &rope};
    std::atomic<bool> cancel = false;
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(100 * attempt));
      cancel = true;
    });
    const Status status = (*h)->executor().Step({&input, 1}, {}, &cancel);
    later.join();
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kCancelled) << status.message();
    (*h)->store().Drop(id);
    const kv::SequenceId again = *(*h)->NewSequence();
    Result<LogitRows> rows = (*h)->Append(again, tokens, rope);
    ASSERT_TRUE(rows.ok()) << rows.status().message();
    ExpectSameBits(expected, *rows, "attempt " + std::to_string(attempt));
    (*h)->store().Drop(again);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, Weights, ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& param) { return std::string(DTypeName(param.param)); });

}  // namespace
}  // namespace headway::testing
