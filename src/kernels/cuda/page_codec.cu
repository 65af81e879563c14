#include "kernels/cuda/page_codec.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstddef>
#include <limits>

#include "base/bytes.h"
#include "kernels/cuda/code_numbers.h"
#include "kernels/cuda/encode_batch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/lossless_pages.h"
#include "kernels/cuda/tensor_core.h"
#include "kernels/cuda/warp.h"
#include "kernels/page_codec.h"
#include "kernels/page_codec_math.h"

// Compiled as the host's codec is: constexpr functions are shared with it, and no product is
// contracted with a sum.
namespace headway::cuda {
namespace {

constexpr int kThreads = 128;

// Numbers `index` and the next one of a page.
__device__ float2 LoadPair(const std::byte* page, int64_t index, DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(page + index * 2));
    case DType::kF16:
      return __half22float2(*reinterpret_cast<const __half2*>(page + index * 2));
    case DType::kF32:
      break;
  }
  return *reinterpret_cast<const float2*>(page + index * 4);
}

// The codes of numbers `index` and the next one of a page.
__device__ void StorePair(std::byte* codes, int64_t index, float2 x, const codec::Params& first,
                          const codec::Params& second, Encoding encoding) {
  const uint32_t low = codec::CodeOf(x.x, first.zero, first.inverse, encoding);
  const uint32_t high = codec::CodeOf(x.y, second.zero, second.inverse, encoding);
  if (encoding == Encoding::kInt4) {
    codes[index / 2] = static_cast<std::byte>(low | high << 4);
  } else {
    *reinterpret_cast<uint16_t*>(codes + index) = static_cast<uint16_t>(low | high << 8);
  }
}

__device__ void StoreParams(uint16_t* params, int64_t group, int64_t groups,
                            const codec::Params& of_group) {
  params[group] = ToBF16(of_group.scale).bits;
  params[groups + group] = ToBF16(of_group.zero).bits;
}

// A thread takes two channels over the page's slots.
__device__ void EncodeKeys(const EncodeBatch& batch, const std::byte* page, std::byte* codes,
                           uint16_t* params) {
  const int dim = batch.head_dim;
  for (int i = static_cast<int>(threadIdx.x) * 2; i < dim; i += kThreads * 2) {
    codec::Span spans[2];
#pragma unroll 8
    for (int slot = 0; slot < batch.page_slots; ++slot) {
      const float2 x = LoadPair(page, int64_t{slot} * dim + i, batch.dtype);
      spans[0].Add(x.x);
      spans[1].Add(x.y);
    }
    const codec::Params first = codec::ParamsOf(spans[0], batch.encoding);
    const codec::Params second = codec::ParamsOf(spans[1], batch.encoding);
    StoreParams(params, i, dim, first);
    StoreParams(params, i + 1, dim, second);
#pragma unroll 8
    for (int slot = 0; slot < batch.page_slots; ++slot) {
      const int64_t index = int64_t{slot} * dim + i;
      StorePair(codes, index, LoadPair(page, index, batch.dtype), first, second, batch.encoding);
    }
  }
}

// A warp takes a token, kValueGroup channels at a time.
__device__ void EncodeValues(const EncodeBatch& batch, const std::byte* page, std::byte* codes,
                             uint16_t* params) {
  static_assert(kValueGroup == 2 * kWarp);
  const int dim = batch.head_dim;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t groups = int64_t{batch.page_slots} * ((dim + 2 * kWarp - 1) / (2 * kWarp));
  for (int slot = static_cast<int>(threadIdx.x) / kWarp; slot < batch.page_slots;
       slot += kThreads / kWarp) {
    for (int begin = 0; begin < dim; begin += 2 * kWarp) {
      const int i = begin + lane * 2;
      const int64_t index = int64_t{slot} * dim + i;
      codec::Span span;
      float2 x = {0.0f, 0.0f};
      if (i < dim) {
        x = LoadPair(page, index, batch.dtype);
        span.Add(x.x);
        span.Add(x.y);
      }
#pragma unroll
      for (int apart = 1; apart < kWarp; apart *= 2) {
        codec::Span other;
        other.min = __shfl_xor_sync(kAllLanes, span.min, apart);
        other.max = __shfl_xor_sync(kAllLanes, span.max, apart);
        other.poison = __shfl_xor_sync(kAllLanes, span.poison, apart);
        span.Join(other);
      }
      const codec::Params of_group = codec::ParamsOf(span, batch.encoding);
      if (lane == 0) {
        StoreParams(params, int64_t{begin / (2 * kWarp)} * batch.page_slots + slot, groups,
                    of_group);
      }
      if (i < dim) StorePair(codes, index, x, of_group, of_group, batch.encoding);
    }
  }
}

__global__ void __launch_bounds__(kThreads) Encode(const __grid_constant__ EncodeBatch batch) {
  FollowPrevious();
  const HalfToEncode half = FindHalf(batch);
  auto* params = reinterpret_cast<uint16_t*>(half.params);
  if (half.of_keys) {
    EncodeKeys(batch, half.numbers, half.codes, params);
  } else {
    EncodeValues(batch, half.numbers, half.codes, params + 2 * batch.head_dim);
  }
}

struct Decoding {
  PageRun run;
  int64_t begin;
  int64_t count;
  int64_t head_rows;
  int32_t head_dim;
  int32_t page_slots;
  int32_t row_bytes;  // of codes
  void* k;
  void* v;
};

