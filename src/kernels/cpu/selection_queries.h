// Queries as scores see them, and keys as summaries do: turned, pooled and coded. The results are
// those of kernels/ref, bit for bit. Internal to the selection files.
#ifndef HEADWAY_KERNELS_CPU_SELECTION_QUERIES_H_
#define HEADWAY_KERNELS_CPU_SELECTION_QUERIES_H_

#include <cstddef>
#include <cstdint>

#include "kernels/selection.h"
#include "kernels/selection_math.h"

namespace headway::cpu {

// Neighbouring rows of one query head, which are scored as one.
struct PooledRows {
  const float* q = nullptr;  // of the first row
  int64_t stride = 0;
  int64_t rows = 1;
  RopeTable turn = {};  // its first row is that of the first of these
};

// Codes of a pooled query [2, QueryRow]: of moments those of q and of its squares, of boxes those
// of q below zero and of q above, of pairs those of q twice.
selection::QueryFactors CodeQuery(SummaryKind kind, const PooledRows& rows, int head_dim,
                                  float scale, int16_t* codes);

// The first of the rows [head_dim], turned.
void TurnQuery(const PooledRows& rows, int head_dim, float* to);

// Neighbouring slots of a page.
struct PageSlots {
  const std::byte* page = nullptr;
  const std::byte* params = nullptr;  // of a page in the format's encoding, else null
  int64_t first = 0;
  int count = 0;
};
// Their keys as f32 [count, head_dim], turned back by as many rows of the table, from row `row` on.
void TurnKeysBack(const PageFormat& format, const PageSlots& slots, const RopeTable& table,
                  int64_t row, float* to);

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_SELECTION_QUERIES_H_
