#include "kernels/items.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"

namespace headway {

KeyRun KeysOf(const PageFormat& format, const KeyRun& keys, int head, int64_t begin,
              int64_t count) {
  KeyRun part = keys;
  const int64_t slot = keys.pages.first_slot + begin;
  const int64_t offset =
      head * keys.pages.head_stride + slot / format.page_slots * keys.pages.page_stride;
  part.pages.k += offset;
  part.pages.v += offset;
  if (part.pages.params != nullptr) {
    part.pages.params += head * keys.pages.params_head_stride +
                         slot / format.page_slots * keys.pages.params_page_stride;
  }
  part.pages.first_slot = slot % format.page_slots;
  part.pages.count = count;
  part.position += begin;
  if (keys.positions != nullptr) part.positions += begin;
  return part;
}

int64_t PartsOf(const AttentionItem& item) {
  return item.split == 0 ? 1 : CeilDiv(item.keys.pages.count, item.split);
}

AttentionRequest RequestOf(const PageFormat& format, int group, const AttentionParams& params,
                           const AttentionItem& item) {
  const bool encoded = item.keys.pages.params != nullptr;
  return {.dtype = format.dtype,
          .encoding = encoded ? format.encoding : Encoding::kNone,
          .head_dim = format.head_dim,
          .group = group,
          .softcap = params.softcap != 0.0f,
          .positions = item.keys.positions != nullptr,
          .key_transform = item.transform.inv_freq != nullptr,
          .key_mass = item.key_mass != nullptr};
}

std::vector<AttentionItem> SingleStates(const PageFormat& format, int group,
                                        std::span<const AttentionItem> items,
                                        int64_t activation_bytes) {
  std::vector<AttentionItem> single;
  size_t count = 0;
  for (const AttentionItem& item : items) count += static_cast<size_t>(PartsOf(item) * item.heads);
  single.reserve(count);
  for (const AttentionItem& item : items) {
    HEADWAY_CHECK(item.split == 0 || !item.merge);
    const int64_t keys = item.keys.pages.count;
    const int64_t step = item.split == 0 ? keys : item.split;
    for (int64_t part = 0; part < PartsOf(item); ++part) {
      const int64_t begin = part * step;
      for (int head = 0; head < item.heads; ++head) {
        AttentionItem one = item;
        const int64_t row = int64_t{head} * group;
        one.heads = 1;
        one.split = 0;
        one.q = static_cast<const std::byte*>(item.q) + row * format.head_dim * activation_bytes;
        one.keys = KeysOf(format, item.keys, head, begin, std::min(step, keys - begin));
        if (item.transform.rotate_to != nullptr) one.transform.rotate_to += begin;
        one.o = item.o + part * item.o_part_stride + row * format.head_dim;
        one.lse = item.lse + part * item.lse_part_stride + row;
        if (item.key_mass != nullptr) one.key_mass = item.key_mass + head * keys + begin;
        single.push_back(one);
      }
    }
  }
  return single;
}

}  // namespace headway
