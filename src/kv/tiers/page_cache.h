// PageCache: device memory for copies of blocks of slabs in host memory (kernels/block_cache.h),
// which kernels fill and read. Slabs give the versions that keep its names apart.
#ifndef HEADWAY_KV_TIERS_PAGE_CACHE_H_
#define HEADWAY_KV_TIERS_PAGE_CACHE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "device/budget.h"
#include "device/device.h"
#include "headway/status.h"
#include "kernels/block_cache.h"
#include "kv/pages/format.h"

namespace headway::kv {

// Sets of lines in a cache of so many bytes, and what a cache of so many sets takes.
int64_t PageCacheSets(int64_t line_bytes, int64_t bytes);
int64_t PageCacheBytes(int64_t line_bytes, int64_t sets);

class PageCache {
 public:
  // What reads its lines: decode steps, or chunks of prompts, many lists of which share a read.
  enum class Readers { kDecode, kPrompts };
  // Blocks read so far, by BlockCache::Read, the tokens for which decode steps read, and the bytes
  // of a block.
  struct Reads {
    using Counts = std::array<int64_t, BlockCache::kReads>;
    Counts decode = {}, prompts = {};
    int64_t tokens = 0;
    int64_t line_bytes = 0;

    // Of those that were brought or read where they lie.
    int64_t BytesOf(const Counts& of) const {
      return line_bytes * (of[BlockCache::kBrought] + of[BlockCache::kPassed]);
    }
  };

  // Of at most `bytes`; null where these hold no set of lines. All outlive the cache.
  static Result<std::unique_ptr<PageCache>> Create(const CacheFormat& format, int64_t bytes,
                                                   Device* device, Budget* budget);

  // Kernels that read lines are enqueued: the lines may give way to what later ones read. Those
  // that these read stay until the next time.
  void LetLinesGo() { ++view_.step; }
  BlockCache view(Readers readers) const;
  // A decode step reads for so many tokens.
  void CountTokens(int64_t tokens) { tokens_ += tokens; }
  Reads Count(Stream& compute) const;  // which is waited for

 private:
  PageCache(std::unique_ptr<Buffer> memory, int64_t line_bytes)
      : memory_(std::move(memory)), line_bytes_(line_bytes) {}

  const std::unique_ptr<Buffer> memory_;  // entries, lines, counts
  const int64_t line_bytes_;
  BlockCache view_;  // whose counts are those of decode; those of prompts lie behind them
  int64_t tokens_ = 0;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_TIERS_PAGE_CACHE_H_
