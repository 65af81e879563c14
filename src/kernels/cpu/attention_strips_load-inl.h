// What attention in strips computes from: keys and values of a block in f32, rotated where asked,
// and the memory of a task. Included once a target by attention_strips.cc.
#if defined(HEADWAY_KERNELS_CPU_ATTENTION_STRIPS_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWAY_KERNELS_CPU_ATTENTION_STRIPS_LOAD_INL_H_
#undef HEADWAY_KERNELS_CPU_ATTENTION_STRIPS_LOAD_INL_H_
#else
#define HEADWAY_KERNELS_CPU_ATTENTION_STRIPS_LOAD_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/bytes.h"
#include "base/check.h"
#include "base/half.h"
#include "kernels/cpu/attention_math-inl.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/load-inl.h"
#include "kernels/cpu/lossless_expand-inl.h"
#include "kernels/page_codec.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;
using DI = hn::ScalableTag<int32_t>;
using V = hn::Vec<D>;

constexpr int kLanes = HWY_MAX_BYTES / sizeof(float);
// The accumulators of the inner loop are kTile x kVecs vectors: 24 of 32 registers with AVX-512, 12
// of 16 with AVX2. A step loads kTile + kVecs operands for kTile * kVecs multiply-adds, well below
// the two loads a cycle that would hold them up.
constexpr int kVecs = 3;
constexpr int kTile = kLanes == 16 ? 8 : 4;
constexpr int kStrip = kVecs * kLanes;
constexpr int64_t kDimMultiple = 8;  // of the padded head_dim: a multiple of every kTile

// Strips of a task: the more, the less the conversion of K and V weighs; but their Q^T and O^T must
// stay in the L2 cache.
constexpr int64_t kStripBytesMax = 512 * 1024;
constexpr int64_t kTaskRowsMax = 384;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

int64_t PaddedDim(int64_t head_dim) { return RoundUp(head_dim, kDimMultiple); }

// What one strip keeps between blocks.
struct Strip {
  float* q;        // [padded dim, kStrip], scaled
  float* o;        // [padded dim, kStrip], not normalised
  float* max;      // [kStrip] of the logits so far, times log2(e); -inf before any
  float* sum;      // [kStrip] of 2^(logit - max)
  int32_t* begin;  // [kStrip]: the keys that each row sees
  int32_t* end;

  StripKeys keys() const { return {begin, end, kStrip}; }

  static int64_t Floats(int64_t dim) { return 2 * dim * kStrip + 4 * kStrip; }
};

struct Scratch {
  Scratch(std::byte* data, int64_t head_dim)
      : dim(PaddedDim(head_dim)),
        k(reinterpret_cast<float*>(data)),
        v(k + kKeyBlock * dim),
        s(v + kKeyBlock * dim),
        row(s + kKeyBlock * kStrip),
        expanded(reinterpret_cast<uint16_t*>(row + RoundUp(dim, kLanes))),
        strips(row + RoundUp(dim, kLanes) + ExpandedFloats(dim)) {}

  static int64_t ExpandedFloats(int64_t dim) { return kKeyBlock * dim / 2; }
  static int64_t Bytes(int64_t head_dim, int64_t strips) {
    const int64_t dim = PaddedDim(head_dim);
    const int64_t block =
        2 * kKeyBlock * dim + kKeyBlock * kStrip + RoundUp(dim, kLanes) + ExpandedFloats(dim);
    return int64_t{sizeof(float)} * (block + strips * Strip::Floats(dim));
  }

  Strip At(int64_t index) const {
    float* q = strips + index * Strip::Floats(dim);
    float* o = q + dim * kStrip;
    float* max = o + dim * kStrip;
    auto* begin = reinterpret_cast<int32_t*>(max + 2 * kStrip);
    return {q, o, max, max + kStrip, begin, begin + kStrip};
  }

  int64_t dim;
  float* k;            // [kKeyBlock, dim]
  float* v;            // [kKeyBlock, dim]
  float* s;            // [kKeyBlock, kStrip]: logits, then their exponentials
  float* row;          // [dim]
  uint16_t* expanded;  // [kKeyBlock, head_dim] bf16: K or V of lossless pages
  float* strips;
};

int64_t MaxStrips(int64_t head_dim) {
  const int64_t bytes = Strip::Floats(PaddedDim(head_dim)) * int64_t{sizeof(float)};
  return std::clamp<int64_t>(kStripBytesMax / bytes, 1, kTaskRowsMax / kStrip);
}

