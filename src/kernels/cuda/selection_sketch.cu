// The second look at blocks: logits of their keys as sketches have them. 16 slots of a block are
// the rows of a product and 8 query heads its columns; a row's bytes are distances from the mean,
// put together of two bits a channel.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/cuda/code_products.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/selection_keys.h"
#include "kernels/cuda/selection_queries.h"
#include "kernels/cuda/selection_weight.h"
#include "kernels/cuda/warp.h"
#include "kernels/cuda/workspace.h"

// Compiled without contraction of products and sums, as the definition is.
namespace headway::cuda {
namespace {

constexpr int kLookWarps = 8;
constexpr int kThreads = kLookWarps * kWarp;
constexpr int kRows = 16;                           // slots of a product
constexpr int kTilesMax = kSelectSlotsMax / kRows;  // products of a block
constexpr uint32_t kOnes = 0x01010101u;

template <int kDim>
struct Shared {
  QueryCodes<kDim> queries;
  // Of a variance's code, near and far distance.
  uint8_t sizes[2][256];
  // Of the channels of the block that a warp looks at: near, far.
  alignas(16) uint8_t distances[kLookWarps][2][kDim];
  uint32_t tops[kProductQueries];

  __device__ void MakeSizes() {
    static_assert(kThreads == 256);
    const int code = static_cast<int>(threadIdx.x);
    const selection::SketchSizes of = selection::SizesOf(__fsqrt_rn(static_cast<float>(code)));
    sizes[0][code] = static_cast<uint8_t>(of.near);
    sizes[1][code] = static_cast<uint8_t>(of.far);
  }

  // Of a warp; `variances` are those of a block's channels.
  __device__ void MakeDistances(const std::byte* variances, int head_dim) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    __syncwarp();
#pragma unroll
    for (int at = 4 * lane; at < kDim; at += 4 * kWarp) {
      const uint32_t codes =
          at < head_dim ? __ldcg(reinterpret_cast<const uint32_t*>(variances + at)) : 0;
#pragma unroll
      for (int of = 0; of < 2; ++of) {
        uint32_t word = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) word |= uint32_t{sizes[of][codes >> 8 * i & 0xFF]} << 8 * i;
        *reinterpret_cast<uint32_t*>(&distances[warp][of][at]) = word;
      }
    }
    __syncwarp();
  }
};

// A lane's words of a row of shared memory, as CodeWordAt deals them out.
template <int kLoad, int kWords>
__device__ void LoadShared(const uint8_t* row, int column, uint32_t (&words)[kWords]) {
#pragma unroll
  for (int word = 0; word < kWords; word += kLoad / 4) {
    const SharedWords<kLoad> some(row + CodeWordAt<kLoad>(word, column));
#pragma unroll
    for (int i = 0; i < kLoad / 4; ++i) words[word + i] = some.words[i];
  }
}

// Bytes of 0xFF where bit `bit` of a byte is set.
__device__ uint32_t BytesOfBit(uint32_t bytes, int bit) {
  // A selector with 8 added repeats the highest bit of the byte that it names.
  uint32_t mask;
  asm("prmt.b32 %0, %1, 0, 0xBA98;" : "=r"(mask) : "r"(bytes << (7 - bit)));
  return mask;
}

// The distances of four channels of a slot, with their signs: no byte is 0, so that the sum has no
// carry from byte to byte.
__device__ uint32_t Distances(uint32_t near, uint32_t far, uint32_t below, uint32_t is_far) {
  const uint32_t size = (near & ~is_far) | (far & is_far);
  return (size ^ below) + (below & kOnes);
}

// A candidate's place in its segment's summary.
struct Record {
  const std::byte* codes;
  const std::byte* sketch;
  float2 scales;
};
__device__ Record RecordOf(const SketchWork& work, int head, int block, int sketch_bytes) {
  const ScoreWork& score = work.score;
  const int head_in_group = score.table.InGroup(head);
  const int segment = score.table.Index(head, block);
  const std::byte* const summary = score.table.Place(segment);
  return {summary + head_in_group * score.codes_head_stride +
              int64_t{block} * 2 * score.queries.head_dim,
          work.table.Place(segment) + head_in_group * work.sketch_head_stride +
              int64_t{block} * sketch_bytes,
          __ldcg(reinterpret_cast<const float2*>(
              summary + score.scales_offset +
              (head_in_group * score.scales_head_stride + int64_t{block} * 2) * 4))};
}

