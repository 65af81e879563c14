// The pattern of streaming heads that the settings name.
#ifndef HEADWAY_ENGINE_HEAD_PATTERN_H_
#define HEADWAY_ENGINE_HEAD_PATTERN_H_

#include <vector>

#include "base/env.h"
#include "base/head_set.h"
#include "base/types.h"
#include "engine/settings.h"
#include "headway/status.h"
#include "kv/policy/head_pattern.h"

namespace headway {

// No streaming heads unless the settings have them. The error is that of the file, or
// kInvalidArgument for a session together with heads that stream.
Result<kv::HeadPattern> LoadHeadPattern(Env& env, const Settings& settings,
                                        const ModelShape& shape);

// Each rank's part of a pattern of all heads, of as many heads of a layer as each rank has places
// for. What stands there for heads that it lacks streams where any head does.
std::vector<kv::HeadPattern> PatternsOfRanks(const kv::HeadPattern& whole, const RankHeads& heads,
                                             int places);

// One plan is everybody's. What it counts in each layer: the slabs of the rank with the most heads
// that keep everything, and streaming heads of the rank with the most of these.
std::vector<int> MostSlabHeads(const std::vector<kv::HeadPattern>& patterns, int places);
kv::HeadPattern MostStreaming(const std::vector<kv::HeadPattern>& patterns);

}  // namespace headway

#endif  // HEADWAY_ENGINE_HEAD_PATTERN_H_
