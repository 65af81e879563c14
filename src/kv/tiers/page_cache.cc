#include "kv/tiers/page_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/bytes.h"

namespace headway::kv {
namespace {

constexpr int64_t kLine = 256;
constexpr int64_t kCountBytes = int64_t{BlockCache::kReads} * sizeof(uint64_t);
static_assert(2 * kCountBytes <= kLine);

int64_t SetBytes(int64_t line_bytes) {
  return BlockCache::kWays * (line_bytes + int64_t{sizeof(uint64_t)});
}

}  // namespace

int64_t PageCacheSets(int64_t line_bytes, int64_t bytes) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / BlockCache::kWays;
  return std::clamp<int64_t>((bytes - 2 * kLine) / SetBytes(line_bytes), 0, kMost);
}

int64_t PageCacheBytes(int64_t line_bytes, int64_t sets) {
  return sets * SetBytes(line_bytes) + 2 * kLine;
}

Result<std::unique_ptr<PageCache>> PageCache::Create(const CacheFormat& format, int64_t bytes,
                                                     Device* device, Budget* budget) {
  const int64_t line = CacheLineBytes(format.page, format.summary.block_slots);
  const int64_t sets = PageCacheSets(line, bytes);
  if (sets == 0) return std::unique_ptr<PageCache>();
  Result<std::unique_ptr<Buffer>> memory =
      device->Allocate(*budget, static_cast<size_t>(PageCacheBytes(line, sets)), "KV page cache");
  if (!memory.ok()) return memory.status();
  std::unique_ptr<PageCache> made(new PageCache(std::move(*memory), line));
  BlockCache& view = made->view_;
  view.sets = static_cast<uint32_t>(sets);
  view.entries = reinterpret_cast<uint64_t*>(made->memory_->data());
  view.lines = made->memory_->data() + sets * BlockCache::kWays * int64_t{sizeof(uint64_t)};
  view.reads =
      reinterpret_cast<uint64_t*>(made->memory_->data() + RoundUp(sets * SetBytes(line), kLine));
  return made;
}

BlockCache PageCache::view(Readers readers) const {
  BlockCache view = view_;
  if (readers == Readers::kPrompts) view.reads += BlockCache::kReads;
  return view;
}

PageCache::Reads PageCache::Count(Stream& compute) const {
  std::array<int64_t, 2 * BlockCache::kReads> counts = {};
  compute.Copy(reinterpret_cast<std::byte*>(counts.data()),
               reinterpret_cast<const std::byte*>(view_.reads), 2 * kCountBytes);
  if (!compute.Synchronize().ok()) return {};
  Reads reads;
  reads.tokens = tokens_;
  std::copy_n(counts.begin(), BlockCache::kReads, reads.decode.begin());
  std::copy_n(counts.begin() + BlockCache::kReads, BlockCache::kReads, reads.prompts.begin());
  reads.line_bytes = line_bytes_;
  return reads;
}

}  // namespace headway::kv
