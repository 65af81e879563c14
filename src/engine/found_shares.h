// What page caches found of chosen blocks in earlier runs, kept in the user's cache folder, so that
// plans of the same model and selection need not assume it. It changes what plans predict, and
// nothing of what runs: neither a cut nor a bit.
#ifndef HEADWAY_ENGINE_FOUND_SHARES_H_
#define HEADWAY_ENGINE_FOUND_SHARES_H_

#include <cstdint>
#include <string>

#include "base/env.h"
#include "engine/blueprint.h"
#include "engine/settings.h"
#include "kv/tiers/page_cache.h"
#include "model/config.h"

namespace headway {

// Reads of blocks in host memory by decode steps, and the tokens of these.
struct FoundCounts {
  int64_t found = 0;
  int64_t reads = 0;
  int64_t tokens = 0;
};
FoundCounts FoundIn(const kv::PageCache::Reads& reads);

// What counts are kept for: the model, by its folder and configuration, what a step lists, and how
// many steps' lists the cache holds, to within a fifth. Empty where nothing is kept: without a page
// cache, of random weights or ranks, and where the settings say so.
std::string FoundKey(const Settings& settings, const std::string& folder, const ModelConfig& config,
                     const Blueprint& blueprint);

// Gives a blueprint that key, and what is kept for it to its plan, whose times are predicted anew.
void UseFoundShare(Env& env, const std::string& key, Blueprint* blueprint);

// Adds to what is kept for a key. Of a context that decoded fewer tokens than kFewestFound nothing
// is kept: it tells how lines fill rather than what is found in them. Beyond kMostFound tokens all
// counts are halved, so that later texts count for more than earlier ones.
inline constexpr int64_t kFewestFound = 32;
inline constexpr int64_t kMostFound = int64_t{1} << 16;
void KeepFound(Env& env, const std::string& key, FoundCounts counts);

// The file that holds them.
std::string FoundSharesPath();

}  // namespace headway

#endif  // HEADWAY_ENGINE_FOUND_SHARES_H_
