#include "peaks.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/env.h"

namespace headway::bench {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Enough independent chains to hide the latency of two multiply-adds a cycle.
constexpr int kChains = 12;
constexpr int64_t kSteps = 1 << 19;

__attribute__((target("avx512f"))) float FmaAvx512() {
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(0.1f * static_cast<float>(i));
  const __m512 a = _mm512_set1_ps(0.999f);
  const __m512 b = _mm512_set1_ps(0.001f);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_fmadd_ps(sums[i], a, b);
  }
  for (int i = 1; i < kChains; ++i) sums[0] = _mm512_add_ps(sums[0], sums[i]);
  return _mm512_cvtss_f32(sums[0]);
}

__attribute__((target("avx2,fma"))) float FmaAvx2() {
  __m256 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm256_set1_ps(0.1f * static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.999f);
  const __m256 b = _mm256_set1_ps(0.001f);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = _mm256_fmadd_ps(sums[i], a, b);
  }
  for (int i = 1; i < kChains; ++i) sums[0] = _mm256_add_ps(sums[0], sums[i]);
  return _mm256_cvtss_f32(sums[0]);
}

__attribute__((target("avx2"))) int64_t SumAvx2(const std::byte* data, int64_t bytes) {
  __m256i sums[4] = {};
  for (int64_t at = 0; at < bytes; at += 128) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const auto* from = reinterpret_cast<const __m256i*>(data + at + i * 32);
      sums[i] = _mm256_add_epi64(sums[i], _mm256_load_si256(from));
    }
  }
  const __m256i sum =
      _mm256_add_epi64(_mm256_add_epi64(sums[0], sums[1]), _mm256_add_epi64(sums[2], sums[3]));
  return _mm256_extract_epi64(sum, 0) ^ _mm256_extract_epi64(sum, 3);
}

volatile float g_float_sink;
volatile int64_t g_int_sink;

}  // namespace

double MeasureFmaPeak(ThreadPool& pool, Isa isa) {
  const int64_t rounds = 4 * pool.threads();
  const double flops =
      static_cast<double>(rounds * kSteps * kChains * 2 * (isa == Isa::kAvx2 ? 8 : 16));
  double best = 0;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const Clock::time_point start = Clock::now();
    pool.Run(rounds, 1, [&](int, int64_t, int64_t) {
      g_float_sink = isa == Isa::kAvx2 ? FmaAvx2() : FmaAvx512();
    });
    best = std::max(best, flops / SecondsSince(start));
  }
  return best;
}

void ReadMemory(ThreadPool& pool, const std::byte* data, int64_t bytes) {
  pool.Run(bytes, kMiB, [&](int, int64_t begin, int64_t end) {
    g_int_sink = SumAvx2(data + begin, end - begin);
  });
}

double MeasureReadPeak(ThreadPool& pool) {
  constexpr int64_t kBytes = 512 * kMiB;
  Result<std::byte*> memory = Env::Default()->AllocateMemory(static_cast<size_t>(kBytes));
  if (!memory.ok()) return 0;
  std::fill_n(*memory, kBytes, std::byte{1});
  double best = 0;
  for (int repeat = 0; repeat < 4; ++repeat) {
    const Clock::time_point start = Clock::now();
    ReadMemory(pool, *memory, kBytes);
    best = std::max(best, static_cast<double>(kBytes) / SecondsSince(start));
  }
  Env::Default()->FreeMemory(*memory, static_cast<size_t>(kBytes));
  return best;
}

}  // namespace headway::bench
