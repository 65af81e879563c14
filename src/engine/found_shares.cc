#include "engine/found_shares.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <optional>
#include <vector>

#include "base/user_cache.h"
#include "engine/kept_lines.h"
#include "model/config_identity.h"
#include "plan/plan.h"

namespace headway {
namespace {

constexpr const char* kFile = "found-shares";

// Counts that KeepFound may have written; none where they cannot be such.
std::optional<FoundCounts> Sound(const std::optional<std::vector<uint64_t>>& numbers) {
  if (!numbers.has_value()) return std::nullopt;
  const FoundCounts counts = {static_cast<int64_t>((*numbers)[0]),
                              static_cast<int64_t>((*numbers)[1]),
                              static_cast<int64_t>((*numbers)[2])};
  const bool sound = counts.found >= 0 && counts.found <= counts.reads && counts.reads > 0 &&
                     counts.tokens > 0 && counts.tokens <= kMostFound;
  return sound ? std::optional(counts) : std::nullopt;
}

// What of a policy says which blocks a decode step lists.
std::string ListsOf(const kv::SelectionPolicy& policy, int64_t length) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", SelectorName(policy),
                     policy.summary.block_slots, policy.KeysAt(length), policy.sink, policy.recent,
                     policy.top_p, policy.bound.epsilon, policy.breadth, policy.search_slots,
                     policy.candidates_refresh, policy.stages[0].refresh, policy.outer_keys,
                     policy.refresh, policy.drafts(), policy.reaches());
}

}  // namespace

std::string FoundSharesPath() { return UserCachePath(kFile); }

std::string FoundKey(const Settings& settings, const std::string& folder, const ModelConfig& config,
                     const Blueprint& blueprint) {
  const double steps = blueprint.plan.page_cache_steps;
  const bool kept = settings.found_shares == Settings::FoundShares::kKept &&
                    settings.weights == Settings::Weights::kFromFiles && settings.all_ranks() == 1;
  if (!kept || steps <= 0.0) return "";
  std::error_code error;
  const std::string place = std::filesystem::weakly_canonical(folder, error).string();
  const int64_t length = *std::max_element(blueprint.lengths.begin(), blueprint.lengths.end());
  // In steps of the root of two.
  const int64_t lines = std::llround(2.0 * std::log2(steps));
  return KeptLines::KeyOf(fmt::format("{}\n{}\n{}\n{} {}", error ? folder : place,
                                      ConfigIdentity(config),
                                      ListsOf(blueprint.layout.executor.selection, length),
                                      static_cast<int>(settings.placement), lines));
}

void UseFoundShare(Env& env, const std::string& key, Blueprint* blueprint) {
  blueprint->found_key = key;
  if (key.empty()) return;
  const std::optional<FoundCounts> counts = Sound(KeptLines(env, kFile, 3).Find(key));
  if (!counts.has_value()) return;
  blueprint->request.found = {
      .share = static_cast<double>(counts->found) / static_cast<double>(counts->reads),
      .tokens = static_cast<double>(counts->tokens),
      .steps = blueprint->plan.page_cache_steps};
  blueprint->plan.found = blueprint->request.found;
  if (blueprint->request.machine != nullptr) plan::Predict(blueprint->request, &blueprint->plan);
}

FoundCounts FoundIn(const kv::PageCache::Reads& reads) {
  const int64_t all = std::reduce(reads.decode.begin(), reads.decode.end(), int64_t{0});
  return {reads.decode[BlockCache::kFound], all, reads.tokens};
}

void KeepFound(Env& env, const std::string& key, FoundCounts counts) {
  if (key.empty() || counts.tokens < kFewestFound || counts.reads <= 0) return;
  KeptLines kept(env, kFile, 3);
  if (const std::optional<FoundCounts> before = Sound(kept.Find(key)); before.has_value()) {
    counts.found += before->found;
    counts.reads += before->reads;
    counts.tokens += before->tokens;
  }
  while (counts.tokens > kMostFound) {
    counts = {counts.found / 2, counts.reads / 2, counts.tokens / 2};
  }
  const std::array<uint64_t, 3> numbers = {static_cast<uint64_t>(counts.found),
                                           static_cast<uint64_t>(counts.reads),
                                           static_cast<uint64_t>(counts.tokens)};
  kept.Keep(key, numbers);
}

}  // namespace headway
