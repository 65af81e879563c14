// What the machine can do, measured with the kernels and the threads of an engine.
#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/env.h"
#include "base/thread_pool.h"
#include "device/cpu/cpu_device.h"
#include "engine/context.h"
#include "headway/engine.h"

namespace headway {
namespace {

constexpr int64_t kReadBytes = 512 * kMiB;  // more than caches hold
constexpr int64_t kPieceBytes = kMiB;
constexpr int kRepeats = 5;

// Eight sums, so that no addition waits for the one before it.
uint64_t Sum(const std::byte* data, int64_t bytes) {
  uint64_t sums[8] = {};
  for (int64_t at = 0; at < bytes; at += 64) {
    uint64_t words[8];
    std::memcpy(words, data + at, sizeof words);
    for (int i = 0; i < 8; ++i) sums[i] += words[i];
  }
  uint64_t sum = 0;
  for (uint64_t part : sums) sum += part;
  return sum;
}

double BestSeconds(Env& env, const std::function<void()>& work) {
  work();  // first touch, caches of the kernels
  int64_t best = kNoLimit;
  for (int i = 0; i < kRepeats; ++i) {
    const int64_t start = env.NowNanos();
    work();
    best = std::min(best, env.NowNanos() - start);
  }
  return static_cast<double>(std::max<int64_t>(best, 1)) * 1e-9;
}

Result<double> MeasureRead(Env& env, ThreadPool& pool) {
  Result<std::byte*> memory = env.AllocateMemory(static_cast<size_t>(kReadBytes));
  if (!memory.ok()) return memory.status();
  const int64_t pieces = kReadBytes / kPieceBytes;
  // Written first: pages that were never written share one page of zeros, which caches hold.
  pool.Run(pieces, 1, [&](int, int64_t begin, int64_t end) {
    std::memset(*memory + begin * kPieceBytes, 1, static_cast<size_t>((end - begin) * kPieceBytes));
  });
  std::atomic<uint64_t> sink = 0;
  const double seconds = BestSeconds(env, [&] {
    pool.Run(pieces, 1, [&](int, int64_t begin, int64_t end) {
      sink += Sum(*memory + begin * kPieceBytes, (end - begin) * kPieceBytes);
    });
  });
  env.FreeMemory(*memory, static_cast<size_t>(kReadBytes));
  return static_cast<double>(kReadBytes) / seconds;
}

Result<double> MeasureGemm(Env& env, const EngineOptions& options, ThreadPool& pool) {
  constexpr int64_t kRows = 1024, kIn = 2048, kOut = 2048;
  Result<std::unique_ptr<Kernels>> kernels = NewKernels(options, &pool, nullptr);
  if (!kernels.ok()) return kernels.status();
  const std::unique_ptr<Device> device = NewCpuDevice(&env, nullptr);
  const std::unique_ptr<Stream> stream = device->NewStream(Lane::kCompute);
  Budget budget("memory", kNoLimit);
  if (Status s = (*kernels)->Prepare({kRows, kIn, kOut, 64, 1}, *device, budget); !s.ok()) return s;
  // Zeros multiply as fast as other numbers.
  Result<std::unique_ptr<Buffer>> memory =
      device->Allocate(budget, (kRows * (kIn + kOut)) * sizeof(float) + kOut * kIn * 2, "peaks");
  if (!memory.ok()) return memory.status();
  auto* x = reinterpret_cast<float*>((*memory)->data());
  float* y = x + kRows * kIn;
  LinearOp op;
  op.weight = {reinterpret_cast<const std::byte*>(y + kRows * kOut), DType::kBF16, kOut, kIn};
  op.y = y;
  op.y_stride = kOut;
  const double seconds = BestSeconds(env, [&] {
    (*kernels)->Linear(*stream, x, kRows, {&op, 1});
    stream->Synchronize().ok();
  });
  if (Status s = stream->status(); !s.ok()) return s;
  return 2.0 * kRows * kIn * kOut / seconds;
}

}  // namespace

Result<MachinePeaks> MeasurePeaks(const EngineOptions& options) {
  if (options.threads < 0 || options.threads > 1024) {
    return Status(StatusCode::kInvalidArgument, "threads must be 0 to 1024");
  }
  Env* env = Env::Default();
  ThreadPool pool(options.threads);
  Result<double> read = MeasureRead(*env, pool);
  if (!read.ok()) return read.status();
  Result<double> gemm = MeasureGemm(*env, options, pool);
  if (!gemm.ok()) return gemm.status();
  return MachinePeaks{*read, *gemm};
}

}  // namespace headway
