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

struct SelectionOps {
  // The summary of `slots` rows of keys that lie one behind the other.
  void (*summarize)(const PageFormat& format, SummaryKind kind, const std::byte* keys, int slots,
                    std::byte* codes, float* scales);
  void (*score)(const ScoreTask& task);
  // Scores become their ShareWeight, as f32; returns the sum of these.
  uint64_t (*weigh)(float* scores, int64_t count, float largest);
  // codes[i] = WorthCode of the sum over the group of weights[row, i] / sums[row].
  void (*worth)(const float* weights, int64_t weight_stride, const float* sums, int group,
                int64_t count, uint16_t* codes);
};
const SelectionOps& SelectionOpsFor(Isa isa);

// Codes of a query head [2, QueryRow]: of moments those of q and of its squares, of boxes those of
// q below zero and of q above, of pairs those of q twice.
selection::QueryFactors CodeQuery(SummaryKind kind, const float* q, int head_dim, float scale,
                                  int16_t* codes);

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_SELECTION_OPS_H_
