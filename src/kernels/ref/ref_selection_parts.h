// What the definition's two looks at blocks share. Internal to kernels/ref.
#ifndef HEADWAY_KERNELS_REF_REF_SELECTION_PARTS_H_
#define HEADWAY_KERNELS_REF_REF_SELECTION_PARTS_H_

#include <cstdint>
#include <vector>

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
CodedQuery QueryOf(const float* q, int head_dim, float scale);

// Where block `block` of head `head` of one sequence and layer lies.
struct BlockPlace {
  const SegmentPlace* segment = nullptr;
  int64_t head = 0;   // in its group
  int64_t block = 0;  // in its segment
};
BlockPlace PlaceOf(const BlockedKeys& keys, int64_t head, int64_t block);

// The codes and the scales of a block's summary.
const std::byte* CodesAt(const SummaryFormat& summary, int head_dim, const BlockedKeys& keys,
                         const BlockPlace& place);
const float* ScalesAt(const BlockedKeys& keys, const BlockPlace& place);

// A number for each block that a head lists.
using Worths = std::vector<std::vector<float>>;
using Lists = std::vector<std::vector<int32_t>>;

// The sketch of a block whose codes and scales are given: `keys` are those of its slots.
void MakeSketch(const SummaryFormat& summary, const std::vector<std::vector<float>>& keys,
                const std::byte* codes, const float* scales, std::byte* sketch);

// The worth of the blocks that each head lists, by their sketches.
Worths SecondLook(const PageFormat& format, const SummaryFormat& summary, int group, float scale,
                  const SelectItem& item, const Lists& candidates);

}  // namespace headway::ref

#endif  // HEADWAY_KERNELS_REF_REF_SELECTION_PARTS_H_
