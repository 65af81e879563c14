#include "kernels/cpu/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/hwy_targets.h"
#include "kernels/scoring.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/load-inl.h"
#include "kernels/cpu/score_weight-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <DType kDType, bool kAdd>
void ConvertToF32(const std::byte* from, int64_t count, float* to) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    V value = LoadF32<kDType>(d, from, i);
    if constexpr (kAdd) value = hn::Add(value, hn::LoadU(d, to + i));
    hn::StoreU(value, d, to + i);
  }
  if (i < count) {
    HWY_ALIGN float tail[HWY_MAX_BYTES / sizeof(float)];
    hn::Store(LoadF32Tail<kDType>(d, from, i, count - i), d, tail);
    for (int64_t j = i; j < count; ++j) to[j] = tail[j - i] + (kAdd ? to[j] : 0.0f);
  }
}

void ToF32(const std::byte* from, DType dtype, int64_t count, float* to) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kF16:
      return ConvertToF32<DType::kF16, false>(from, count, to);
    case DType::kBF16:
      return ConvertToF32<DType::kBF16, false>(from, count, to);
  }
}

void AddF32(const std::byte* from, DType dtype, int64_t count, float* to) {
  switch (dtype) {
    case DType::kF32:
      return ConvertToF32<DType::kF32, true>(from, count, to);
    case DType::kF16:
      return ConvertToF32<DType::kF16, true>(from, count, to);
    case DType::kBF16:
      return ConvertToF32<DType::kBF16, true>(from, count, to);
  }
}

// A sum over x: add(vector, sum so far), and add_one for the rest. Four partial sums of a vector
// each: with widths of some thousands, tens of additions a lane.
template <class Add, class AddOne>
HWY_INLINE float Sum(const float* x, int64_t width, const Add& add, const AddOne& add_one) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V sum0 = hn::Zero(d);
  V sum1 = hn::Zero(d);
  V sum2 = hn::Zero(d);
  V sum3 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * lanes <= width; i += 4 * lanes) {
    sum0 = add(hn::LoadU(d, x + i), sum0);
    sum1 = add(hn::LoadU(d, x + i + lanes), sum1);
    sum2 = add(hn::LoadU(d, x + i + 2 * lanes), sum2);
    sum3 = add(hn::LoadU(d, x + i + 3 * lanes), sum3);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
  for (; i < width; ++i) sum = add_one(x[i], sum);
  return sum;
}

float SumOfSquares(const float* x, int64_t width, float mean) {
  const V means = hn::Set(D(), mean);
  return Sum(
      x, width,
      [&](V v, V sum) HWY_ATTR {
        const V off = hn::Sub(v, means);
        return hn::MulAdd(off, off, sum);
      },
      [&](float v, float sum) { return sum + (v - mean) * (v - mean); });
}

float SumOf(const float* x, int64_t width) {
  return Sum(
      x, width, [](V v, V sum) HWY_ATTR { return hn::Add(sum, v); },
      [](float v, float sum) { return sum + v; });
}

// The mean comes off before anything is squared: the difference of two large sums would lose it.
void Norm(const float* x, const NormView& norm, int64_t width, float* y) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const float n = static_cast<float>(width);
  const float mean = norm.kind == NormKind::kLayer ? SumOf(x, width) / n : 0.0f;
  const float scale = norm.kind == NormKind::kNone
                          ? 1.0f
                          : 1.0f / std::sqrt(SumOfSquares(x, width, mean) / n + norm.eps);
  const V means = hn::Set(d, mean);
  const V scales = hn::Set(d, scale);
  int64_t i = 0;
  for (; i + lanes <= width; i += lanes) {
    V value = hn::Mul(hn::Sub(hn::LoadU(d, x + i), means), scales);
    if (norm.weight != nullptr) value = hn::Mul(value, hn::LoadU(d, norm.weight + i));
    if (norm.bias != nullptr) value = hn::Add(value, hn::LoadU(d, norm.bias + i));
    hn::StoreU(value, d, y + i);
  }
  for (; i < width; ++i) {
    float value = (x[i] - mean) * scale;
    if (norm.weight != nullptr) value *= norm.weight[i];
    if (norm.bias != nullptr) value += norm.bias[i];
    y[i] = value;
  }
}

