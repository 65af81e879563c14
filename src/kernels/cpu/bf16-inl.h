// Vectors of f32 to bf16, 32 numbers at a time. Included once a target, after hwy/highway.h.
#if defined(HEADWAY_KERNELS_CPU_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWAY_KERNELS_CPU_BF16_INL_H_
#undef HEADWAY_KERNELS_CPU_BF16_INL_H_
#else
#define HEADWAY_KERNELS_CPU_BF16_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {

// 32 floats as bf16, rounded to nearest even; NaN stays NaN. With AVX512-BF16 an instruction.
struct ConvertByInstruction {
  using V = hwy::HWY_NAMESPACE::Vec<hwy::HWY_NAMESPACE::ScalableTag<float>>;
  HWY_INLINE static void ToBF16(V low, V high, std::byte* to) {
    __m512i both;
    asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(both) : "v"(high.raw), "v"(low.raw));
    _mm512_store_si512(to, both);
  }
};

struct ConvertByRounding {
  using V = hwy::HWY_NAMESPACE::Vec<hwy::HWY_NAMESPACE::ScalableTag<float>>;
  static __m256i Round(V x) {
    const __m512i bits = _mm512_castps_si512(x.raw);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(x.raw, x.raw, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7FC0)));
  }
  HWY_INLINE static void ToBF16(V low, V high, std::byte* to) {
    const __m512i both = _mm512_castsi256_si512(Round(low));
    _mm512_store_si512(to, _mm512_inserti64x4(both, Round(high), 1));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3

#endif  // HEADWAY_KERNELS_CPU_BF16_INL_H_
