// Vector arithmetic that the attention files share. Included once a target, after hwy/highway.h.
#if defined(HEADWAY_KERNELS_CPU_ATTENTION_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWAY_KERNELS_CPU_ATTENTION_MATH_INL_H_
#undef HEADWAY_KERNELS_CPU_ATTENTION_MATH_INL_H_
#else
#define HEADWAY_KERNELS_CPU_ATTENTION_MATH_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/attention_ops.h"

HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 2^x for x up to 127, within 2.5 ulp: 1 for 0, NaN for NaN, 0 for -inf and below -126.
//
// With x = n + r the result is 2^n times a polynomial in r, fitted for least relative error.
// AVX-512 has instructions for both ends: r = x - floor(x), error 8.2e-8, and the scaling by
// 2^floor(x); its denormal results take microcode, so callers hold a FlushDenormals. AVX2 takes n,
// the nearest integer, from the low bits of x + 1.5 * 2^23, error 9.2e-8, and adds it to the
// exponent's bits.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2(D d, V x) {
#if HWY_TARGET == HWY_AVX3
  constexpr int kFloor = 1;
  const V r{_mm512_reduce_ps(x.raw, kFloor)};
  V p = hn::Set(d, 0x1.e974fap-10f);
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.277856p-7f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.c91ce6p-5f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.ebdb56p-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.62e4bap-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  return V{_mm512_scalef_ps(p.raw, x.raw)};
#else
  const hn::RebindToSigned<D> di;
  const V magic = hn::Set(d, 12582912.0f);
  const V rounded = hn::Add(x, magic);
  const V r = hn::Sub(x, hn::Sub(rounded, magic));
  V p = hn::Set(d, 0x1.5bba14p-10f);
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.3cea88p-7f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.c6b752p-5f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.ebf9bcp-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.62e42ap-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, rounded));
  const V result = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0f)), result);
#endif
}

// cap * tanh(x / cap). Its error is a few ulp of cap, not of the result, which is what a logit
// needs.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V SoftCap(D d, V x, float cap) {
  // tanh is odd, (1 - e) / (1 + e) with e = exp(-2 |x| / cap), which cannot overflow.
  const V e = Exp2(d, hn::Mul(hn::Abs(x), hn::Set(d, -2.0f * kLog2E / cap)));
  const V one = hn::Set(d, 1.0f);
  const V t = hn::Div(hn::Sub(one, e), hn::Add(one, e));
  return hn::CopySign(hn::Mul(t, hn::Set(d, cap)), x);
}

// What is left to do to a strip's logits s [keys, kVecs * lanes], for keys [from, to) of the block
// whose first key is `first`: to cap them (unless softcap is 0), and to give -inf to keys outside
// the [begin, end) of a row. `max` becomes their maximum.
template <int kVecs, class V = hn::Vec<hn::ScalableTag<float>>>
HWY_NOINLINE void FinishLogits(float* s, const int32_t* begin, const int32_t* end, float softcap,
                               int64_t first, int64_t from, int64_t to, V (&max)[kVecs]) {
  const hn::ScalableTag<float> d;
  const hn::ScalableTag<int32_t> di;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V none = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int j = 0; j < kVecs; ++j) {
    const auto row_begin = hn::Load(di, begin + j * lanes);
    const auto row_end = hn::Load(di, end + j * lanes);
    V m = none;
    for (int64_t key = from; key < to; ++key) {
      float* at = s + (key * kVecs + j) * lanes;
      V logit = hn::Load(d, at);
      if (softcap != 0) logit = hn::Mul(SoftCap(d, logit, softcap), hn::Set(d, kLog2E));
      const auto index = hn::Set(di, static_cast<int32_t>(first + key));
      const auto seen = hn::AndNot(hn::Lt(index, row_begin), hn::Lt(index, row_end));
      logit = hn::IfThenElse(hn::RebindMask(d, seen), logit, none);
      hn::Store(logit, d, at);
      m = hn::Max(m, logit);
    }
    max[j] = m;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();

#endif  // HEADWAY_KERNELS_CPU_ATTENTION_MATH_INL_H_