int64_t ScratchBytes(int64_t head_dim) { return Scratch::Bytes(head_dim, MaxStrips(head_dim)); }

// ---- Keys and values of a block, in f32 ----

template <DType kDType>
void ConvertRows(const std::byte* from, int64_t rows, int64_t head_dim, int64_t dim, float* to) {
  const D d;
  if (head_dim % kLanes == 0) {
    for (int64_t i = 0; i < rows * head_dim; i += kLanes) {
      hn::Store(LoadF32<kDType>(d, from, i), d, to + i);
    }
    return;
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < dim; i += kLanes) {
      const int64_t left = std::min<int64_t>(kLanes, head_dim - i);
      HWY_ALIGN float lanes[kLanes];
      hn::Store(LoadF32Tail<kDType>(d, from, row * head_dim + i, left), d, lanes);
      std::memcpy(to + row * dim + i, lanes,
                  static_cast<size_t>(std::min<int64_t>(kLanes, dim - i)) * sizeof(float));
    }
  }
}

// The same of codes of K (kKeys) or V, from slot `slot` of their page on; `params` are the page's
// of K, or of V.
template <Encoding kEncoding, bool kKeys>
void DecodeRows(const PageFormat& format, const std::byte* from, const std::byte* params,
                int64_t slot, int64_t rows, int64_t dim, float* to) {
  const D d;
  const int64_t head_dim = format.head_dim;
  const int64_t row_bytes = EncodedBytes(kEncoding, format.dtype, head_dim);
  const int64_t groups = kKeys ? head_dim : ValueGroups(format) * format.page_slots;
  const std::byte* zeros = params + groups * int64_t{sizeof(uint16_t)};
  const V unit = hn::Set(d, kCodeUnit<kEncoding>);
  for (int64_t row = 0; row < rows; ++row, from += row_bytes) {
    for (int64_t i = 0; i < dim; i += kLanes) {
      const int64_t left = std::min<int64_t>(kLanes, head_dim - i);
      V codes;
      V scale;
      V zero;
      if (left == kLanes) {
        codes = LoadCodes<kEncoding>(d, from, i);
      } else {
        codes = LoadCodesTail<kEncoding>(d, from, i, left);
      }
      if constexpr (!kKeys) {
        const int64_t group = i / kValueGroup * format.page_slots + slot + row;
        scale = hn::Set(d, LoadAsFloat(params, group, DType::kBF16));
        zero = hn::Set(d, LoadAsFloat(zeros, group, DType::kBF16));
      } else if (left == kLanes) {
        scale = LoadF32<DType::kBF16>(d, params, i);
        zero = LoadF32<DType::kBF16>(d, zeros, i);
      } else {
        scale = LoadF32Tail<DType::kBF16>(d, params, i, left);
        zero = LoadF32Tail<DType::kBF16>(d, zeros, i, left);
      }
      V value = hn::MulAdd(codes, hn::Mul(scale, unit), zero);
      if (left == kLanes) {
        hn::StoreU(value, d, to + row * dim + i);
      } else {
        value = hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(left)), value);
        HWY_ALIGN float lanes[kLanes];
        hn::Store(value, d, lanes);
        std::memcpy(to + row * dim + i, lanes,
                    static_cast<size_t>(std::min<int64_t>(kLanes, dim - i)) * sizeof(float));
      }
    }
  }
}

