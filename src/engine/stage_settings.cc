#include "engine/stage_settings.h"

#include <charconv>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "engine/refused.h"
#include "headway/plan.h"

namespace headway {
namespace {

// "256:32768,32:8192": chunks of 256 keys, of which those of 32768 keys survive, then of 32 keys.
bool ParseStages(std::string_view text, kv::SelectionPolicy& policy) {
  for (kv::SelectionPolicy::Stage& stage : policy.stages) {
    if (text.empty()) return true;
    const char* end = text.data() + text.size();
    const auto chunk = std::from_chars(text.data(), end, stage.chunk);
    if (chunk.ec != std::errc() || chunk.ptr == end || *chunk.ptr != ':') return false;
    const auto keys = std::from_chars(chunk.ptr + 1, end, stage.keys);
    if (keys.ec != std::errc() || stage.chunk < 1) return false;
    if (keys.ptr != end && (*keys.ptr != ',' || keys.ptr + 1 == end)) return false;
    text.remove_prefix(static_cast<size_t>(keys.ptr - text.data()) + (keys.ptr != end ? 1 : 0));
  }
  return text.empty();
}

// "16,8": a number for each stage that there is.
bool ParseStageRefresh(std::string_view text, kv::SelectionPolicy& policy) {
  const char* at = text.data();
  const char* const end = at + text.size();
  for (kv::SelectionPolicy::Stage& stage : policy.stages) {
    if (stage.chunk == 0) break;
    if (at != text.data() && (at == end || *at++ != ',')) return false;
    const auto read = std::from_chars(at, end, stage.refresh);
    if (read.ec != std::errc()) return false;
    at = read.ptr;
  }
  return at == end;
}

// A stage that is renewed renews those behind it, so it is due with them.
Status ReadStageRefresh(const EngineOptions& options, kv::SelectionPolicy* policy) {
  if (options.hip_refresh.empty()) return OkStatus();
  const Status wrong =
      Wrong({Option::kHipRefresh,
             ": '" + options.hip_refresh + "' is not a number of tokens for each stage of ",
             Option::kHipStages, ", each a multiple of the next, and the last of ",
             Option::kSparseRefresh, ", " + std::to_string(policy->refresh)});
  if (!ParseStageRefresh(options.hip_refresh, *policy)) return wrong;
  int64_t next = policy->refresh;
  for (auto stage = policy->stages.rbegin(); stage != policy->stages.rend(); ++stage) {
    if (stage->chunk == 0) continue;
    if (stage->refresh < next || stage->refresh % next != 0 || stage->refresh > kMaxLength) {
      return wrong;
    }
    next = stage->refresh;
  }
  return OkStatus();
}

// No length could have stages that keep more than the one before leaves them, or a last one that
// leaves fewer keys than heads choose.
Status CheckStageKeys(const EngineOptions& options, const kv::SelectionPolicy& policy) {
  std::string last;
  int64_t left = 0;
  for (size_t i = 0; i < policy.stages.size() && policy.stages[i].chunk > 0; ++i) {
    const kv::SelectionPolicy::Stage& stage = policy.stages[i];
    const int64_t kept = RoundUp(stage.keys, stage.chunk);  // whole chunks survive
    last = ": stage " + std::to_string(i + 1) + " of '" + options.hip_stages + "' keeps " +
           std::to_string(kept) + " keys, ";
    if (i > 0 && kept > left) {
      return Wrong({Option::kHipStages, last + "more than the " + std::to_string(left) +
                                            " that the one before leaves"});
    }
    left = kept;
  }
  const bool outer = policy.outer_keys > policy.keys;
  const int64_t chosen = outer ? policy.outer_keys : policy.keys;
  if (last.empty() || left >= chosen) return OkStatus();
  return Wrong({Option::kHipStages, last + "fewer than the " + std::to_string(chosen) + " of ",
                outer ? Option::kHipOuterKeys : Option::kSparseKeys, " that heads choose of them"});
}

}  // namespace

Status ReadStages(const EngineOptions& options, kv::SelectionPolicy* policy) {
  const Status wrong =
      Wrong({Option::kHipStages, ": '" + options.hip_stages +
                                     "' are not up to two pairs of a chunk and the keys that "
                                     "survive, with chunks that the next ones, and blocks of " +
                                     std::to_string(policy->summary.block_slots) + ", divide"});
  if (!ParseStages(options.hip_stages, *policy)) return wrong;
  int64_t next = policy->summary.block_slots;
  for (auto stage = policy->stages.rbegin(); stage != policy->stages.rend(); ++stage) {
    if (stage->chunk == 0) continue;
    if (stage->chunk <= next || stage->chunk % next != 0 || stage->chunk > kMaxLength ||
        stage->keys < 1 || stage->keys > kMaxLength) {
      return wrong;
    }
    next = stage->chunk;
  }
  if (options.hip_outer_keys < 0 || options.hip_outer_keys > kMaxLength) {
    return Wrong(
        {Option::kHipOuterKeys,
         " is 0, for as many keys as in other layers, or more, but not more than a sequence "
         "may have"});
  }
  if (options.sparse_top_p > 0.0) {
    return Wrong({Option::kSparseTopP, " needs shares of attention, which infinitehip has not"});
  }
  policy->outer_keys = options.hip_outer_keys;
  if (Status s = CheckStageKeys(options, *policy); !s.ok()) return s;
  return ReadStageRefresh(options, policy);
}

}  // namespace headway