// silu(g) * u. The exponent stays in [-104, 88], where hn::Exp is within one ulp and finite; beyond
// it silu is 0 or g to the last bit that matters.
HWY_INLINE V SwiGluVector(V g, V u) {
  const D d;
  const V negative = hn::Max(hn::Min(hn::Neg(g), hn::Set(d, 88.0f)), hn::Set(d, -104.0f));
  const V denominator = hn::Add(hn::Set(d, 1.0f), hn::Exp(d, negative));
  return hn::Mul(hn::Div(g, denominator), u);
}

void SwiGlu(const float* gate, const float* up, int64_t count, float* y) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(SwiGluVector(hn::LoadU(d, gate + i), hn::LoadU(d, up + i)), d, y + i);
  }
  if (i < count) {
    const size_t bytes = static_cast<size_t>(count - i) * sizeof(float);
    HWY_ALIGN float g[HWY_MAX_BYTES / sizeof(float)] = {};
    HWY_ALIGN float u[HWY_MAX_BYTES / sizeof(float)] = {};
    std::memcpy(g, gate + i, bytes);
    std::memcpy(u, up + i, bytes);
    hn::Store(SwiGluVector(hn::Load(d, g), hn::Load(d, u)), d, g);
    std::memcpy(y + i, g, bytes);
  }
}

// x * (1 + erf(x / sqrt(2))) / 2, as x * erfc(-x / sqrt(2)) / 2, which keeps its digits where x is
// far below zero. erfc is Numerical Recipes' (6.2): t exp(-z² + polynomial of t), t = 1 / (1 + z /
// 2), within 1.2e-7 of itself for every z >= 0. A NaN stays, since x is a factor.
HWY_INLINE V GeluVector(V x) {
  const D d;
  constexpr float kPolynomial[] = {0.17087277f, -0.82215223f, 1.48851587f, -1.13520398f,
                                   0.27886807f, -0.18628806f, 0.09678418f, 0.37409196f,
                                   1.00002368f, -1.26551223f};
  const V half = hn::Set(d, 0.5f);
  const V one = hn::Set(d, 1.0f);
  const V quarter_root = hn::Set(d, 0.353553391f);  // |x| of it is z / 2
  const V t = hn::Div(one, hn::MulAdd(hn::Abs(x), quarter_root, one));
  V exponent = hn::Set(d, kPolynomial[0]);
  for (size_t i = 1; i < std::size(kPolynomial); ++i) {
    exponent = hn::MulAdd(exponent, t, hn::Set(d, kPolynomial[i]));
  }
  exponent = hn::NegMulAdd(hn::Mul(half, x), x, exponent);
  // hn::Exp takes no less than -104, where the tail is 0 to the last bit that matters.
  const V tail = hn::Mul(hn::Mul(half, t), hn::Exp(d, hn::Max(exponent, hn::Set(d, -104.0f))));
  return hn::Mul(x, hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail)));
}

// x * (1 + tanh(u)) / 2 is x / (1 + exp(-2u)), which loses no digits either.
HWY_INLINE V GeluTanhVector(V x) {
  const D d;
  const V cubic = hn::Set(d, -2.0f * 0.797884561f * 0.044715f);
  const V linear = hn::Set(d, -2.0f * 0.797884561f);
  const V wanted = hn::Mul(x, hn::MulAdd(cubic, hn::Mul(x, x), linear));
  const V exponent = hn::Max(hn::Min(wanted, hn::Set(d, 88.0f)), hn::Set(d, -104.0f));
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), hn::Exp(d, exponent)));
}