// `count` rows of K or V (kKeys) from key `first` of the item on, padded with zeros to the
// scratch's dim, as rows `at` and further of its k or v.
template <bool kKeys>
void LoadRows(const PageFormat& format, const PageRun& run, int64_t first, int64_t count,
              const Scratch& scratch, int64_t at) {
  const int64_t dim = scratch.dim;
  float* const to = (kKeys ? scratch.k : scratch.v) + at * dim;
  if (IsLossless(format, run)) {
    ExpandRows(format, run, kKeys ? Half::kKeys : Half::kValues, {first, count},
               {scratch.expanded, format.head_dim});
    return ConvertRows<DType::kBF16>(reinterpret_cast<const std::byte*>(scratch.expanded), count,
                                     format.head_dim, dim, to);
  }
  const std::byte* pages = kKeys ? run.k : run.v;
  const int64_t row_bytes = RowBytes(format, run);
  for (int64_t done = 0; done < count;) {
    const int64_t slot = run.first_slot + first + done;
    const int64_t in_page = slot % format.page_slots;
    const int64_t rows = std::min(count - done, format.page_slots - in_page);
    const std::byte* from =
        pages + slot / format.page_slots * run.page_stride + in_page * row_bytes;
    float* row = to + done * dim;
    done += rows;
    if (run.params != nullptr) {
      const std::byte* params = run.params + slot / format.page_slots * run.params_page_stride +
                                (kKeys ? 0 : KeyParamBytes(format));
      switch (format.encoding) {
        case Encoding::kInt8:
          DecodeRows<Encoding::kInt8, kKeys>(format, from, params, in_page, rows, dim, row);
          break;
        case Encoding::kFp8E4M3:
          DecodeRows<Encoding::kFp8E4M3, kKeys>(format, from, params, in_page, rows, dim, row);
          break;
        case Encoding::kInt4:
          DecodeRows<Encoding::kInt4, kKeys>(format, from, params, in_page, rows, dim, row);
          break;
        case Encoding::kLossless:
        case Encoding::kNone:
          HEADWAY_CHECK(false);
      }
      continue;
    }
    switch (format.dtype) {
      case DType::kF32:
        ConvertRows<DType::kF32>(from, rows, format.head_dim, dim, row);
        break;
      case DType::kF16:
        ConvertRows<DType::kF16>(from, rows, format.head_dim, dim, row);
        break;
      case DType::kBF16:
        ConvertRows<DType::kBF16>(from, rows, format.head_dim, dim, row);
        break;
    }
  }
}

// RoPE of `count` keys from `first` on, for caches that hold them unrotated.
void RotateKeys(const AttentionItem& item, int64_t first, int64_t count, int64_t dim, float* k) {
  const KeyTransform& transform = item.transform;
  const int half = transform.rotary_dim / 2;
  for (int64_t key = first; key < first + count; ++key) {
    float* row = k + (key - first) * dim;
    const int64_t position = transform.rotate_to != nullptr   ? transform.rotate_to[key]
                             : item.keys.positions != nullptr ? item.keys.positions[key]
                                                              : item.keys.position + key;
    for (int i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position) * transform.inv_freq[i];
      const float c = std::cos(angle);
      const float s = std::sin(angle);
      const float low = row[i];
      const float high = row[i + half];
      row[i] = low * c - high * s;
      row[i + half] = high * c + low * s;
    }
  }
}

// Rows of K that are rotated on by one row of angles.
void TurnRows(const RopeTable& turn, int64_t rows, int64_t dim, float* k) {
  const int64_t half = turn.rotary_dim / 2;
  for (int64_t row = 0; half > 0 && row < rows; ++row, k += dim) {
    for (int64_t i = 0; i < half; ++i) {
      const float low = k[i];
      const float high = k[i + half];
      k[i] = low * turn.cos[i] - high * turn.sin[i];
      k[i + half] = high * turn.cos[i] + low * turn.sin[i];
    }
  }
}

// The keys and values of the next block of runs, into scratch.k and v; returns their number.
int64_t LoadRuns(const PageFormat& format, BlocksOfRuns& blocks, const Scratch& scratch) {
  return blocks.Next(kKeyBlock,
                     [&](const RunOfPage& run, int64_t first, int64_t rows, int64_t at) HWY_ATTR {
                       LoadRows<true>(format, run.pages, first, rows, scratch, at);
                       LoadRows<false>(format, run.pages, first, rows, scratch, at);
                       TurnRows(run.turn, rows, scratch.dim, scratch.k + at * scratch.dim);
                     });
}

void LoadKeys(const AttentionTask& task, int64_t first, int64_t count, const Scratch& scratch) {
  const PageRun& run = task.item->keys.pages;
  LoadRows<true>(*task.format, run, first, count, scratch, 0);
  if (task.item->transform.inv_freq != nullptr) {
    RotateKeys(*task.item, first, count, scratch.dim, scratch.k);
  }
}

void LoadValues(const AttentionTask& task, int64_t first, int64_t count, const Scratch& scratch) {
  const PageRun& run = task.item->keys.pages;
  LoadRows<false>(*task.format, run, first, count, scratch, 0);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX2 || HWY_AVX3

#endif  // HEADWAY_KERNELS_CPU_ATTENTION_STRIPS_LOAD_INL_H_
