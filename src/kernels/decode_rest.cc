#include "kernels/decode_rest.h"

#include <algorithm>

#include "base/check.h"

namespace headway {
namespace {

// The state of the open pages of the `heads` heads of a group from head `first` on.
AttentionItem OpenPages(const PageFormat& format, int group, const AttendBlocksItem& item,
                        int first, int heads) {
  const DecodeRest& rest = item.rest;
  const int64_t row = int64_t{first} * group;  // query head
  AttentionItem open;
  open.q = static_cast<const float*>(item.q) + row * format.head_dim;
  open.tokens = 1;
  open.q_position = rest.count - 1;
  open.heads = heads;
  open.keys.pages.k = rest.pages + int64_t{2} * first * rest.row_stride;
  open.keys.pages.v = open.keys.pages.k + heads * rest.row_stride;
  open.keys.pages.page_stride = rest.row_stride;
  open.keys.pages.head_stride = rest.row_stride;
  open.keys.pages.count = rest.count;
  open.keys.pages.readable = format.page_slots;
  open.o = item.o + item.parts * item.o_part_stride + row * format.head_dim;
  open.lse = item.lse + item.parts * item.lse_part_stride + row;
  return open;
}

}  // namespace

RestCalls RestOf(const PageFormat& format, int group, std::span<const AttendBlocksItem> items) {
  RestCalls calls;
  for (const AttendBlocksItem& item : items) {
    if (item.rest.result == nullptr) continue;
    HEADWAY_CHECK(item.rows == 1 && item.rest.count > 0 && item.rest.count <= format.page_slots);
    const int heads = item.keys.heads;
    for (int first = 0; first < heads; first += item.keys.group_heads) {
      calls.attend.push_back(
          OpenPages(format, group, item, first, std::min(item.keys.group_heads, heads - first)));
    }
    MergeItem merge;
    merge.part_o = item.o;
    merge.o_part_stride = item.o_part_stride;
    merge.part_lse = item.lse;
    merge.lse_part_stride = item.lse_part_stride;
    merge.parts = item.parts + 1;
    merge.rows = int64_t{heads} * group;
    merge.o = item.rest.result;
    calls.merge.push_back(merge);
  }
  return calls;
}

}  // namespace headway
