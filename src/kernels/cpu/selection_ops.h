// What selection.cc splits over threads and the code for each instruction set computes. Whatever
// the set, the results are those of kernels/ref, bit for bit. Internal to the selection files.
#ifndef HEADWAY_KERNELS_CPU_SELECTION_OPS_H_
#define HEADWAY_KERNELS_CPU_SELECTION_OPS_H_

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/cpu/isa.h"
#include "kernels/selection.h"
#include "kernels/selection_math.h"

namespace headway::cpu {

// Codes of a query head: two rows, which are multiplied with the two of a block, each padded with
// zeros to a whole vector of any instruction set.
constexpr int64_t QueryRow(int head_dim) { return RoundUp(head_dim, 32); }

// Neighbouring blocks of one head in one segment, to be scored for the head's group of queries.
struct ScoreTask {
  SummaryKind kind = SummaryKind::kMoments;
  int head_dim = 0;
  const std::byte* codes = nullptr;
  const float* scales = nullptr;
  int64_t blocks = 0;
  int group = 1;
  const int16_t* queries = nullptr;                  // [group, 2, QueryRow]
  const selection::QueryFactors* factors = nullptr;  // [group]
  float* scores = nullptr;                           // [group, blocks], rows apart by score_stride
  int64_t score_stride = 0;
  float* largest = nullptr;  // [group], raised to the largest of the scores
};

// Weights of all blocks of a head for its group of query heads, each by its pooled queries.
struct WorthTask {
  const float* weights = nullptr;  // [group, pools, count], rows apart by weight_stride
  int64_t weight_stride = 0;
  const float* sums = nullptr;  // [group, pools]
  int group = 1;
  int64_t pools = 1;
  int64_t count = 0;
  uint16_t* codes = nullptr;  // [count]
};

struct SelectionOps {
  // The summary of `slots` rows of keys that lie one behind the other.
  void (*summarize)(const PageFormat& format, SummaryKind kind, const std::byte* keys, int slots,
                    std::byte* codes, float* scales);
  void (*score)(const ScoreTask& task);
  // Scores become their ShareWeight, as f32; returns the sum of these.
  uint64_t (*weigh)(float* scores, int64_t count, float largest);
  // codes[i] = WorthCode of the sum over the group of the largest of the pools' weights / sums.
  void (*worth)(const WorthTask& task);
  // cos and sin [half] of the angles by which `shift` positions rotate, within a few units.
  void (*angles)(const BlockMove& move, int64_t shift, float* cos, float* sin);
};
const SelectionOps& SelectionOpsFor(Isa isa);

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_SELECTION_OPS_H_
