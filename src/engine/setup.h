// Setup: from a model, options and a workload to what the planner asks and what the store is made
// of. The one place where the planner's choice meets the rooms that it speaks of.
#ifndef HEADWAY_ENGINE_SETUP_H_
#define HEADWAY_ENGINE_SETUP_H_

#include <string>

#include "device/budget.h"
#include "engine/executor.h"
#include "engine/machine_profile.h"
#include "headway/engine.h"
#include "headway/status.h"
#include "kernels/backend/backend.h"
#include "kernels/kernels.h"
#include "kv/session/slab_file.h"
#include "kv/store/store.h"
#include "model/model.h"
#include "plan/plan.h"

namespace headway {

struct Setup {
  plan::Plan plan;
  kv::StoreOptions store;  // its budgets are not set
  ExecutorLimits executor;
  KernelLimits kernels;
};

// kInvalidArgument for numbers out of range that nothing else would refuse.
Status CheckOptions(const EngineOptions& options);

// The error for a session of another model; `what` says how it differs.
Status OtherModel(const EngineOptions& options, const std::string& what);

// Bytes of K and V of one token in all layers and heads, in closed pages of the encoding asked for,
// without what pads pages.
int64_t ClosedBytesPerToken(const ModelShape& shape, const EngineOptions& options);

// Of options.placement, or of the policy. kInvalidArgument for names that there are not, and for a
// policy together with what it fixes.
Result<kv::PlacementKind> PlacementOf(const EngineOptions& options);

// Bytes that the disk tier and weights on disk may take. A session's file is that tier, too: as
// large as it must be unless the user bounds it.
int64_t DiskMemoryLimit(const EngineOptions& options);

// Whether the share of the path `host` is the planner's to choose: where the host has cores beside
// the device, and no policy leaves them out.
bool PlansHostShare(const EngineOptions& options, const BackendInfo& backend);

// What a plan must know of the machine and the program.
struct SetupMemory {
  int64_t program_bytes = 0;  // beside weights, KV and activations
  BackendInfo backend;
  const Budget* device_budget = nullptr;   // null where device memory is the host's
  const plan::Machine* machine = nullptr;  // that cuts are chosen for, or null
  // Whose weights are on the device and on disk already, as a plan before had it; -1: not placed.
  int weight_layers = -1;
  int disk_layers = -1;
};

// What the planner is asked. `session` is the manifest of the session file, or null, or one of no
// layers: an existing session fixes how slabs are cut, also before it holds any.
Result<plan::PlanRequest> MakePlanRequest(const ModelConfig& config, const WeightBytes& weights,
                                          const EngineOptions& options, const Workload& workload,
                                          const kv::HeadPattern& pattern,
                                          const kv::Manifest* session, const KernelSizes& kernels,
                                          const SetupMemory& memory);

// plan::MakePlan of what MakePlanRequest made with this session. Where nothing but the session's
// cut keeps it from fitting, the error says so; with session_recut the request is freed of that
// cut.
Result<plan::Plan> MakeSessionPlan(const EngineOptions& options, const kv::Manifest* session,
                                   plan::PlanRequest* request);

// Plans and derives all that is needed to build a context.
Result<Setup> MakeSetup(const ModelConfig& config, const WeightBytes& weights,
                        const EngineOptions& options, const Workload& workload,
                        const kv::HeadPattern& pattern, const kv::Manifest* session,
                        const KernelSizes& kernels, const SetupMemory& memory);

// What the plan's times say, of all sequences of the workload.
Prediction PredictionOf(const plan::Plan& plan, const ChosenMachine& machine,
                        const Workload& workload);
// Of a phase under a plan that was made for sequences at least as long.
double PhaseSeconds(const plan::Machine& machine, const plan::PlanRequest& request,
                    const plan::Plan& plan, const Phase& phase);

// Of a model with so many layers.
PlanReport ReportOf(const plan::Plan& plan, const plan::SmallestBudgets& smallest, int layers,
                    bool own_memory);

}  // namespace headway

#endif  // HEADWAY_ENGINE_SETUP_H_
