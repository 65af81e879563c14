#include "kernels/page_codec.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/check.h"
#include "base/fp8.h"
#include "base/half.h"
#include "kernels/lossless_codec.h"
#include "kernels/page_codec_math.h"

namespace headway {
namespace {

using codec::CodeOf;
using codec::Params;
using codec::ParamsOf;
using codec::Span;

// Codes of a row, whose element i has the parameters zero[i] and inverse[i].
void EncodeRow(Encoding encoding, int64_t head_dim, const float* x, const float* zero,
               const float* inverse, uint8_t* codes) {
  const auto code = [&](int64_t i) { return CodeOf(x[i], zero[i], inverse[i], encoding); };
  if (encoding == Encoding::kInt4) {
    for (int64_t i = 0; i < head_dim; i += 2) {
      codes[i / 2] = static_cast<uint8_t>(code(i) | code(i + 1) << 4);
    }
    return;
  }
  for (int64_t i = 0; i < head_dim; ++i) codes[i] = code(i);
}

// A page in f32, and what is known of each of its channels while it is encoded.
struct Work {
  explicit Work(const PageFormat& format)
      : dim(static_cast<size_t>(format.head_dim)),
        x(static_cast<size_t>(format.page_slots) * dim),
        zero(dim),
        inverse(dim) {}

  void Load(const PageFormat& format, const std::byte* page) {
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = LoadAsFloat(page, static_cast<int64_t>(i), format.dtype);
    }
  }
  const float* Row(int64_t slot) const { return x.data() + static_cast<size_t>(slot) * dim; }
  void Set(size_t channel, const Params& params) {
    zero[channel] = params.zero;
    inverse[channel] = params.inverse;
  }

  size_t dim;
  std::vector<float> x;
  std::vector<float> zero;
  std::vector<float> inverse;
};

void StoreParams(const Params& params, int64_t group, int64_t groups, std::byte* to) {
  StoreFloat(to, group, DType::kBF16, params.scale);
  StoreFloat(to, groups + group, DType::kBF16, params.zero);
}

uint8_t* CodesOf(const PageFormat& format, std::byte* codes, int64_t slot) {
  return reinterpret_cast<uint8_t*>(codes) +
         slot * EncodedBytes(format.encoding, format.dtype, format.head_dim);
}

void EncodeKeys(const PageFormat& format, Work& work, std::byte* codes, std::byte* params) {
  std::vector<Span> spans(work.dim);
  for (int64_t slot = 0; slot < format.page_slots; ++slot) {
    const float* row = work.Row(slot);
    for (size_t i = 0; i < work.dim; ++i) spans[i].Add(row[i]);
  }
  for (size_t i = 0; i < work.dim; ++i) {
    const Params group = ParamsOf(spans[i], format.encoding);
    StoreParams(group, static_cast<int64_t>(i), format.head_dim, params);
    work.Set(i, group);
  }
  for (int64_t slot = 0; slot < format.page_slots; ++slot) {
    EncodeRow(format.encoding, format.head_dim, work.Row(slot), work.zero.data(),
              work.inverse.data(), CodesOf(format, codes, slot));
  }
}

void EncodeValues(const PageFormat& format, Work& work, std::byte* codes, std::byte* params) {
  const int64_t groups = ValueGroups(format);
  for (int64_t slot = 0; slot < format.page_slots; ++slot) {
    const float* row = work.Row(slot);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = g * kValueGroup;
      const int64_t end = std::min<int64_t>(begin + kValueGroup, format.head_dim);
      Span span;
      for (int64_t i = begin; i < end; ++i) span.Add(row[i]);
      const Params group = ParamsOf(span, format.encoding);
      StoreParams(group, g * format.page_slots + slot, format.page_slots * groups, params);
      for (int64_t i = begin; i < end; ++i) work.Set(static_cast<size_t>(i), group);
    }
    EncodeRow(format.encoding, format.head_dim, row, work.zero.data(), work.inverse.data(),
              CodesOf(format, codes, slot));
  }
}

