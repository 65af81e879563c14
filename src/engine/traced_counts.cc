#include "engine/traced_counts.h"

#include <cstdint>
#include <initializer_list>

namespace headway {

void TracedCounts::Add() {
  Timings now;
  assembly_.CountReads(&now);
  const int64_t at_ns = env_.NowNanos();
  const auto add = [&](const char* graph, std::initializer_list<Trace::Number> numbers) {
    bool any = false;
    for (const Trace::Number& number : numbers) any = any || number.value != 0;
    if (any) trace_.Count(graph, at_ns, {numbers.begin(), numbers.size()});
  };
  const ListedBlocks &listed = now.listed, &listed_before = before_.listed;
  const int64_t chosen = listed.blocks - listed_before.blocks;
  add("blocks", {{"chosen", chosen}, {"left out", listed.among - listed_before.among - chosen}});
  const PageCacheReads &cache = now.page_cache, &cache_before = before_.page_cache;
  add("page cache", {{"found", cache.found - cache_before.found},
                     {"brought", cache.brought - cache_before.brought},
                     {"passed", cache.passed - cache_before.passed}});
  add("page cache, bytes", {{"over the bus", cache.bytes - cache_before.bytes}});
  const DiskPageReads &pages = now.disk_pages, &pages_before = before_.disk_pages;
  add("pages on disk",
      {{"found", pages.found - pages_before.found}, {"read", pages.read - pages_before.read}});
  add("pages on disk, bytes", {{"read", pages.bytes - pages_before.bytes}});
  add("let go of, bytes", {{"read", now.demoted.bytes - before_.demoted.bytes}});
  before_ = now;
}

}  // namespace headway
