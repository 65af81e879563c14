// Gathering slots of encoded pages as rows of the dtype: the bits of kernels/decoded_rows.h, and
// compiled as that is, without contraction.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "kernels/cuda/code_numbers.h"
#include "kernels/cuda/eviction.h"
#include "kernels/cuda/item_batch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/lossless_unpack.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/tensor_core.h"
#include "kernels/lossless_codec.h"
#include "kernels/page_codec.h"

namespace headway::cuda {
namespace {

constexpr int kThreads = 256;

struct CodesShape {
  int32_t head_dim;
  int32_t page_slots;
  int32_t code_bytes;  // of a row
  int32_t row_bytes;   // in the dtype
  int32_t key_params;  // bytes from a page's parameters of K to those of V
  int32_t entries;     // of a half's escapes; lossless
};

struct CodesItem {
  const std::byte* k;
  const std::byte* v;
  const std::byte* params;
  int64_t page_stride;
  int64_t params_stride;
  int64_t first_slot;
  const int32_t* slots;
  int64_t count;
  std::byte* to_k;
  std::byte* to_v;
  int64_t to_page_stride;
  int64_t to_first_slot;
};
using CodesBatch = ItemBatch<CodesItem, CodesShape>;

template <DType kDType>
__device__ void StoreEight(std::byte* to, const float (&x)[8]) {
  auto* words = reinterpret_cast<uint4*>(to);
  if constexpr (kDType == DType::kF32) {
    memcpy(words, x, sizeof(x));
  } else {
    *words = make_uint4(PackPair<kDType>(x[0], x[1]), PackPair<kDType>(x[2], x[3]),
                        PackPair<kDType>(x[4], x[5]), PackPair<kDType>(x[6], x[7]));
  }
}

// Numbers [dim, dim + 8) of a slot of half a page, K or V, whose codes and parameters these are.
struct Eight {
  const std::byte* codes;
  const std::byte* params;
  bool of_k;
  int slot;
  int dim;
};

template <Encoding kEncoding, DType kDType>
__device__ void DecodeEight(const CodesShape& shape, const Eight& eight, std::byte* to) {
  const int dim = eight.dim;
  const auto* params = reinterpret_cast<const uint16_t*>(eight.params);
  const std::byte* row = eight.codes + int64_t{eight.slot} * shape.code_bytes;
  const auto groups =
      static_cast<int>((shape.head_dim + kValueGroup - 1) / kValueGroup) * shape.page_slots;
  const int of_token = dim / static_cast<int>(kValueGroup) * shape.page_slots + eight.slot;
  uint32_t words[2] = {};
  LoadEight<kEncoding>(row, dim, words);
  float x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint16_t* scale = params + (eight.of_k ? dim + i : of_token);
    const uint16_t zero = scale[eight.of_k ? shape.head_dim : groups];
    x[i] = WidenBF16(zero) + WidenBF16(*scale) * CodeAt<kEncoding>(words, i);
  }
  StoreEight<kDType>(to, x);
}

// The same of lossless pages. Escapes are few and stand in the order of their positions.
__device__ void DecodeLosslessEight(const CodesShape& shape, const Eight& eight, std::byte* to) {
  const std::byte* params = eight.params;
  const auto floor = static_cast<uint32_t>(params[lossless::FloorsAt(shape.entries) + eight.slot]);
  const LosslessPiece piece = LoadPiece(eight.codes + int64_t{eight.slot} * shape.code_bytes,
                                        eight.dim, shape.head_dim, /*wide=*/false);
  uint4 numbers = Unpack(piece, InFourBytes(floor));
  const auto* positions = reinterpret_cast<const uint16_t*>(params);
  const int first = eight.slot * shape.head_dim + eight.dim;
  int low = 0;
  for (int high = shape.entries; low < high;) {
    const int middle = (low + high) / 2;
    if (positions[middle] < first) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  for (; low < shape.entries && positions[low] < first + 8; ++low) {
    SetExponent(numbers, positions[low] - first,
                static_cast<uint32_t>(params[lossless::ExponentsAt(shape.entries) + low]));
  }
  *reinterpret_cast<uint4*>(to) = numbers;
}

template <Encoding kEncoding, DType kDType>
__device__ void Decode(const CodesShape& shape, const Eight& eight, std::byte* to) {
  if constexpr (kEncoding == Encoding::kLossless) {
    DecodeLosslessEight(shape, eight, to);
  } else {
    DecodeEight<kEncoding, kDType>(shape, eight, to);
  }
}

// A thread takes 8 numbers of K and of V.
template <Encoding kEncoding, DType kDType>
__global__ void __launch_bounds__(kThreads)
    GatherDecoded(const __grid_constant__ CodesBatch batch) {
  WaitForPrevious();  // and lets nothing start before its end, for KeysOfEarlierSteps
  const CodesShape& shape = batch.shape;
  const int at = ItemOfBlock(batch);
  const CodesItem& item = batch.items[at];
  const int pieces = shape.head_dim / 8;
  const int64_t block = static_cast<int>(blockIdx.x) - batch.first_block[at];
  const int64_t index = block * kThreads + threadIdx.x;
  const int64_t count = index / pieces;
  if (count >= item.count) return;
  const int dim = static_cast<int>(index - count * pieces) * 8;
  const int64_t from = item.first_slot + (item.slots == nullptr ? count : item.slots[count]);
  const int64_t page = from / shape.page_slots;
  const auto slot = static_cast<int>(from - page * shape.page_slots);
  const int64_t to_slot = item.to_first_slot + count, to_page = to_slot / shape.page_slots;
  const int64_t to = to_page * item.to_page_stride +
                     (to_slot - to_page * shape.page_slots) * shape.row_bytes +
                     int64_t{dim} * (shape.row_bytes / shape.head_dim);
  const std::byte* params = item.params + page * item.params_stride;
  Decode<kEncoding, kDType>(shape, {item.k + page * item.page_stride, params, true, slot, dim},
                            item.to_k + to);
  if (item.to_v == nullptr) return;
  Decode<kEncoding, kDType>(
      shape, {item.v + page * item.page_stride, params + shape.key_params, false, slot, dim},
      item.to_v + to);
}

using GatherKernel = void (*)(CodesBatch);

template <Encoding kEncoding>
GatherKernel KernelOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return GatherDecoded<kEncoding, DType::kBF16>;
    case DType::kF16:
      return GatherDecoded<kEncoding, DType::kF16>;
    case DType::kF32:
      return GatherDecoded<kEncoding, DType::kF32>;
  }
  return nullptr;
}

