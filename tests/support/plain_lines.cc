#include "support/plain_lines.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kernels/block_cache.h"
#include "kernels/page_codec.h"

namespace headway::testing {
namespace {

template <typename T>
std::vector<T> Fetch(Stream& stream, const T* from, int64_t count) {
  std::vector<T> to(static_cast<size_t>(count));
  stream.Copy(reinterpret_cast<std::byte*>(to.data()), reinterpret_cast<const std::byte*>(from),
              to.size() * sizeof(T));
  EXPECT_TRUE(stream.Synchronize().ok());
  return to;
}

}  // namespace

// A listed block in host memory: its name, and the bytes of its keys, values and parameters. Of the
// latter a line has those that hold for all keys of a page; those of values are for some slots.
struct PlainLines::Block {
  uint64_t name = 0;
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  const std::byte* params = nullptr;  // null: there are none
  int64_t bytes = 0;                  // of K, and of V
  int64_t params_bytes = 0;

  bool IsIn(const std::byte* line) const {
    return std::memcmp(line, k, static_cast<size_t>(bytes)) == 0 &&
           std::memcmp(line + bytes, v, static_cast<size_t>(bytes)) == 0 &&
           (params == nullptr ||
            std::memcmp(line + 2 * bytes, params, static_cast<size_t>(params_bytes)) == 0);
  }
};

PlainLines::Memory PlainLines::Read(Stream& stream, const BlockCache& cache, int64_t line_bytes) {
  const int64_t lines = int64_t{cache.sets} * BlockCache::kWays;
  return {Fetch(stream, cache.entries, lines), Fetch(stream, cache.lines, lines * line_bytes)};
}

std::vector<PlainLines::Block> PlainLines::BlocksOf(Stream& stream, const PageFormat& format,
                                                    int block_slots, const AttendBlocksItem& item) {
  const BlockedKeys& keys = item.keys;
  const std::vector<int32_t> lists = Fetch(stream, item.blocks, keys.heads * item.capacity);
  const std::vector<int32_t> counts = Fetch(stream, item.counts, keys.heads);
  const int64_t page_blocks = format.page_slots / block_slots;
  std::vector<Block> blocks;
  for (int head = 0; head < keys.heads; ++head) {
    const int64_t in_group = head % keys.group_heads;
    for (int32_t i = 0; i < counts[static_cast<size_t>(head)]; ++i) {
      const int64_t listed = lists[static_cast<size_t>(head * item.capacity + i)];
      const int64_t segment = listed / keys.segment_blocks;
      const int64_t at = listed % keys.segment_blocks;
      const SegmentPlace& place = keys.segments[static_cast<size_t>(
          head / keys.group_heads * keys.group_segments() + segment)];
      if (place.version == 0) continue;
      Block block;
      block.name = block_cache::Name(place.version,
                                     static_cast<uint32_t>(in_group * keys.segment_blocks + at));
      block.bytes = BlockBytes(format, block_slots);
      block.k = place.slab + in_group * keys.head_stride + at / page_blocks * keys.page_stride +
                at % page_blocks * block.bytes;
      block.v = block.k + keys.v_offset;
      if (format.encoding != Encoding::kNone) {
        block.params = place.slab + keys.params_offset + in_group * keys.params_head_stride +
                       at / page_blocks * keys.params_page_stride;
        block.params_bytes = int64_t{4} * format.head_dim;
      }
      blocks.push_back(block);
    }
  }
  return blocks;
}

// As one thread of a kernel does, where no other runs.
void PlainLines::Take(const BlockCache& cache, const Block& block, int64_t line_bytes) {
  const int64_t first = int64_t{block_cache::SetOf(block.name, cache.sets)} * BlockCache::kWays;
  const std::span<uint64_t> set(cache.entries + first, BlockCache::kWays);
  const uint64_t mine = block_cache::Entry(block.name, cache.step);
  const auto found = std::find_if(set.begin(), set.end(), [&](uint64_t entry) {
    return block_cache::NameOf(entry) == block.name;
  });
  if (found != set.end()) {
    *found = mine;
    ++cache.reads[BlockCache::kFound];
    return;
  }
  const auto age = [&](uint64_t entry) {
    return entry == 0 ? ~0u : block_cache::AgeOf(entry, cache.step);
  };
  const auto oldest = std::max_element(set.begin(), set.end(),
                                       [&](uint64_t a, uint64_t b) { return age(a) < age(b); });
  if (age(*oldest) == 0) {
    ++cache.reads[BlockCache::kPassed];
    return;
  }
  *oldest = mine;
  ++cache.reads[BlockCache::kBrought];
  std::byte* const line = cache.lines + (first + (oldest - set.begin())) * line_bytes;
  std::memcpy(line, block.k, static_cast<size_t>(block.bytes));
  std::memcpy(line + block.bytes, block.v, static_cast<size_t>(block.bytes));
  if (block.params != nullptr) {
    std::memcpy(line + 2 * block.bytes, block.params, static_cast<size_t>(block.params_bytes));
  }
}

void PlainLines::AttendBlocks(Stream& stream, const PageFormat& format,
                              const SummaryFormat& summary, int group, float scale,
                              std::span<const AttendBlocksItem> items) {
  const auto forward = [&] {
    ForwardingKernels::AttendBlocks(stream, format, summary, group, scale, items);
  };
  const BlockCache& cache = items[0].cache;
  if (cache.lines == nullptr || items[0].rows > 1) return forward();
  const int64_t line_bytes = CacheLineBytes(format, summary.block_slots);
  std::vector<Block> blocks;
  for (const AttendBlocksItem& item : items) {
    const std::vector<Block> of_item = BlocksOf(stream, format, summary.block_slots, item);
    blocks.insert(blocks.end(), of_item.begin(), of_item.end());
  }
  const auto line_of = [&](const Memory& memory, const Block& block) -> const std::byte* {
    for (size_t i = 0; i < memory.entries.size(); ++i) {
      if (block_cache::NameOf(memory.entries[i]) == block.name) {
        return memory.lines.data() + static_cast<int64_t>(i) * line_bytes;
      }
    }
    return nullptr;
  };
  const Memory before = Read(stream, cache, line_bytes);
  for (const Block& block : blocks) {
    seen_.missed += line_of(before, block) == nullptr ? 1 : 0;
    if (fills_) Take(cache, block, line_bytes);
  }
  forward();
  const Memory behind = Read(stream, cache, line_bytes);
  seen_.listed += std::ssize(blocks);
  seen_.line_bytes = line_bytes;
  for (size_t i = 0; i < behind.entries.size(); ++i) {
    const auto at = static_cast<std::ptrdiff_t>(i) * line_bytes;
    seen_.moved_lines +=
        std::equal(before.lines.begin() + at, before.lines.begin() + at + line_bytes,
                   behind.lines.begin() + at)
            ? 0
            : 1;
  }
  for (const Block& block : blocks) {
    const std::byte* const line = line_of(behind, block);
    seen_.other += line != nullptr && !block.IsIn(line) ? 1 : 0;
  }
}

}  // namespace headway::testing
