// What an engine does when the machine or the user will not have it: memory of the GPU that others
// have, a GPU that is not there, a stop in the middle of a long prompt. On the CPU, or with
// HEADWAY_TEST_DEVICE=cuda on a GPU.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/bytes.h"
#include "base/random.h"
#include "base/test_dir.h"
#include "headway/engine.h"
#include "kernels/backend/backend.h"
#include "model/rope.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

const std::string kModel = HEADWAY_SOURCE_DIR "/tests/golden/models/llama31";
const std::string kDemo = HEADWAY_SOURCE_DIR "/models/demo";

std::vector<TokenId> RandomTokens(int64_t count) {
  Random random(3);
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(random.Below(90)));
  return tokens;
}

TEST(EngineBadLuck, ADeviceThatIsNotThereIsAnError) {
  for (const std::string device : {"cuda:99", "cuda:99999999999", "cuda:", "cuda:-1", "gpu"}) {
    EngineOptions options;
    options.device = device;
    Result<std::unique_ptr<Engine>> engine = Engine::Open(kModel, options);
    ASSERT_FALSE(engine.ok()) << device;
    const std::string& text = engine.status().message();
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_TRUE(text.find("unknown device '" + device + "'; this build has: cpu") == 0 ||
                text.find("this build has no CUDA") == 0 || text.find("no GPU 99; this") == 0 ||
                text.find("no NVIDIA GPU can be used: ") == 0)
        << text;
  }
}

TEST(EngineBadLuck, GpuMemoryThatOthersHave) {
  if (TestDevice() == "cpu") GTEST_SKIP() << "a GPU's memory";
  Result<std::unique_ptr<Backend>> backend = NewBackend(TestDevice(), "auto");
  ASSERT_TRUE(backend.ok()) << backend.status().message();
  Result<std::unique_ptr<Device>> device =
      (*backend)->NewDevice(Env::Default(), nullptr, KernelTimes::kWhereFree);
  ASSERT_TRUE(device.ok()) << device.status().message();
  Budget others("others", kUnlimited);
  const Result<int64_t> free = (*backend)->FreeMemory();
  ASSERT_TRUE(free.ok());
  Result<std::unique_ptr<Buffer>> taken =
      (*device)->Allocate(others, static_cast<size_t>(*free - 1200 * kMiB), "others");
  ASSERT_TRUE(taken.ok()) << taken.status().message();

  // 4 GiB are allowed and 1.2 are there. The KV cache would take all of its 4.
  EngineOptions options;
  options.device = TestDevice();
  options.gpu_memory = 4 * kGiB;
  const Workload workload{{2'000'000}};
  Result<std::unique_ptr<Engine>> engine = Engine::Open(kModel, options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const std::string text = (*engine)->NewContext(workload).status().message();
  std::printf("%s\n", text.c_str());
  EXPECT_NE(text.find(" are free: other programs have the rest; gpu_memory "), std::string::npos)
      << text;
  EXPECT_NE(text.find("fits now"), std::string::npos) << text;
  // What the message offers is right.
  Result<PlanReport> plan = (*engine)->Plan(workload);
  ASSERT_TRUE(plan.ok());
  options.gpu_memory = RoundUp(plan->smallest_gpu_memory, kKiB);
  options.host_memory = 16 * kGiB;
  engine = Engine::Open(kModel, options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_TRUE((*engine)->Plan(workload).ok());
  EXPECT_TRUE((*engine)->NewContext({{1000}}).ok());
}

// However far the enqueued work has got: at most a chunk of it runs after the wish to stop.
TEST(EngineBadLuck, AStopIsMetWithinAChunk) {
  ModelConfig tiny;
  tiny.architecture = "LlamaForCausalLM";
  tiny.shape = {6, 48, 6, 3, 16, 80, 96, DType::kBF16};
  tiny.tied_embeddings = true;
  tiny.windows.assign(6, 0);
  tiny.max_position = 4096;
  Result<std::unique_ptr<Model>> model = Model::Random(Env::Default(), tiny, 11, nullptr);
  ASSERT_TRUE(model.ok());
  Delays delays(5);
  HarnessConfig config;
  config.threads = 1;
  config.delays = &delays;
  Result<std::unique_ptr<StepHarness>> harness = StepHarness::Create(**model, config, 1, 1000);
  ASSERT_TRUE(harness.ok()) << harness.status().message();
  const std::vector<TokenId> tokens = RandomTokens(16);
  const RopeFrequencies rope = ComputeRope(tiny.rope, tiny.shape.head_dim, 1000);
  const kv::SequenceId sequence = *(*harness)->NewSequence();
  std::atomic<bool> cancel = false;
  const auto step = [&] {
    const StepInput input{sequence, tokens, &rope, LogitsMode::kNone};
    return (*harness)->executor().Step({&input, 1}, {}, &cancel);
  };
  delays.Set(Lane::kCompute, /*every=*/1, /*least_us=*/1000, /*most_us=*/1000);
  ASSERT_TRUE(step().ok());
  ASSERT_TRUE((*harness)->executor().Synchronize().ok());
  const int64_t of_a_step = delays.slept();  // kernels
  ASSERT_GT(of_a_step, 6 * 4);

  // In the middle of the second step from here.
  int64_t at_cancel = 0;
  std::thread user([&] {
    while (delays.slept() < of_a_step * 5 / 2) std::this_thread::yield();
    at_cancel = delays.slept();
    cancel = true;
  });
  Status status;
  int steps = 0;
  for (; status.ok() && steps < 20; ++steps) status = step();
  user.join();
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_LE(steps, 4);
  ASSERT_TRUE((*harness)->executor().Synchronize().ok());
  // Attention to what earlier steps left takes a kernel or two more than the first step's.
  EXPECT_LE(delays.slept() - at_cancel, of_a_step * 5 / 4);
  // What was there before the step that was given up still is.
  EXPECT_GE((*harness)->store().Length(sequence), 16 * (steps - 1));
}

TEST(EngineBadLuck, AStoppedPrefillKeepsItsSession) {
  const TestDir dir;
  EngineOptions options;
  options.device = TestDevice();
  options.chunk = 256;
  Request request;
  request.prompt = RandomTokens(3000);
  request.max_tokens = 6;
  request.ignore_eos = true;
  const auto generate = [&](std::atomic<bool>* cancel, Generation* out, bool save) {
    Result<std::unique_ptr<Engine>> engine = Engine::Open(kDemo, options);
    if (!engine.ok()) return engine.status();
    Result<std::unique_ptr<Context>> context = (*engine)->NewContext({{3100}});
    if (!context.ok()) return context.status();
    Hooks hooks;
    hooks.cancel = cancel;
    if (cancel != nullptr) {
      hooks.on_progress = [&](const Progress& progress) { *cancel = progress.done >= 1500; };
    }
    Result<std::vector<Generation>> made = (*context)->Generate({&request, 1}, hooks);
    if (!made.ok()) return made.status();
    *out = made->front();
    return save ? (*context)->SaveSession() : OkStatus();
  };
  Generation expected, stopped, resumed;
  Status status = generate(nullptr, &expected, false);
  ASSERT_TRUE(status.ok()) << status.message();
  options.session = dir.File("session");
  std::atomic<bool> cancel = false;
  status = generate(&cancel, &stopped, true);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(stopped.finish, FinishReason::kCancelled);
  status = generate(nullptr, &resumed, false);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_GE(resumed.reused_tokens, 1500 / 64 * 64);
  EXPECT_EQ(resumed.tokens, expected.tokens);
}

}  // namespace
}  // namespace headway::testing
