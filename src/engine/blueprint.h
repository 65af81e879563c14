// Blueprint: all that a context is built by, made once from a model, the settings, a workload and a
// machine. `headway plan` prints one, a context is built from one.
#ifndef HEADWAY_ENGINE_BLUEPRINT_H_
#define HEADWAY_ENGINE_BLUEPRINT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/head_set.h"
#include "base/machine_profile.h"
#include "engine/layout.h"
#include "engine/settings.h"
#include "headway/plan.h"
#include "headway/status.h"
#include "kernels/backend/backend.h"
#include "kernels/kernels.h"
#include "kv/policy/head_pattern.h"
#include "kv/session/manifest.h"
#include "model/model.h"
#include "plan/plan.h"

namespace headway {

// What a blueprint is made from. Pointers outlive the blueprint, those that are marked may be null.
struct BlueprintInputs {
  const Settings* settings = nullptr;
  // The model, and the pattern of its streaming heads.
  const ModelConfig* config = nullptr;
  const ModelConfig* whole = nullptr;  // of a shard, that of the whole model; else null
  WeightBytes weights;
  const kv::HeadPattern* pattern = nullptr;
  const RankHeads* heads = nullptr;  // which of several ranks has which heads; null: there is one
  // Of all ranks; null where there is one.
  const std::vector<kv::HeadPattern>* rank_patterns = nullptr;
  // The manifest of the session file, of no layers where there is none: an existing session fixes
  // how slabs are cut, also before it holds any.
  const kv::Manifest* session = nullptr;
  // Where it will run.
  BackendInfo backend;
  const KernelSizes* kernels = nullptr;
  std::optional<int64_t> device_memory;     // that may be taken, of a device with its own memory
  const MachineProfile* machine = nullptr;  // that cuts are chosen for; may be null
  int64_t program_bytes = 0;                // beside weights, KV and activations
  // A plan that was made elsewhere, which the planner is not asked for: tests cut caches as it
  // never would. May be null.
  const plan::Plan* plan = nullptr;
  // What a model that drafts takes, and how long for a draft of each sequence.
  plan::ModelBeside beside;
  double draft_seconds = 0.0;
  // The layers whose weights are on the device and on disk already, where they are placed.
  std::optional<int> weight_layers, disk_layers;

  const ModelConfig& Whole() const { return whole == nullptr ? *config : *whole; }
  std::vector<kv::HeadPattern> Patterns() const {
    return rank_patterns == nullptr ? std::vector{*pattern} : *rank_patterns;
  }
};

// Sequences of a workload at most.
inline constexpr int64_t kMaxSequences = 4096;

// How many sequences fit the budgets where tokens are let go of, and with all tokens on the device.
struct Admission {
  int64_t kept = 0;
  int64_t whole = 0;
};

struct Blueprint {
  plan::PlanRequest request;  // what the planner was asked
  bool own_memory = false;    // of the device
  plan::Plan plan;
  Layout layout;
  std::vector<int64_t> lengths;  // of the workload; where tokens are let go the request has one
  std::optional<Admission> admission;  // where a plan alone was asked for, of its longest sequence
  std::shared_ptr<const Blueprint> draft;  // of the model that drafts; null without
  int64_t kv_bytes_per_token = 0;          // of PlanReport, with ranks of all that share its layers
  std::string encoding_reason;             // of one that nobody asked for; else empty
  std::string found_key;  // what a page cache finds is kept for (engine/found_shares); or empty
};

// kOutOfBudget where nothing fits. Where nothing but the session's cut keeps it from fitting, the
// error says so, or the plan is free of that cut, as the settings have it.
Result<Blueprint> MakeBlueprint(const BlueprintInputs& inputs, const Workload& workload);

// The largest number of sequences of this length that fit the settings' budgets, whatever the cut;
// kMaxSequences where more would.
int64_t FittingSequences(BlueprintInputs inputs, int64_t length);

// Bytes of K and V of one token in all layers and heads, in closed pages of this format, without
// what pads pages.
int64_t ClosedBytesPerToken(const ModelShape& shape, const PageFormat& page);

// Whether the share of the path `host` is the planner's to choose: where the host has cores beside
// the device, and no policy leaves them out, as selection does, whose kernels read host memory.
bool PlansHostShare(const Settings& settings, const BackendInfo& backend);

}  // namespace headway

#endif  // HEADWAY_ENGINE_BLUEPRINT_H_
