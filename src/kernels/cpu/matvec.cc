#include "kernels/cpu/matvec.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/cpu/hwy_targets.h"
#include "kernels/cpu/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matvec.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/load-inl.h"
#include "kernels/cpu/transpose-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;
using D4 = hn::FixedTag<float, 4>;
using V = hn::Vec<D>;

// Lane j of the result is the sum of the lanes of v[j], added up in the same order for every j.
HWY_INLINE hn::Vec<D4> SumsOf4(V v0, V v1, V v2, V v3) {
  const D d;
  V m[4] = {v0, v1, v2, v3};
  TransposeInBlocks(m);
  V sum = hn::Add(hn::Add(m[0], m[1]), hn::Add(m[2], m[3]));
  // Lane j of every block of four now holds a part of sum j.
#if HWY_TARGET != HWY_AVX2
  sum = hn::Add(sum, hn::ConcatUpperUpper(d, sum, sum));
#endif
  sum = hn::Add(sum, hn::SwapAdjacentBlocks(sum));
#if HWY_TARGET == HWY_AVX2
  return hn::LowerHalf(D4(), sum);
#else
  return hn::LowerHalf(D4(), hn::LowerHalf(hn::Half<D>(), sum));
#endif
}

// Writes the sums, plus biases and old values where op wants them.
template <int kOuts, int kRows>
HWY_INLINE void Store(const V (&sums)[kOuts][kRows], const LinearOp& op, int64_t out) {
  const D d;
  for (int r = 0; r < kRows; ++r) {
    float* y = FloatRow(op, r) + out;
    if constexpr (kOuts % 4 == 0) {
      const D4 d4;
      for (int o = 0; o < kOuts; o += 4) {
        auto sum = SumsOf4(sums[o][r], sums[o + 1][r], sums[o + 2][r], sums[o + 3][r]);
        if (op.bias != nullptr) sum = hn::Add(sum, hn::LoadU(d4, op.bias + out + o));
        if (Adds(op)) sum = hn::Add(sum, hn::LoadU(d4, y + o));
        hn::StoreU(sum, d4, y + o);
      }
    } else {
      for (int o = 0; o < kOuts; ++o) {
        const V zero = hn::Zero(d);
        float sum = hn::GetLane(SumsOf4(sums[o][r], zero, zero, zero));
        if (op.bias != nullptr) sum += op.bias[out + o];
        if (Adds(op)) sum += y[o];
        y[o] = sum;
      }
    }
  }
}

// kOuts rows of the matrix against kRows vectors: kOuts * kRows sums stay in registers, each one
// chain of multiply-adds over k, so that it does not depend on the block it is in.
//
// Rows that lie within a page or two are more than the hardware's prefetcher follows: where they
// are short, the next block is fetched by hand, a step of it with each step of this one.
template <DType kDType, int kOuts, int kRows, bool kFetchNext>
HWY_INLINE void Block(const LinearOp& op, const float* HWY_RESTRICT x, int64_t out) {
  const D d;
  const int64_t in = op.weight.in;
  const std::byte* HWY_RESTRICT w = op.weight.data;
  constexpr int64_t kBytes = static_cast<int64_t>(DTypeBytes(kDType));
  constexpr int64_t kStepBytes = kOuts * kLanes * kBytes;
  const std::byte* next = w + (out + kOuts) * in * kBytes;
  V sums[kOuts][kRows];
  for (int o = 0; o < kOuts; ++o) {
    for (int r = 0; r < kRows; ++r) sums[o][r] = hn::Zero(d);
  }
  int64_t k = 0;
  for (; k + kLanes <= in; k += kLanes) {
    if constexpr (kFetchNext) {
      for (int64_t at = 0; at < kStepBytes; at += 64) hwy::Prefetch(next + at);
      next += kStepBytes;
    }
    V weights[kOuts];
    for (int o = 0; o < kOuts; ++o) weights[o] = LoadF32<kDType>(d, w, (out + o) * in + k);
    for (int r = 0; r < kRows; ++r) {
      const V values = hn::LoadU(d, x + r * in + k);
      for (int o = 0; o < kOuts; ++o) sums[o][r] = hn::MulAdd(weights[o], values, sums[o][r]);
    }
  }
  if (k < in) {
    for (int r = 0; r < kRows; ++r) {
      const auto* values = reinterpret_cast<const std::byte*>(x + r * in);
      const V tail = LoadF32Tail<DType::kF32>(d, values, k, in - k);
      for (int o = 0; o < kOuts; ++o) {
        const V weights = LoadF32Tail<kDType>(d, w, (out + o) * in + k, in - k);
        sums[o][r] = hn::MulAdd(weights, tail, sums[o][r]);
      }
    }
  }
  Store<kOuts, kRows>(sums, op, out);
}

