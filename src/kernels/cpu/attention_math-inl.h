// Vector arithmetic that the attention files share. Included once a target, after hwy/highway.h.
#if defined(HEADWAY_KERNELS_CPU_ATTENTION_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWAY_KERNELS_CPU_ATTENTION_MATH_INL_H_
#undef HEADWAY_KERNELS_CPU_ATTENTION_MATH_INL_H_
#else
#define HEADWAY_KERNELS_CPU_ATTENTION_MATH_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 2^x for x <= 0, within 2 ulp; 0 below -126 and for -inf, 1 for 0, NaN for NaN. x = n + r with n
// the nearest integer, taken from the low bits of x + 1.5 * 2^23; 2^r on [-1/2, 1/2] is 1 plus a
// polynomial fitted for least relative error (9.2e-8), and n is added to the exponent's bits.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2(D d, V x) {
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
}

// cap * tanh(x / cap), as cap - 2 cap / (exp(2 x / cap) + 1). Its error is a few ulp of cap, not of
// the result, which is what a logit needs.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V SoftCap(D d, V x, float cap) {
  // tanh is odd: take the exponential of the negative side, where it cannot overflow.
  const V e = Exp2(d, hn::Mul(hn::Abs(x), hn::Set(d, -2.0f * 1.44269504088896341f / cap)));
  const V one = hn::Set(d, 1.0f);
  const V t = hn::Div(hn::Sub(one, e), hn::Add(one, e));
  return hn::CopySign(hn::Mul(t, hn::Set(d, cap)), x);
}

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();

#endif  // HEADWAY_KERNELS_CPU_ATTENTION_MATH_INL_H_