// A thread takes 8 numbers of a row of K, or of V where blockIdx.z says so.
template <Encoding kEncoding, DType kDType>
__global__ void __launch_bounds__(kThreads) Decode(const __grid_constant__ Decoding work) {
  FollowPrevious();
  const int pieces = work.head_dim / 8;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= work.count * pieces) return;
  const int64_t row = index / pieces;
  const int dim = static_cast<int>(index % pieces) * 8;
  const int64_t head = blockIdx.y;
  const bool of_k = blockIdx.z == 0;
  const PageRun& run = work.run;
  const auto slot_of_run = static_cast<uint32_t>(run.first_slot + work.begin + row);
  const int64_t page = slot_of_run / static_cast<uint32_t>(work.page_slots);
  const int64_t slot = slot_of_run % static_cast<uint32_t>(work.page_slots);
  const std::byte* codes = (of_k ? run.k : run.v) + head * run.head_stride +
                           page * run.page_stride + slot * work.row_bytes;
  const auto* params = reinterpret_cast<const uint16_t*>(
      run.params + head * run.params_head_stride + page * run.params_page_stride);
  uint32_t words[2] = {};
  LoadEight<kEncoding>(codes, dim, words);
  const int64_t v_groups = (work.head_dim + kValueGroup - 1) / kValueGroup * work.page_slots;
  const uint16_t* v_scale = params + 2 * work.head_dim + dim / kValueGroup * work.page_slots + slot;
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    float x[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint16_t* scale = of_k ? params + dim + i + j : v_scale;
      const uint16_t zero = scale[of_k ? work.head_dim : v_groups];
      x[j] = WidenBF16(zero) + WidenBF16(*scale) * CodeAt<kEncoding>(words, i + j);
    }
    pairs[i / 2] = PackPair<kDType>(x[0], x[1]);
  }
  auto* to = static_cast<uint4*>(of_k ? work.k : work.v);
  to[head * work.head_rows * pieces + index] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

template <Encoding kEncoding>
cudaError_t LaunchDecode(cudaStream_t stream, DType dtype, const Decoding& work, dim3 grid) {
  return LaunchKernel(
      dtype == DType::kBF16 ? Decode<kEncoding, DType::kBF16> : Decode<kEncoding, DType::kF16>,
      grid, kThreads, 0, stream, work);
}

}  // namespace

cudaError_t EncodePages(cudaStream_t stream, const PageFormat& format,
                        std::span<const EncodePagesItem> items) {
  if (format.encoding == Encoding::kNone || format.head_dim % 2 != 0) return cudaErrorInvalidValue;
  EncodeBatch batch = {};
  batch.head_dim = format.head_dim;
  batch.page_slots = format.page_slots;
  batch.dtype = format.dtype;
  batch.encoding = format.encoding;
  int64_t blocks = 0;
  const auto flush = [&] {
    const auto count = static_cast<unsigned>(2 * blocks);
    const cudaError_t error = blocks == 0 ? cudaSuccess
                              : format.encoding == Encoding::kLossless
                                  ? LaunchEncodeLossless(stream, batch, count)
                                  : LaunchKernel(Encode, count, kThreads, 0, stream, batch);
    batch.items_count = 0;
    blocks = 0;
    return error;
  };
  for (const EncodePagesItem& item : items) {
    if (item.from.first_slot != 0 || item.to.first_slot != 0) return cudaErrorInvalidValue;
    const int64_t more = item.heads * (item.from.count / format.page_slots);
    if (more == 0) continue;
    if (more > std::numeric_limits<int32_t>::max() / 2) return cudaErrorInvalidValue;
    if (batch.items_count == kEncodeItemsPerLaunch ||
        blocks + more > std::numeric_limits<int32_t>::max() / 2) {
      if (const cudaError_t error = flush(); error != cudaSuccess) return error;
    }
    batch.first_block[batch.items_count] = static_cast<int32_t>(blocks);
    batch.items[batch.items_count] = {item.from, item.to, item.heads, item.unfit};
    ++batch.items_count;
    blocks += more;
  }
  return flush();
}

cudaError_t DecodePages(cudaStream_t stream, const PageFormat& format,
                        const DecodePagesItem& item) {
  if (format.head_dim % 8 != 0 || format.dtype == DType::kF32) return cudaErrorInvalidValue;
  if (item.count == 0 || item.heads == 0) return cudaSuccess;
  Decoding work = {};
  work.run = item.from;
  work.begin = item.begin;
  work.count = item.count;
  work.head_rows = item.head_rows == 0 ? item.count : item.head_rows;
  work.head_dim = format.head_dim;
  work.page_slots = format.page_slots;
  work.row_bytes =
      static_cast<int32_t>(EncodedBytes(format.encoding, format.dtype, format.head_dim));
  work.k = item.k;
  work.v = item.v;
  const dim3 grid(static_cast<unsigned>(CeilDiv(item.count * (format.head_dim / 8), kThreads)),
                  static_cast<unsigned>(item.heads), 2);
  switch (format.encoding) {
    case Encoding::kInt8:
      return LaunchDecode<Encoding::kInt8>(stream, format.dtype, work, grid);
    case Encoding::kFp8E4M3:
      return LaunchDecode<Encoding::kFp8E4M3>(stream, format.dtype, work, grid);
    case Encoding::kInt4:
      return LaunchDecode<Encoding::kInt4>(stream, format.dtype, work, grid);
    case Encoding::kLossless:
      return DecodeLossless(stream, format, item);
    case Encoding::kNone:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace headway::cuda
