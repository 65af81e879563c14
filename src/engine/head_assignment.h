// Which of the ranks that share a model attend for which of its KV heads, by what these will keep
// of prompts.
#ifndef HEADWAY_ENGINE_HEAD_ASSIGNMENT_H_
#define HEADWAY_ENGINE_HEAD_ASSIGNMENT_H_

#include <string>

#include "base/head_set.h"
#include "base/types.h"
#include "engine/settings.h"
#include "headway/plan.h"
#include "headway/status.h"
#include "plan/assignment.h"

namespace headway {

struct HeadAssignment {
  plan::AssignmentMethod method = plan::AssignmentMethod::kBalanced;
  int copies = 0;
  bool profiled = false;  // loads are what a profile says; else they are all the same
  plan::HeadLoads loads;  // keys that each head keeps of a long prompt, of every sequence
  plan::Assignment assignment;
  double static_busy = 1.0;  // the busy share of heads in their order

  // As one of the ranks knows it.
  RankHeads Of(int rank) const;
};

// kInvalidArgument for another name, and for one that is given without ranks.
Result<plan::AssignmentMethod> ReadAssignment(const EngineOptions& options);
const char* AssignmentName(plan::AssignmentMethod method);

// With the shares that LoadShares has read. No rank has more heads of a layer than it takes for all
// of them to have a rank, but for one more where ranks may have the same heads.
HeadAssignment AssignHeads(const ModelShape& shape, const Settings& settings);

// What a user is told of it.
RanksReport RanksReportOf(const HeadAssignment& assignment);

}  // namespace headway

#endif  // HEADWAY_ENGINE_HEAD_ASSIGNMENT_H_