template <class Of>
HWY_INLINE void InPlace(int64_t count, float* x, const Of& of) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(of(hn::LoadU(d, x + i)), d, x + i);
  if (i < count) {
    const size_t bytes = static_cast<size_t>(count - i) * sizeof(float);
    HWY_ALIGN float tail[HWY_MAX_BYTES / sizeof(float)] = {};
    std::memcpy(tail, x + i, bytes);
    hn::Store(of(hn::Load(d, tail)), d, tail);
    std::memcpy(x + i, tail, bytes);
  }
}

void Gelu(LinearResult kind, int64_t count, float* x) {
  if (kind == LinearResult::kGelu) {
    InPlace(count, x, [](V v) HWY_ATTR { return GeluVector(v); });
  } else {
    InPlace(count, x, [](V v) HWY_ATTR { return GeluTanhVector(v); });
  }
}

void RopeHead(const float* cos, const float* sin, int half, float* x) {
  const D d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  int i = 0;
  for (; i + lanes <= half; i += lanes) {
    const V c = hn::LoadU(d, cos + i);
    const V s = hn::LoadU(d, sin + i);
    const V low = hn::LoadU(d, x + i);
    const V high = hn::LoadU(d, x + half + i);
    hn::StoreU(hn::MulSub(low, c, hn::Mul(high, s)), d, x + i);
    hn::StoreU(hn::MulAdd(high, c, hn::Mul(low, s)), d, x + half + i);
  }
  for (; i < half; ++i) {
    const float low = x[i];
    const float high = x[half + i];
    x[i] = low * cos[i] - high * sin[i];
    x[half + i] = high * cos[i] + low * sin[i];
  }
}

void Rope(const float* cos, const float* sin, int half, int heads, int head_dim, float* x) {
  for (int head = 0; head < heads; ++head) RopeHead(cos, sin, half, x + int64_t{head} * head_dim);
}

// +infinity where a logit is NaN.
float LargestOf(const float* logits, int64_t count) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V infinity = hn::Inf(d);
  V largest = hn::Neg(infinity);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const V logit = hn::LoadU(d, logits + i);
    largest = hn::Max(largest, hn::IfThenElse(hn::Lt(logit, infinity), logit, infinity));
  }
  float result = hn::GetLane(hn::MaxOfLanes(d, largest));
  for (; i < count; ++i) {
    result = std::max(result, logits[i] < kInfinity ? logits[i] : kInfinity);
  }
  return result;
}

// ScoreWeight of each logit.
uint64_t SumOfWeights(const float* logits, int64_t count, double largest) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> floats;
  const hn::RebindToUnsigned<decltype(d)> words;
  const auto top = hn::Set(d, largest);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(words);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto logit = hn::PromoteTo(d, hn::LoadU(floats, logits + i));
    sum = hn::Add(sum, ScoreWeights(d, hn::Sub(top, logit)));
  }
  uint64_t result = hn::GetLane(hn::SumOfLanes(words, sum));
  for (; i < count; ++i) result += ScoreWeight(largest - static_cast<double>(logits[i]));
  return result;
}

Scored Score(const ScoreItem& item) {
  HEADWAY_CHECK(item.target >= 0 && item.target < item.vocab);
  const float largest = LargestOf(item.logits, item.vocab);
  if (!(std::abs(largest) < kInfinity)) return {};
  return {largest, item.logits[item.target],
          SumOfWeights(item.logits, item.vocab, static_cast<double>(largest))};
}

}  // namespace

extern const Elementwise kElementwise;
const Elementwise kElementwise = {.to_f32 = ToF32,
                                  .add_f32 = AddF32,
                                  .norm = Norm,
                                  .swiglu = SwiGlu,
                                  .gelu = Gelu,
                                  .rope = Rope,
                                  .score = Score};

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX2 || HWY_AVX3

#if HWY_ONCE
namespace headway::cpu {

const Elementwise& ElementwiseFor(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return N_AVX2::kElementwise;
    case Isa::kAvx512:
    case Isa::kAmx:
      return N_AVX3::kElementwise;
  }
  HEADWAY_CHECK(false);
  return N_AVX2::kElementwise;
}

}  // namespace headway::cpu
#endif  // HWY_ONCE