GatherKernel KernelOf(const PageFormat& format) {
  switch (format.encoding) {
    case Encoding::kInt8:
      return KernelOf<Encoding::kInt8>(format.dtype);
    case Encoding::kFp8E4M3:
      return KernelOf<Encoding::kFp8E4M3>(format.dtype);
    case Encoding::kInt4:
      return KernelOf<Encoding::kInt4>(format.dtype);
    case Encoding::kLossless:
      return lossless::Takes(format) ? GatherDecoded<Encoding::kLossless, DType::kBF16> : nullptr;
    case Encoding::kNone:
      break;
  }
  return nullptr;
}

CodesItem ItemOf(const GatherSlotsItem& item) {
  const PageRun& from = item.from;
  return {.k = from.k,
          .v = from.v,
          .params = from.params,
          .page_stride = from.page_stride,
          .params_stride = from.params_page_stride,
          .first_slot = from.first_slot,
          .slots = item.slots,
          .count = item.count,
          .to_k = item.to.k,
          .to_v = item.to.v,
          .to_page_stride = item.to.page_stride,
          .to_first_slot = item.to.first_slot};
}

}  // namespace

bool CanGatherCodes(const PageFormat& format, std::span<const GatherSlotsItem> items) {
  return items.empty() || (format.head_dim % 8 == 0 && KernelOf(format) != nullptr &&
                           std::all_of(items.begin(), items.end(), [](const GatherSlotsItem& item) {
                             const PageRun &from = item.from, &to = item.to;
                             return Aligned(from.k, 4) && Aligned(from.v, 4) &&
                                    from.page_stride % 4 == 0 && Aligned(from.params, 2) &&
                                    from.params_page_stride % 2 == 0 && to.params == nullptr &&
                                    Aligned(to.k) && Aligned(to.v) && to.page_stride % 16 == 0;
                           }));
}

cudaError_t GatherCodes(cudaStream_t stream, const PageFormat& format,
                        std::span<const GatherSlotsItem> items) {
  if (items.empty()) return cudaSuccess;
  const CodesShape shape = {
      .head_dim = format.head_dim,
      .page_slots = format.page_slots,
      .code_bytes =
          static_cast<int32_t>(EncodedBytes(format.encoding, format.dtype, format.head_dim)),
      .row_bytes = format.head_dim * static_cast<int32_t>(DTypeBytes(format.dtype)),
      .key_params = static_cast<int32_t>(KeyParamBytes(format)),
      .entries = static_cast<int32_t>(lossless::EscapeEntries(format.page_slots, format.head_dim))};
  std::vector<CodesItem> on_gpu;
  for (const GatherSlotsItem& item : items) on_gpu.push_back(ItemOf(item));
  const GatherKernel kernel = KernelOf(format);
  return InBatches(
      shape, std::span<const CodesItem>(on_gpu),
      [&](const CodesItem& item) {
        return CeilDiv(item.count * (shape.head_dim / 8), int64_t{kThreads});
      },
      [&](const CodesBatch& batch, unsigned blocks) {
        return LaunchKernel(kernel, blocks, kThreads, 0, stream, batch);
      });
}

}  // namespace headway::cuda
