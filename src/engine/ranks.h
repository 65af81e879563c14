// Ranks: how settings, budgets and a model are shared between the ranks of one process, each of
// which is an engine and a context of its own.
#ifndef HEADWAY_ENGINE_RANKS_H_
#define HEADWAY_ENGINE_RANKS_H_

#include <optional>
#include <vector>

#include "base/head_set.h"
#include "engine/head_assignment.h"
#include "engine/settings.h"
#include "headway/context.h"
#include "headway/plan.h"
#include "headway/status.h"
#include "model/config.h"
#include "model/weights/shard.h"
#include "parallel/communicator.h"

namespace headway {

inline constexpr int kMaxRanks = 64;

// Refuses by name what ranks do not do yet.
Status CheckRanks(const Settings& settings);

// What a rank is made with: its share of the threads and of each budget. The first has what does
// not divide, and the trace.
Settings SettingsOfRank(const Settings& settings, int rank);

// Of a model that ranks share: all of it, and this rank's part.
struct RankShare {
  ModelConfig whole;
  Shard shard;
};

// Each rank's part of a model, the first one's the largest, with the heads that it was assigned.
// kInvalidArgument where there are more ranks than d_ff or the vocabulary has rows.
Result<std::vector<Shard>> ShardsOf(const ModelConfig& config, const RankHeads& heads);

// The first rank's hooks on any rank: it alone calls them, and all end a request where it does.
// Both outlive the result.
Hooks HooksOfRank(const Hooks& hooks, Communicator& communicator);

// Makes a report of the first rank for so many sequences one of all, with the budgets of one
// machine; nothing without an assignment.
void TellOfRanks(const Settings& settings, const std::optional<HeadAssignment>& assignment,
                 int64_t sequences, PlanReport* report);
// The same of a refusal, whose figures are one rank's.
Status OfRanks(const Settings& settings, const Status& error);

}  // namespace headway

#endif  // HEADWAY_ENGINE_RANKS_H_
