// Scores of blocks by the keys themselves, by the definition: see selection_key_math.h.
#ifndef HEADWAY_KERNELS_REF_REF_SELECTION_KEYS_H_
#define HEADWAY_KERNELS_REF_REF_SELECTION_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/selection.h"

namespace headway::ref {

// A key in its page.
struct KeyPlace {
  const std::byte* page = nullptr;
  const std::byte* params = nullptr;  // of a page in the format's encoding, else null
  int64_t slot = 0;
};
// The numbers of the key.
std::vector<float> NumbersOf(const PageFormat& format, const KeyPlace& place);

// The product of a row of numbers and a key, summed in lanes.
float Dot(const float* row, const std::vector<float>& key);

// A block of rows of queries and the keys that they are multiplied with.
struct KeyScoring {
  const PageFormat& format;
  int block_slots;
  int group;
  float scale;
  const SelectItem& item;
  int64_t row_block = 0;  // of SummaryKind::kStages; others have one row
};

// The scores of all blocks for query head `q_head`, of SummaryKind::kMasses.
std::vector<float> MassScores(const KeyScoring& scoring, int64_t q_head);

// Of SummaryKind::kStages, for all blocks of KV head `head`: a code that is larger for a better
// block, and 0 for those that no stage scored. Of one row lists what survives the stages on the
// way.
std::vector<uint32_t> StageCodes(const KeyScoring& scoring, int64_t head);

}  // namespace headway::ref

#endif  // HEADWAY_KERNELS_REF_REF_SELECTION_KEYS_H_
