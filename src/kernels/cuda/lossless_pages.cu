#include "kernels/cuda/lossless_pages.h"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/lossless_unpack.h"
#include "kernels/cuda/warp.h"
#include "kernels/lossless_math.h"
#include "kernels/weight_code.h"

namespace headway::cuda {
namespace {

constexpr int kThreads = 128;

// Escapes of a half, in no order yet: position << 8 | exponent.
struct EscapeList {
  static constexpr int64_t kMax = lossless::EscapeEntries(lossless::kUnfit, 1);
  uint32_t found[kMax];
  int count;
};

// A half of a page, and how it is encoded.
struct HalfWork {
  std::byte* codes;
  std::byte* params;
  int head_dim;
  int page_slots;
  int entries;

  __device__ std::byte* Row(int slot) const { return codes + slot * (head_dim / 2 * 3); }
  __device__ uint16_t* Positions() const { return reinterpret_cast<uint16_t*>(params); }
  __device__ uint8_t* Exponents() const {
    return reinterpret_cast<uint8_t*>(params) + lossless::ExponentsAt(entries);
  }
  __device__ uint8_t* Floors() const {
    return reinterpret_cast<uint8_t*>(params) + lossless::FloorsAt(entries);
  }
};

// A warp takes a row, eight numbers a lane at a time, which escape where they must.
__device__ void EncodeRow(const HalfWork& work, const std::byte* numbers, int slot,
                          EscapeList& escapes) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto* row = reinterpret_cast<const uint16_t*>(numbers) + slot * work.head_dim;
  int largest = 0;
  for (int i = lane; i < work.head_dim; i += kWarp) {
    largest = max(largest, lossless::ExponentOf(row[i]));
  }
  const int floor = lossless::FloorOf(__reduce_max_sync(kAllLanes, largest));
  if (lane == 0) work.Floors()[slot] = static_cast<uint8_t>(floor);
  auto* low = reinterpret_cast<uint8_t*>(work.Row(slot));
  auto* words = reinterpret_cast<uint32_t*>(work.Row(slot) + work.head_dim);
  for (int word = lane; word < work.head_dim / 8; word += kWarp) {
    uint32_t tops = 0;
    for (int j = 0; j < 8; ++j) {
      const uint16_t bits = row[word * 8 + j];
      low[word * 8 + j] = static_cast<uint8_t>(bits);
      tops |= lossless::TopOf(bits, floor, j);
      if (!lossless::Escapes(bits, floor)) continue;
      const int index = atomicAdd(&escapes.count, 1);
      if (index < work.entries) {
        escapes.found[index] = static_cast<uint32_t>(slot * work.head_dim + word * 8 + j) << 8 |
                               static_cast<uint32_t>(lossless::ExponentOf(bits));
      }
    }
    words[word] = tops;
  }
}

// The list in the order of positions.
__device__ void WriteList(const HalfWork& work, const EscapeList& escapes) {
  for (int i = static_cast<int>(threadIdx.x); i < work.entries; i += kThreads) {
    if (i >= escapes.count) {
      work.Positions()[i] = lossless::kNoEscape;
      work.Exponents()[i] = 0;
      continue;
    }
    const uint32_t mine = escapes.found[i];
    int rank = 0;
    for (int other = 0; other < escapes.count; ++other) {
      if (escapes.found[other] < mine) ++rank;
    }
    work.Positions()[rank] = static_cast<uint16_t>(mine >> 8);
    work.Exponents()[rank] = static_cast<uint8_t>(mine);
  }
}

// All numbers become NaN.
__device__ void WriteUnfit(const HalfWork& work) {
  const auto thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < work.entries; i += kThreads) {
    work.Positions()[i] = i == 0 ? lossless::kUnfit : lossless::kNoEscape;
    work.Exponents()[i] = 0;
  }
  constexpr int kFloor = lossless::FloorOf(lossless::ExponentOf(lossless::kUnfitBits));
  uint32_t tops = 0;
  for (int j = 0; j < 8; ++j) tops |= lossless::TopOf(lossless::kUnfitBits, kFloor, j);
  for (int slot = thread; slot < work.page_slots; slot += kThreads) {
    work.Floors()[slot] = kFloor;
    std::byte* row = work.Row(slot);
    for (int i = 0; i < work.head_dim; ++i) row[i] = std::byte{lossless::kUnfitBits & 0xFF};
    auto* words = reinterpret_cast<uint32_t*>(row + work.head_dim);
    for (int i = 0; i < work.head_dim / 8; ++i) words[i] = tops;
  }
}

__global__ void __launch_bounds__(kThreads) Encode(const __grid_constant__ EncodeBatch batch) {
  FollowPrevious();
  __shared__ EscapeList escapes;
  const HalfToEncode half = FindHalf(batch);
  const auto half_bytes =
      static_cast<int>(lossless::HalfParamBytes(batch.page_slots, batch.head_dim));
  const HalfWork work = {
      .codes = half.codes,
      .params = half.params + (half.of_keys ? 0 : half_bytes),
      .head_dim = batch.head_dim,
      .page_slots = batch.page_slots,
      .entries = static_cast<int>(lossless::EscapeEntries(batch.page_slots, batch.head_dim))};
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread == 0) escapes.count = 0;
  __syncthreads();
  for (int slot = thread / kWarp; slot < batch.page_slots; slot += kThreads / kWarp) {
    EncodeRow(work, half.numbers, slot, escapes);
  }
  const int behind = static_cast<int>(lossless::FloorsAt(work.entries)) + batch.page_slots;
  for (int i = behind + thread; i < half_bytes; i += kThreads) work.params[i] = std::byte{0};
  __syncthreads();
  if (escapes.count <= work.entries) {
    WriteList(work, escapes);
    return;
  }
  WriteUnfit(work);
  if (thread == 0 && half.unfit != nullptr) atomicAdd_system(half.unfit, 1);
}