// A warp's products with the codes of queries, which a lane has in registers.
template <int kDim, int kLoad>
struct Looker {
  static constexpr int kWords = kDim / 16;
  uint32_t high[kWords];
  uint32_t low[kWords];
  selection::QueryFactors factors[2];
  float logits[kTilesMax][4];

  __device__ void TakeQueries(const QueryCodes<kDim>& codes) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int column = lane % 4;
    LoadShared<kLoad>(codes.bytes[0][0][lane / 4], column, high);
    LoadShared<kLoad>(codes.bytes[1][0][lane / 4], column, low);
    factors[0] = codes.FactorsOf(2 * column);
    factors[1] = codes.FactorsOf(2 * column + 1);
  }

  // Logits of the block's slots: rows lane / 4 and 8 behind it, of the queries of column lane % 4.
  __device__ void FindLogits(const SketchWork& work, const Record& record,
                             const uint8_t (&distances)[2][kDim]) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int row = lane / 4;
    const int column = lane % 4;
    const int head_dim = work.score.queries.head_dim;
    uint32_t none[kWords] = {};
    uint32_t means[kWords];
    // The means are the first row of a product of their own.
    LoadCodeWords<kLoad>(row == 0 ? record.codes : nullptr, head_dim, column, means);
    int32_t mean_sums[4];
    MultiplyRows<Signs::kSigned>(means, none, high, low, mean_sums);
    const int32_t mean[2] = {__shfl_sync(kAllLanes, mean_sums[0], column),
                             __shfl_sync(kAllLanes, mean_sums[1], column)};
    const float step =
        selection::SketchStep(__fsqrt_rn(selection::LargestVariance(record.scales.y)));
    uint32_t near[kWords];
    uint32_t far[kWords];
    LoadShared<kLoad>(distances[0], column, near);
    LoadShared<kLoad>(distances[1], column, far);
#pragma unroll
    for (int tile = 0; tile < kTilesMax; ++tile) {
      if (tile * kRows >= work.block_slots) break;
      uint32_t rows[2][kWords] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int octet = 2 * tile + half;
        if (octet * 8 >= work.block_slots) break;
        const std::byte* const bits = record.sketch + int64_t{octet} * 2 * head_dim;
        uint32_t below[kWords];
        LoadCodeWords<kLoad>(bits, head_dim, column, below);
        LoadCodeWords<kLoad>(bits + head_dim, head_dim, column, rows[half]);
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          rows[half][i] =
              Distances(near[i], far[i], BytesOfBit(below[i], row), BytesOfBit(rows[half][i], row));
        }
      }
      int32_t sums[4];
      MultiplyRows<Signs::kSigned>(rows[0], rows[1], high, low, sums);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool there = tile * kRows + i / 2 * 8 < work.block_slots;
        logits[tile][i] = there ? selection::SketchLogit(factors[i % 2], record.scales.x,
                                                         mean[i % 2], step, sums[i])
                                : -INFINITY;
      }
    }
  }

  // The largest logit of query 2 * column + `of`, in all lanes of the column.
  __device__ float Top(int block_slots, int of) const {
    float top = -INFINITY;
#pragma unroll
    for (int tile = 0; tile < kTilesMax; ++tile) {
      if (tile * kRows >= block_slots) break;
      top = fmaxf(top, fmaxf(logits[tile][of], logits[tile][of + 2]));
    }
#pragma unroll
    for (int apart = 4; apart < kWarp; apart *= 2) {
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, apart));
    }
    return top;
  }

  __device__ uint32_t Mass(int block_slots, int of, float top) const {
    uint64_t sum = 0;
#pragma unroll
    for (int tile = 0; tile < kTilesMax; ++tile) {
      if (tile * kRows >= block_slots) break;
      sum += ShareWeightOf(top, logits[tile][of]);
      if (tile * kRows + 8 < block_slots) sum += ShareWeightOf(top, logits[tile][of + 2]);
    }
#pragma unroll
    for (int apart = 4; apart < kWarp; apart *= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, apart);
    }
    return selection::MassOf(sum);
  }
};

