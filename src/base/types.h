// The shared vocabulary: data types, encodings, tiers, paths, shapes and ranges, with the functions
// that say how many bytes they take. No room defines these terms anew.
#ifndef HEADWAY_BASE_TYPES_H_
#define HEADWAY_BASE_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "headway/status.h"
#include "headway/types.h"

namespace headway {

// How a number is stored: weights, activations and the KV cache.
enum class DType : uint8_t { kF32, kF16, kBF16 };

constexpr size_t DTypeBytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }
const char* DTypeName(DType dtype);  // "f32", "f16", "bf16"

// How the numbers of a closed page are stored (see kernels/page_codec.h): in the model's dtype, as
// codes of a group's own scale and zero, value = zero + scale * code, or without loss.
enum class Encoding : uint8_t {
  kNone,      // the model's dtype
  kInt8,      // 0 to 255
  kFp8E4M3,   // 1 sign, 4 exponent, 3 fraction bits; no infinities
  kInt4,      // 0 to 15, two to a byte
  kLossless,  // bf16 in 12 bits, bit for bit (see kernels/lossless_codec.h)
};
const char* EncodingName(Encoding encoding);  // "none", "int8", "fp8", "int4", "lossless"
// kInvalidArgument, with the names there are, for another.
Result<Encoding> ParseEncoding(std::string_view name);
// Bytes of `count` numbers without their scales; `count` is even.
constexpr int64_t EncodedBytes(Encoding encoding, DType dtype, int64_t count) {
  if (encoding == Encoding::kNone) return count * static_cast<int64_t>(DTypeBytes(dtype));
  if (encoding == Encoding::kLossless) return count / 2 * 3;
  return encoding == Encoding::kInt4 ? count / 2 : count;
}

// Where a page lies.
enum class Tier : uint8_t { kDevice, kHost, kDisk };
inline constexpr int kTierCount = 3;
const char* TierName(Tier tier);  // "device", "host", "disk"

// Token slots of a page, unless a test makes them fewer.
inline constexpr int kDefaultPageSlots = 64;

// What a KV cache and a step need to know of a model.
struct ModelShape {
  int layers = 0;
  int d_model = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int d_ff = 0;
  int vocab = 0;
  DType dtype = DType::kBF16;  // of the weights and of the KV cache
  bool gated_mlp = true;       // two products of d_ff in the MLP's first half instead of one

  int group() const { return query_heads / kv_heads; }  // query heads a KV head
  // Bytes of K and V of one token in all layers and heads.
  int64_t KvBytesPerToken() const {
    return int64_t{2} * layers * kv_heads * head_dim * static_cast<int64_t>(DTypeBytes(dtype));
  }
};

}  // namespace headway

#endif  // HEADWAY_BASE_TYPES_H_