struct Decoding {
  PageRun run;
  int64_t begin;
  int64_t count;
  int64_t head_rows;
  int32_t head_dim;
  int32_t page_slots;
  int32_t entries;
  int32_t half_bytes;
  void* k;
  void* v;
};

// A block takes the rows that are asked for of K, or of V where blockIdx.z says so, of a page. The
// next kernel starts early unless they are weights, which a kernel may read before it waits for
// those in front of it.
template <bool kWeights>
__global__ void __launch_bounds__(kThreads) Decode(const __grid_constant__ Decoding work) {
  if constexpr (!kWeights) LetNextStart();
  WaitForPrevious();
  const PageRun& run = work.run;
  const int slots = work.page_slots;
  const int dim = work.head_dim;
  const int64_t head = blockIdx.y;
  const bool of_k = blockIdx.z == 0;
  const int64_t first = run.first_slot + work.begin;  // slots count from the run's first page
  const int64_t page = first / slots + blockIdx.x;
  const auto begin = static_cast<int>(max(first - page * slots, int64_t{0}));
  const auto end = static_cast<int>(min(first + work.count - page * slots, int64_t{slots}));
  const std::byte* codes = (of_k ? run.k : run.v) + head * run.head_stride + page * run.page_stride;
  const std::byte* params = run.params + head * run.params_head_stride +
                            page * run.params_page_stride + (of_k ? 0 : work.half_bytes);
  auto* rows = static_cast<uint16_t*>(of_k ? work.k : work.v) +
               (head * work.head_rows + page * slots - first) * dim;  // of the page's first slot
  const auto* floors = reinterpret_cast<const uint8_t*>(params) + lossless::FloorsAt(work.entries);
  const int pieces = dim / 8;
  const auto thread = static_cast<int>(threadIdx.x);
  for (int i = begin * pieces + thread; i < end * pieces; i += kThreads) {
    const int slot = i / pieces;
    const int at = i % pieces * 8;
    const LosslessPiece piece = LoadPiece(codes + slot * (dim / 2 * 3), at, dim, dim % 16 == 0);
    *reinterpret_cast<uint4*>(rows + slot * dim + at) = Unpack(piece, InFourBytes(floors[slot]));
  }
  __syncthreads();
  for (int i = thread; i < work.entries; i += kThreads) {
    const int position = reinterpret_cast<const uint16_t*>(params)[i];
    if (position < begin * dim || position >= end * dim) continue;
    const int exponent =
        reinterpret_cast<const uint8_t*>(params)[lossless::ExponentsAt(work.entries) + i];
    rows[position] = lossless::WithExponent(rows[position], exponent);
  }
}

}  // namespace

cudaError_t LaunchEncodeLossless(cudaStream_t stream, const EncodeBatch& batch, unsigned blocks) {
  return LaunchKernel(Encode, blocks, kThreads, 0, stream, batch);
}

namespace {

template <bool kWeights>
cudaError_t LaunchDecode(cudaStream_t stream, const PageFormat& format,
                         const DecodePagesItem& item) {
  const int64_t first = (item.from.first_slot + item.begin) / format.page_slots;
  const int64_t end = CeilDiv(item.from.first_slot + item.begin + item.count, format.page_slots);
  const Decoding work = {
      .run = item.from,
      .begin = item.begin,
      .count = item.count,
      .head_rows = item.head_rows == 0 ? item.count : item.head_rows,
      .head_dim = format.head_dim,
      .page_slots = format.page_slots,
      .entries = static_cast<int32_t>(lossless::EscapeEntries(format.page_slots, format.head_dim)),
      .half_bytes =
          static_cast<int32_t>(lossless::HalfParamBytes(format.page_slots, format.head_dim)),
      .k = item.k,
      .v = item.v};
  return LaunchKernel(
      Decode<kWeights>,
      dim3(static_cast<unsigned>(end - first), static_cast<unsigned>(item.heads), 2), kThreads, 0,
      stream, work);
}

}  // namespace

cudaError_t DecodeLossless(cudaStream_t stream, const PageFormat& format,
                           const DecodePagesItem& item) {
  return LaunchDecode<false>(stream, format, item);
}

cudaError_t ExpandWeights(cudaStream_t stream, const std::byte* code, int64_t bytes,
                          std::byte* to) {
  const WeightCode layout(bytes);
  if (layout.pages() > 0) {
    const PageRun run = layout.Pages(code);
    const cudaError_t error =
        LaunchDecode<true>(stream, kWeightPage, {run, 1, 0, run.count, to, to + layout.ValuesAt()});
    if (error != cudaSuccess) return error;
  }
  if (layout.tail() == 0) return cudaSuccess;
  return cudaMemcpyAsync(to + layout.BlockTailAt(), code + layout.TailAt(),
                         static_cast<size_t>(layout.tail()), cudaMemcpyDeviceToDevice, stream);
}

}  // namespace headway::cuda