// As many matrix rows a block as leave registers for the loads.
template <DType kDType, int kRows>
void Outputs(const LinearOp& op, const float* x, int64_t begin, int64_t end) {
#if HWY_TARGET == HWY_AVX2
  constexpr int kOuts = kRows <= 2 ? 4 : kRows <= 5 ? 2 : 1;
#else
  constexpr int kOuts = kRows == 2 || kRows == 3 ? 8 : 4;
#endif
  constexpr int64_t kShortBytes = 4096;
  int64_t out = begin;
  if (op.weight.in * static_cast<int64_t>(DTypeBytes(kDType)) < kShortBytes) {
    for (; out + kOuts <= end; out += kOuts) Block<kDType, kOuts, kRows, true>(op, x, out);
  } else {
    for (; out + kOuts <= end; out += kOuts) Block<kDType, kOuts, kRows, false>(op, x, out);
  }
  for (; out < end; ++out) Block<kDType, 1, kRows, false>(op, x, out);
}

template <DType kDType>
void Pass(const LinearOp& op, const float* x, int64_t rows, int64_t begin, int64_t end) {
  switch (rows) {
    case 1:
      return Outputs<kDType, 1>(op, x, begin, end);
    case 2:
      return Outputs<kDType, 2>(op, x, begin, end);
    case 3:
      return Outputs<kDType, 3>(op, x, begin, end);
    case 4:
      return Outputs<kDType, 4>(op, x, begin, end);
    case 5:
      return Outputs<kDType, 5>(op, x, begin, end);
    case 6:
      return Outputs<kDType, 6>(op, x, begin, end);
    default:
      HEADWAY_CHECK(false);
  }
}

}  // namespace

void MatVec(const LinearOp& op, const float* x, int64_t rows, int64_t begin, int64_t end) {
  switch (op.weight.dtype) {
    case DType::kF32:
      return Pass<DType::kF32>(op, x, rows, begin, end);
    case DType::kF16:
      return Pass<DType::kF16>(op, x, rows, begin, end);
    case DType::kBF16:
      return Pass<DType::kBF16>(op, x, rows, begin, end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX2 || HWY_AVX3

#if HWY_ONCE
namespace headway::cpu {

void MatVec(Isa isa, const LinearOp& op, const float* x, int64_t rows, int64_t begin, int64_t end) {
  HEADWAY_CHECK(rows <= kMatVecRows);
  constexpr int64_t kPassRows = 6;
  const int64_t passes = CeilDiv(rows, kPassRows);
  for (int64_t pass = 0, row = 0; pass < passes; ++pass) {
    const int64_t count = CeilDiv(rows - row, passes - pass);
    LinearOp part = op;
    part.y = FloatRow(op, row);
    if (isa == Isa::kAvx2) {
      N_AVX2::MatVec(part, x + row * op.weight.in, count, begin, end);
    } else {
      N_AVX3::MatVec(part, x + row * op.weight.in, count, begin, end);
    }
    row += count;
  }
}

}  // namespace headway::cpu
#endif  // HWY_ONCE
