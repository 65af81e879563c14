// Scoring of a text by a model of random weights, as `eval perplexity` does it, beside what reading
// the text alone takes and what taking the likelihoods on one thread of the host takes; then
// Kernels::Score alone, on as many rows of logits as the engine computes at a time.
//
//   score_bench [CONFIG [TOKENS [DEVICE]]]      by default bench/shapes/llama-3-8b.json 32768 cuda
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "headway/engine.h"
#include "kernels/backend/backend.h"
#include "unwrap.h"

namespace headway::bench {
namespace {

double Now() { return static_cast<double>(Env::Default()->NowNanos()) * 1e-9; }

double LossOf(std::span<const float> logits, TokenId target) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - largest));
  return std::log(sum) - static_cast<double>(logits[static_cast<size_t>(target)] - largest);
}

void BenchEngine(const std::string& config, int64_t count, const std::string& device) {
  EngineOptions options;
  options.device = device;
  options.random_weights = true;
  const std::unique_ptr<Engine> engine = Unwrap(Engine::Open(config, options));
  const std::unique_ptr<Context> context = Unwrap(engine->NewContext({{count}}));
  Random random(1);
  Request request;
  for (int64_t i = 0; i < count; ++i) {
    request.prompt.push_back(static_cast<TokenId>(random.Below(engine->info().vocab)));
  }
  request.max_tokens = 0;
  const std::span<const TokenId> tokens = request.prompt;
  const auto print = [&](const char* what, double start, double loss) {
    const double seconds = Now() - start;
    std::printf("%-28s %9.3f s %10.1f tokens/s", what, seconds,
                static_cast<double>(count) / seconds);
    if (loss > 0.0) std::printf("   -ln p %.9f a token", loss / static_cast<double>(count - 1));
    std::printf("\n");
  };
  for (int round = 0; round < 2; ++round) {  // the first warms up
    context->Reset();
    const double start = Now();
    Unwrap(context->Generate({&request, 1}, {}));
    if (round > 0) print("read", start, 0.0);
  }
  for (int round = 0; round < 2; ++round) {
    const double start = Now();
    const Context::ScoreResult score = Unwrap(context->Score(tokens, {}));
    if (round > 0) print("scored", start, score.negative_log_likelihood);
  }
  double loss = 0.0;
  Context::ScorePart part;
  part.logits = [&](int64_t index, std::span<const float> logits) {
    loss += LossOf(logits, tokens[static_cast<size_t>(index)]);
  };
  const double start = Now();
  Unwrap(context->Score(tokens, part, {}));
  print("scored by a host thread", start, loss);
}

void BenchKernel(const std::string& name) {
  constexpr int64_t kVocab = 128256;
  constexpr int64_t kRows = 32;
  constexpr int kRounds = 100;
  Budget budget("bench", kUnlimited);
  const std::unique_ptr<Backend> backend = Unwrap(NewBackend(name, "auto"));
  const std::unique_ptr<Device> device =
      Unwrap(backend->NewDevice(Env::Default(), nullptr, KernelTimes::kWhereFree));
  ThreadPool pool(0);
  const std::unique_ptr<Kernels> kernels = Unwrap(backend->NewKernels(&pool, nullptr));
  KernelLimits limits;
  limits.rows = limits.max_in = limits.max_out = limits.head_dim = 64;
  limits.group = limits.query_heads = 1;
  Require(kernels->Prepare(limits, *device, budget));
  const std::unique_ptr<Stream> stream = Unwrap(device->NewStream(Lane::kCompute));
  constexpr size_t kBytes = static_cast<size_t>(kRows * kVocab) * sizeof(float);
  const auto host = Unwrap(device->AllocateHost(budget, kBytes, "bench"));
  const auto logits = Unwrap(device->Allocate(budget, kBytes, "bench"));
  const auto results =
      Unwrap(device->Allocate(budget, static_cast<size_t>(kRows) * sizeof(Scored), "bench"));
  Random random(1);
  auto* const values = reinterpret_cast<float*>(host->data());
  for (int64_t i = 0; i < kRows * kVocab; ++i) values[i] = 3.0f * random.Normal();
  stream->Copy(logits->data(), host->data(), kBytes);
  std::vector<ScoreItem> items;
  for (int64_t row = 0; row < kRows; ++row) {
    items.push_back({reinterpret_cast<const float*>(logits->data()) + row * kVocab, kVocab,
                     static_cast<TokenId>(row), reinterpret_cast<Scored*>(results->data()) + row});
  }
  double best = 0.0;
  for (int round = 0; round < kRounds; ++round) {
    Require(stream->Synchronize());
    const double start = Now();
    kernels->Score(*stream, items);
    Require(stream->Synchronize());
    const double seconds = Now() - start;
    if (round == 1 || (round > 1 && seconds < best)) best = seconds;
  }
  std::printf("Kernels::Score of %lld x %lld: %.1f us, %.1f GB/s\n", static_cast<long long>(kRows),
              static_cast<long long>(kVocab), best * 1e6,
              static_cast<double>(kBytes) / best * 1e-9);
}

}  // namespace
}  // namespace headway::bench

int main(int argc, char** argv) {
  const std::string config = argc > 1 ? argv[1] : "bench/shapes/llama-3-8b.json";
  const long long tokens = argc > 2 ? std::atoll(argv[2]) : 32768;
  const std::string device = argc > 3 ? argv[3] : "cuda";
  if (argc > 4 || tokens < 2) {
    std::fprintf(stderr, "usage: score_bench [CONFIG [TOKENS [DEVICE]]]\n");
    return 2;
  }
  headway::bench::BenchKernel(device);
  headway::bench::BenchEngine(config, tokens, device);
  return 0;
}