// The candidates of all heads, one head's behind the other's, of which a block of threads takes a
// run: [begin, end).
struct Run {
  int64_t begin;
  int64_t end;
};
__device__ Run RunOf(const SketchWork& work) {
  int64_t all = 0;
  for (int head = 0; head < work.score.heads; ++head) all += CandidateCount(work.candidates, head);
  return {all * blockIdx.x / gridDim.x, all * (blockIdx.x + 1) / gridDim.x};
}

template <int kDim, int kLoad>
__global__ void __launch_bounds__(kThreads, kDim <= 128 ? 2 : 1)
    LookAt(const __grid_constant__ SketchWork work) {
  __shared__ Shared<kDim> shared;
  LetNextStart();
  shared.MakeSizes();
  WaitForPrevious();
  ClearSums(work.score.scratch, work.score.heads, work.score.group);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp;
  const int lane = thread % kWarp;
  const int first_query = static_cast<int>(blockIdx.y) * kProductQueries;
  const int queries = min(kProductQueries, work.score.group - first_query);
  const int sketch_bytes = work.block_slots / 8 * 2 * work.score.queries.head_dim;
  const Run run = RunOf(work);
  int64_t before = 0;
  for (int head = 0; head < work.score.heads && before < run.end; ++head) {
    const int count = CandidateCount(work.candidates, head);
    const auto begin = static_cast<int>(max(run.begin - before, int64_t{0}));
    const auto end = static_cast<int>(min(run.end - before, int64_t{count}));
    before += count;
    if (begin >= end) continue;  // the same for all threads
    const int64_t first = int64_t{head} * work.score.group + first_query;
    __syncthreads();
    if (thread < kProductQueries) shared.tops[thread] = 0;
    shared.queries.template Make<SummaryKind::kMoments>(
        work.score.queries, (first + warp) * work.score.queries.head_dim, warp, warp < queries);
    __syncthreads();
    Looker<kDim, kLoad> looker;
    looker.TakeQueries(shared.queries);
    float best[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
    for (int i = begin + warp; i < end; i += kLookWarps) {
      const Record record =
          RecordOf(work, head, CandidateAt(work.candidates, head, i), sketch_bytes);
      shared.MakeDistances(record.codes + work.score.queries.head_dim, work.score.queries.head_dim);
      looker.FindLogits(work, record, shared.distances[warp]);
#pragma unroll
      for (int of = 0; of < 2; ++of) {
        const float top = looker.Top(work.block_slots, of);
        const uint32_t mass = looker.Mass(work.block_slots, of, top);
        best[of] = fmaxf(best[of], top);
        const int query = 2 * lane + of;  // lane is the column of the first row's lanes
        if (lane < 4 && query < queries) {
          work.sketches.tops[(first + query) * work.stride + i] = top;
          work.sketches.masses[(first + query) * work.stride + i] = mass;
        }
      }
    }
    if (lane < 4) {
#pragma unroll
      for (int of = 0; of < 2; ++of) {
        atomicMax(&shared.tops[2 * lane + of], OrderedBits(__float_as_uint(best[of])));
      }
    }
    __syncthreads();
    if (thread < queries) atomicMax(work.score.scratch.tops + first + thread, shared.tops[thread]);
  }
}

template <int kLoad>
cudaError_t Launch(cudaStream_t stream, const SketchWork& work, dim3 grid) {
  const int head_dim = work.score.queries.head_dim;
  const auto kernel = head_dim <= 64    ? LookAt<64, kLoad>
                      : head_dim <= 128 ? LookAt<128, kLoad>
                                        : LookAt<256, kLoad>;
  return LaunchKernel(kernel, grid, kThreads, 0, stream, work);
}

}  // namespace

cudaError_t LookAtSketches(cudaStream_t stream, CodeLoads loads, const SketchWork& work) {
  // Two blocks of threads a multiprocessor at most, of two candidates a warp at least where all
  // heads list as many as they may.
  const int64_t candidates = int64_t{work.score.heads} * work.stride;
  const int64_t blocks = std::clamp<int64_t>(CeilDiv(candidates, int64_t{2} * kLookWarps), 1,
                                             int64_t{2} * Multiprocessors());
  const dim3 grid(static_cast<unsigned>(blocks),
                  static_cast<unsigned>(CeilDiv(work.score.group, kProductQueries)));
  return loads == CodeLoads::kBytes16 ? Launch<16>(stream, work, grid)
                                      : Launch<8>(stream, work, grid);
}

}  // namespace headway::cuda
