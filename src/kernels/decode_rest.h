// The rest of a decode's attention to listed blocks (DecodeRest in selection.h) as other calls: for
// implementations that gain nothing by doing it in one.
#ifndef HEADWAY_KERNELS_DECODE_REST_H_
#define HEADWAY_KERNELS_DECODE_REST_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/selection.h"

namespace headway {

// What Attend and Merge do behind the attention to the blocks of `items`, whose queries are f32:
// nothing for those that have no rest.
struct RestCalls {
  std::vector<AttentionItem> attend;
  std::vector<MergeItem> merge;
};
RestCalls RestOf(const PageFormat& format, int group, std::span<const AttendBlocksItem> items);

}  // namespace headway

#endif  // HEADWAY_KERNELS_DECODE_REST_H_
