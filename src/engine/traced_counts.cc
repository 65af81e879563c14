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
  const auto add_lists = [&](const char* graph, const ListedBlocks& listed,
                             const ListedBlocks& before) {
    const int64_t chosen = listed.blocks - before.blocks;
    add(graph, {{"chosen", chosen}, {"left out", listed.among - before.among - chosen}});
  };
  add_lists("blocks", now.listed, before_.listed);
  add_lists("blocks, prompts", now.prompts.listed, before_.prompts.listed);
  const auto add_cache = [&](const char* graph, const char* bytes, const PageCacheReads& cache,
                             const PageCacheReads& before) {
    add(graph, {{"found", cache.found - before.found},
                {"brought", cache.brought - before.brought},
                {"passed", cache.passed - before.passed}});
    add(bytes, {{"over the bus", cache.bytes - before.bytes}});
  };
  add_cache("page cache", "page cache, bytes", now.page_cache, before_.page_cache);
  add_cache("page cache, prompts", "page cache, prompts, bytes", now.prompts.page_cache,
            before_.prompts.page_cache);
  const DiskPageReads &pages = now.disk_pages, &pages_before = before_.disk_pages;
  add("pages on disk",
      {{"found", pages.found - pages_before.found}, {"read", pages.read - pages_before.read}});
  add("pages on disk, bytes", {{"read", pages.bytes - pages_before.bytes}});
  add("let go of, bytes", {{"read", now.demoted.bytes - before_.demoted.bytes}});
  before_ = now;
}

}  // namespace headway
