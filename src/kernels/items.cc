#include "kernels/items.h"

#include <algorithm>
#include <initializer_list>

#include "base/bytes.h"
#include "base/check.h"

namespace headway {
namespace {

// The largest power of two that divides all of `values`, which are addresses and strides.
int64_t AlignmentOf(std::initializer_list<int64_t> values) {
  uint64_t bits = uint64_t{1} << 62;
  for (const int64_t value : values) bits |= static_cast<uint64_t>(value);
  return static_cast<int64_t>(bits & -bits);
}

int64_t AddressOf(const std::byte* at) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(at));
}

}  // namespace

KeyRun KeysOf(const PageFormat& format, const KeyRun& keys, int head, int64_t begin,
              int64_t count) {
  KeyRun part = keys;
  const int64_t slot = keys.pages.first_slot + begin;
  const int64_t passed = slot / format.page_slots;  // pages before the first of the part
  const int64_t offset = head * keys.pages.head_stride + passed * keys.pages.page_stride;
  part.pages.k += offset;
  part.pages.v += offset;
  if (part.pages.params != nullptr) {
    part.pages.params +=
        head * keys.pages.params_head_stride + passed * keys.pages.params_page_stride;
  }
  // The memory ends where it did, and the first page is a later one.
  part.pages.readable = std::max<int64_t>(0, keys.pages.readable - passed * format.page_slots);
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
  const PageRun& pages = item.keys.pages;
  const bool encoded = pages.params != nullptr;
  return {.dtype = format.dtype,
          .encoding = encoded ? format.encoding : Encoding::kNone,
          .head_dim = format.head_dim,
          .group = group,
          .softcap = params.softcap != 0.0f,
          .positions = item.keys.positions != nullptr,
          .key_transform = item.transform.inv_freq != nullptr,
          .key_mass = item.key_mass != nullptr,
          .page_alignment = AlignmentOf(
              {AddressOf(pages.k), AddressOf(pages.v), pages.page_stride, pages.head_stride}),
          .param_alignment = AlignmentOf(
              {AddressOf(pages.params), pages.params_page_stride, pages.params_head_stride})};
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
