// Weights that stream change no bit: the same kernels see the same numbers in the same order,
// however many layers stay on the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/fault_env.h"
#include "base/test_dir.h"
#include "headway/engine.h"
#include "support/golden.h"
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
       {Deep(GetParam()), TinyOptConfig(GetParam(), false), TinyOptConfig(GetParam(), true),
        TinyNeoXConfig(GetParam(), true)}) {
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
      for (int on_disk = 1; on_disk <= layers - resident; ++on_disk) {
        const std::unique_ptr<Model> there = Tiny(tiny);
        HarnessConfig other = config;
        other.weight_layers = resident;
        other.disk_layers = on_disk;
        other.placement = kv::PlacementKind::kDiskOnly;  // slabs come by the same lanes
        ExpectSameAnywhere(
            *there, other, expected, RunTokens(*there, other, tokens, 30),
            std::to_string(resident) + " layers resident, " + std::to_string(on_disk) + " on disk");
        int counted = 0;
        for (int layer = 0; layer < layers; ++layer) {
          counted += there->BlockOnDisk(layer) == nullptr ? 0 : 1;
        }
        EXPECT_EQ(counted, on_disk);
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
  config.disk_layers = 3;
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

// A read that fails gives an error at the step that needs it, or at the first one after it whose
// logits are asked for, and never other logits; then the context has ended.
TEST_P(Weights, ThatCannotBeReadEndTheContext) {
  const std::vector<TokenId> tokens = RandomTokens(40, 96, 5);
  HarnessConfig config = HarnessConfig::Default();
  config.chunk = 16;
  config.weight_layers = -1;
  const LogitRows expected = RunTokens(*Tiny(Deep(GetParam())), config, tokens, 4);
  config.weight_layers = 1;
  config.disk_layers = 3;
  FaultEnv env(Env::Default());
  Result<std::unique_ptr<Model>> model = Model::Random(&env, Deep(GetParam()), 11, nullptr);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const RopeFrequencies rope = RopeOf(**model, 48);
  env.SetKinds(0);
  int failed = 0;
  for (int64_t n = 1;; ++n) {
    // Room for a step behind the last one, where the error may come out.
    Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(**model, config, 1, 48);
    ASSERT_TRUE(h.ok()) << h.status().message();
    const kv::SequenceId id = *(*h)->NewSequence();
    env.SetKinds(kFaultRead);
    env.FailAt(n);
    LogitRows rows;
    Status status;
    for (size_t at = 0; at < tokens.size() && status.ok();) {
      const size_t count = at < 36 ? 12 : 1;
      Result<LogitRows> step = (*h)->Append(id, std::span(tokens).subspan(at, count), rope);
      status = step.status();
      if (!step.ok()) break;
      for (std::vector<float>& row : *step) rows.push_back(std::move(row));
      at += count;
    }
    const LogitRows known(expected.begin(),
                          expected.begin() + static_cast<std::ptrdiff_t>(rows.size()));
    ExpectNear(**model, known, rows, "read " + std::to_string(n));
    const int64_t faults = env.faults();
    env.SetKinds(0);
    if (!status.ok()) {
      ++failed;
      EXPECT_NE(status.message().find("weights that stream from disk: cannot read"),
                std::string::npos)
          << status.message();
      EXPECT_FALSE((*h)->Append(id, std::span(tokens).first(1), rope).ok());
      continue;
    }
    EXPECT_EQ(rows.size(), tokens.size());
    if (faults == 0) break;  // one that was read ahead and not needed may fail
  }
  EXPECT_GE(failed, 3 * 7 - 1);  // layers, steps
}

INSTANTIATE_TEST_SUITE_P(DTypes, Weights, ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& param) { return std::string(DTypeName(param.param)); });

// Published files hold tensors in another order than blocks, at any offset, in several files.
TEST(WeightsInFiles, StreamFromThereToTheSameBits) {
  for (const std::string& name : GoldenNames()) {
    SCOPED_TRACE(name);
    Result<Golden> golden = LoadGolden(*Env::Default(), name);
    ASSERT_TRUE(golden.ok()) << golden.status().message();
    HarnessConfig config = HarnessConfig::Default();
    config.chunk = 37;
    config.disk_layers = 0;
    LogitRows expected;
    for (const int resident : {-1, 0}) {
      Result<std::unique_ptr<Model>> model = Model::Load(Env::Default(), golden->folder);
      ASSERT_TRUE(model.ok()) << model.status().message();
      config.weight_layers = resident;
      config.disk_layers = resident < 0 ? 0 : (*model)->shape().layers;
      const auto tokens =
          std::span(golden->prompt).first(std::min<size_t>(60, golden->prompt.size()));
      LogitRows rows = RunTokens(**model, config, tokens, 4);
      if (resident < 0) {
        expected = std::move(rows);
        continue;
      }
      ExpectSameAnywhere(**model, config, expected, rows, "from disk");
      for (int layer = 0; layer < (*model)->shape().layers; ++layer) {
        EXPECT_NE((*model)->BlockOnDisk(layer), nullptr);
      }
    }
  }
}

// A golden model from a copy of its files, "model" in the directory, which a test may harm.
Result<std::unique_ptr<Model>> LoadCopy(const TestDir& dir) {
  std::filesystem::copy(LoadGolden(*Env::Default(), "llama-bf16")->folder, dir.File("model"));
  return Model::Load(Env::Default(), dir.File("model"));
}

// A file that is cut short while its model is in use: an error, and no token of it.
TEST(WeightsInFiles, ThatAreCutShortEndTheContext) {
  const TestDir dir;
  Result<std::unique_ptr<Model>> model = LoadCopy(dir);
  ASSERT_TRUE(model.ok()) << model.status().message();
  HarnessConfig config = HarnessConfig::Default();
  config.weight_layers = 0;
  config.disk_layers = (*model)->shape().layers;
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(**model, config, 1, 64);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const RopeFrequencies rope = RopeOf(**model, 64);
  const kv::SequenceId id = *(*h)->NewSequence();
  const std::vector<TokenId> tokens = RandomTokens(20, 96, 5);
  const std::string shard = dir.File("model/model-00003-of-00006.safetensors");  // of layer 0
  std::filesystem::resize_file(shard, 4096);
  const Status status = (*h)->Append(id, tokens, rope).status();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find(shard + " was changed"), std::string::npos) << status.message();
  EXPECT_FALSE((*h)->Append(id, std::span(tokens).first(1), rope).ok());
}

// A file that another of the same size has replaced since the model was loaded.
TEST(WeightsInFiles, ThatWereReplacedAreNotRead) {
  const TestDir dir;
  Result<std::unique_ptr<Model>> model = LoadCopy(dir);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::string shard = dir.File("model/model-00003-of-00006.safetensors");  // of layer 0
  std::filesystem::copy_file(shard, dir.File("other"));
  std::filesystem::last_write_time(
      dir.File("other"), std::filesystem::last_write_time(shard) + std::chrono::seconds(1));
  std::filesystem::rename(dir.File("other"), shard);
  HarnessConfig config = HarnessConfig::Default();
  config.weight_layers = 0;
  config.disk_layers = (*model)->shape().layers;
  const Status status = StepHarness::Create(**model, config, 1, 64).status();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find(shard + " was changed"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace headway::testing
