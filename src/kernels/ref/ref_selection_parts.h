// What the definition's two looks at blocks share. Internal to kernels/ref.
#ifndef HEADWAY_KERNELS_REF_REF_SELECTION_PARTS_H_
#define HEADWAY_KERNELS_REF_REF_SELECTION_PARTS_H_

#include <cstdint>
#include <vector>

#include "kernels/ref/ref_selection.h"
#include "kernels/selection.h"
#include "kernels/selection_math.h"

namespace headway::ref {

// Numbers as codes with one scale.
struct CodedRow {
  float scale = 0;
  std::vector<int32_t> codes;
};

// A query head as scores see it.
struct CodedQuery {
  CodedRow q;
  CodedRow squares;
  selection::QueryFactors factors;
};

// Rows of q that are scored as one, [begin, end).
struct Pool {
  int64_t begin = 0;
  int64_t end = 0;
};
// Query head `head` of a pool.
CodedQuery QueryOf(const SelectItem& item, const Pool& pool, int64_t head, int head_dim,
                   float scale);

// The codes and the scales of a block's summary.
const std::byte* CodesAt(const SummaryFormat& summary, int head_dim, const BlockedKeys& keys,
                         const BlockPlace& place);
const float* ScalesAt(const BlockedKeys& keys, const BlockPlace& place);

// What all items of a call have in common.
struct SelectCall {
  const PageFormat& format;
  const SummaryFormat& summary;
  int group;
  float scale;
};

// A number for each block that a head lists, and its code: a larger one is chosen first.
using Worths = std::vector<std::vector<float>>;
using Codes = std::vector<std::vector<uint32_t>>;
using Lists = std::vector<std::vector<int32_t>>;

// The sketch of a block whose codes and scales are given: `keys` are those of its slots.
void MakeSketch(const SummaryFormat& summary, const std::vector<std::vector<float>>& keys,
                const std::byte* codes, const float* scales, std::byte* sketch);

// The worth of the blocks that each head lists, by their sketches, to the item's only row.
Worths SketchWorths(const SelectCall& call, const SelectItem& item, const Lists& candidates);

}  // namespace headway::ref

#endif  // HEADWAY_KERNELS_REF_REF_SELECTION_PARTS_H_