double CodeAt(const PageFormat& format, const std::byte* codes, int64_t slot, int64_t i) {
  const auto* row = reinterpret_cast<const uint8_t*>(codes) +
                    slot * EncodedBytes(format.encoding, format.dtype, format.head_dim);
  switch (format.encoding) {
    case Encoding::kInt8:
      return row[i];
    case Encoding::kFp8E4M3:
      return static_cast<double>(E4M3ToFloat(row[i]));
    case Encoding::kInt4:
      return row[i / 2] >> (i % 2 * 4) & 0xF;
    case Encoding::kNone:
    case Encoding::kLossless:
      break;
  }
  HEADWAY_CHECK(false);
  return 0;
}

double Decoded(double code, int64_t group, int64_t groups, const std::byte* params) {
  const double scale = LoadAsFloat(params, group, DType::kBF16);
  const double zero = LoadAsFloat(params, groups + group, DType::kBF16);
  return zero + scale * code;
}

// A row of a half in the lossless encoding.
void DecodeLosslessRow(const PageFormat& format, const std::byte* codes, const std::byte* params,
                       int64_t slot, double* row) {
  std::vector<uint16_t> bits(static_cast<size_t>(format.head_dim));
  lossless::DecodeRow(format, codes, params, slot, bits.data());
  for (size_t i = 0; i < bits.size(); ++i) row[i] = double{ToFloat(BF16{bits[i]})};
}

}  // namespace

int EncodePage(const PageFormat& format, const std::byte* k, const std::byte* v, std::byte* k_codes,
               std::byte* v_codes, std::byte* params) {
  HEADWAY_CHECK(format.encoding != Encoding::kNone && format.head_dim % 2 == 0);
  if (format.encoding == Encoding::kLossless) {
    const bool k_fits = lossless::EncodeHalf(format, k, k_codes, params);
    const bool v_fits = lossless::EncodeHalf(format, v, v_codes, params + KeyParamBytes(format));
    return (k_fits ? 0 : 1) + (v_fits ? 0 : 1);
  }
  Work work(format);
  work.Load(format, k);
  EncodeKeys(format, work, k_codes, params);
  work.Load(format, v);
  EncodeValues(format, work, v_codes, params + KeyParamBytes(format));
  return 0;
}

void EncodePageOf(const PageFormat& format, const EncodePagesItem& item, int64_t head, int64_t page,
                  EncodeHalfFunction lossless) {
  HEADWAY_CHECK(item.from.first_slot == 0 && item.to.first_slot == 0);
  const int64_t from = head * item.from.head_stride + page * item.from.page_stride;
  const int64_t to = head * item.to.head_stride + page * item.to.page_stride;
  std::byte* const params =
      item.to.params + head * item.to.params_head_stride + page * item.to.params_page_stride;
  int unfit = 0;
  if (lossless == nullptr) {
    unfit = EncodePage(format, item.from.k + from, item.from.v + from, item.to.k + to,
                       item.to.v + to, params);
  } else {
    if (!lossless(format, item.from.k + from, item.to.k + to, params)) ++unfit;
    if (!lossless(format, item.from.v + from, item.to.v + to, params + KeyParamBytes(format))) {
      ++unfit;
    }
  }
  if (item.unfit != nullptr && unfit > 0) {
    std::atomic_ref<int32_t>(*item.unfit).fetch_add(unfit, std::memory_order_relaxed);
  }
}

void DecodeKeyRow(const PageFormat& format, const std::byte* codes, const std::byte* params,
                  int64_t slot, double* row) {
  if (format.encoding == Encoding::kLossless) {
    return DecodeLosslessRow(format, codes, params, slot, row);
  }
  for (int64_t i = 0; i < format.head_dim; ++i) {
    row[i] = Decoded(CodeAt(format, codes, slot, i), i, format.head_dim, params);
  }
}

void DecodeValueRow(const PageFormat& format, const std::byte* codes, const std::byte* params,
                    int64_t slot, double* row) {
  if (format.encoding == Encoding::kLossless) {
    return DecodeLosslessRow(format, codes, params + KeyParamBytes(format), slot, row);
  }
  const int64_t groups = ValueGroups(format);
  for (int64_t i = 0; i < format.head_dim; ++i) {
    row[i] = Decoded(CodeAt(format, codes, slot, i), i / kValueGroup * format.page_slots + slot,
                     format.page_slots * groups, params + KeyParamBytes(format));
  }
}

}  // namespace headway
