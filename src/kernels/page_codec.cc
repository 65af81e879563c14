#include "kernels/page_codec.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/fp8.h"
#include "base/half.h"

namespace headway {
namespace {

// What a group's numbers span. `poison` is NaN where one is not finite, and 0 otherwise.
struct Span {
  float min = std::numeric_limits<float>::infinity();
  float max = -std::numeric_limits<float>::infinity();
  float poison = 0;

  void Add(float x) {
    min = std::min(min, x);
    max = std::max(max, x);
    poison += x * 0.0f;
  }
};

// The greatest bf16 that is not above x, and the least that is not below.
float BF16Down(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t away = x < 0 && (bits & 0xFFFFu) != 0 ? 0x10000u : 0u;
  return std::bit_cast<float>((bits & 0xFFFF0000u) + away);
}
float BF16Up(float x) { return -BF16Down(-x); }

// A group's parameters, and 1 / scale.
struct Params {
  float scale = 0;
  float zero = 0;
  float inverse = 0;
};

float Levels(Encoding encoding) { return encoding == Encoding::kInt4 ? 15.0f : 255.0f; }

Params ParamsOf(const Span& span, Encoding encoding) {
  if (span.poison != 0.0f) {
    return {std::numeric_limits<float>::quiet_NaN(), 0, 0};
  }
  Params params;
  float step = 0;  // that codes must have at least
  if (encoding == Encoding::kFp8E4M3) {
    params.zero = ToFloat(ToBF16(span.min * 0.5f + span.max * 0.5f));
    step = std::max(span.max - params.zero, params.zero - span.min) / kE4M3Max;
  } else {
    params.zero = BF16Down(span.min);
    step = span.max / Levels(encoding) - params.zero / Levels(encoding);
  }
  // Kernels take numbers below FLT_MIN as 0.
  if (step < FLT_MIN) return params;
  params.scale = BF16Up(step);
  params.inverse = 1.0f / params.scale;
  return params;
}

// Codes of a row, whose element i has the parameters zero[i] and inverse[i].
void EncodeRow(Encoding encoding, int64_t head_dim, const float* x, const float* zero,
               const float* inverse, uint8_t* codes) {
  if (encoding == Encoding::kFp8E4M3) {
    for (int64_t i = 0; i < head_dim; ++i) codes[i] = FloatToE4M3((x[i] - zero[i]) * inverse[i]);
    return;
  }
  const float levels = Levels(encoding);
  const auto code = [&](int64_t i) {
    // NaN, which the scale tells of already, becomes 0.
    const float exact = std::min(std::max(0.0f, (x[i] - zero[i]) * inverse[i]), levels);
    return static_cast<uint8_t>(static_cast<int32_t>(exact + 0.5f));
  };
  if (encoding == Encoding::kInt8) {
    for (int64_t i = 0; i < head_dim; ++i) codes[i] = code(i);
  } else {
    for (int64_t i = 0; i < head_dim; i += 2) {
      codes[i / 2] = static_cast<uint8_t>(code(i) | code(i + 1) << 4);
    }
  }
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

}  // namespace

void EncodePage(const PageFormat& format, const std::byte* k, const std::byte* v,
                std::byte* k_codes, std::byte* v_codes, std::byte* params) {
  HEADWAY_CHECK(format.encoding != Encoding::kNone && format.head_dim % 2 == 0);
  Work work(format);
  work.Load(format, k);
  EncodeKeys(format, work, k_codes, params);
  work.Load(format, v);
  EncodeValues(format, work, v_codes, params + KeyParamBytes(format));
}

void EncodePageOf(const PageFormat& format, const EncodePagesItem& item, int64_t head,
                  int64_t page) {
  HEADWAY_CHECK(item.from.first_slot == 0 && item.to.first_slot == 0);
  const int64_t from = head * item.from.head_stride + page * item.from.page_stride;
  const int64_t to = head * item.to.head_stride + page * item.to.page_stride;
  EncodePage(
      format, item.from.k + from, item.from.v + from, item.to.k + to, item.to.v + to,
      item.to.params + head * item.to.params_head_stride + page * item.to.params_page_stride);
}

void DecodeKeyRow(const PageFormat& format, const std::byte* codes, const std::byte* params,
                  int64_t slot, double* row) {
  for (int64_t i = 0; i < format.head_dim; ++i) {
    row[i] = Decoded(CodeAt(format, codes, slot, i), i, format.head_dim, params);
  }
}

void DecodeValueRow(const PageFormat& format, const std::byte* codes, const std::byte* params,
                    int64_t slot, double* row) {
  const int64_t groups = ValueGroups(format);
  for (int64_t i = 0; i < format.head_dim; ++i) {
    row[i] = Decoded(CodeAt(format, codes, slot, i), i / kValueGroup * format.page_slots + slot,
                     format.page_slots * groups, params + KeyParamBytes(format));
  }
}

}  // namespace headway
