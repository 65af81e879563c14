#include "kernels/cpu/matvec.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/cpu/hwy_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matvec.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/cpu/load-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// `kOuts` rows of the matrix against `kRows` vectors: kOuts * kRows sums stay in registers. Every
// sum is one chain of multiply-adds over k, so that it does not depend on the block it is in.
template <DType kDType, int kOuts, int kRows>
HWY_INLINE void Block(const LinearOp& op, const float* HWY_RESTRICT x, int64_t out) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t in = op.weight.in;
  const std::byte* HWY_RESTRICT w = op.weight.data;
  V sums[kOuts][kRows];
  for (int o = 0; o < kOuts; ++o) {
    for (int r = 0; r < kRows; ++r) sums[o][r] = hn::Zero(d);
  }
  int64_t k = 0;
  for (; k + lanes <= in; k += lanes) {
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
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kOuts; ++o) {
      float sum = hn::GetLane(hn::SumOfLanes(d, sums[o][r]));
      float* y = op.y + r * op.y_stride + out + o;
      if (op.bias != nullptr) sum += op.bias[out + o];
      if (op.accumulate) sum += *y;
      *y = sum;
    }
  }
}

// As many matrix rows a block as leave registers for the loads.
template <DType kDType, int kRows>
void Outputs(const LinearOp& op, const float* x, int64_t begin, int64_t end) {
  constexpr int kSums = HWY_TARGET == HWY_AVX2 ? 10 : 24;
  constexpr int kOuts = kRows == 1 ? 4 : std::min(6, kSums / kRows);
  int64_t out = begin;
  for (; out + kOuts <= end; out += kOuts) Block<kDType, kOuts, kRows>(op, x, out);
  for (; out < end; ++out) Block<kDType, 1, kRows>(op, x, out);
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
    part.y += row * op.y_stride;
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
