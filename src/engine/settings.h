// Settings: what an engine was asked for, read once from the options that a user fills. Here every
// value has a type of its own, what was left to the engine is absent, and all of it makes sense
// together as far as that can be known without a model and a machine.
#ifndef HEADWAY_ENGINE_SETTINGS_H_
#define HEADWAY_ENGINE_SETTINGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/types.h"
#include "hardware/meter.h"
#include "headway/options.h"
#include "headway/refusal.h"
#include "headway/status.h"
#include "kv/policy/eviction.h"
#include "kv/policy/placement.h"
#include "kv/policy/salience.h"
#include "kv/policy/selection.h"
#include "model/rope_config.h"
#include "model/self_extend.h"
#include "plan/assignment.h"
#include "plan/plan.h"

namespace headway {

// How the cache is cut and moved: as the planner says, or as a published method has it.
enum class Policy { kAuto, kHeadInfer, kLayerwise, kKvpr };
// What has asked for a selection: a selector, or drafts.
Option AskedForBy(const kv::SelectionPolicy& policy);
const char* SelectorName(const kv::SelectionPolicy& policy);  // "pages", "quest", ...
const char* FarPositionsName(kv::SelectionPolicy::FarPositions positions);
// Where keys count that infinitehip scores: "published", ...; of other selectors empty.
const char* HipPositionsName(const kv::SelectionPolicy& policy);
const char* PolicyName(Policy policy);  // "auto", "headinfer", ...

// Bytes that each tier may take.
struct MemorySettings {
  std::optional<int64_t> gpu;  // absent: what is free
  int64_t kv = kNoLimit;
  int64_t host = kNoLimit;
  int64_t disk = 0;            // of the temporary file of pages and weights
  std::string disk_directory;  // where that file is
};

// What the user fixes of the cut; absent: the planner's choice.
struct CutSettings {
  std::optional<int64_t> chunk;
  std::optional<int> head_group;
  std::optional<int64_t> segment;
  std::optional<int> staging_slabs;
  int page_slots = kDefaultPageSlots;
  bool page_fixed = true;  // else FitPages may change page_slots
};

// How closed pages are stored: as codes, or in a dtype, which must be the cache's.
using PageEncoding = std::variant<Encoding, DType>;

struct StreamingHeadsSettings {
  std::string pattern;  // file or folder
  std::optional<double> sparsity;
  std::optional<int64_t> sink, recent;  // tokens
};

struct SessionSettings {
  std::string path;
  // What happens where the budgets do not hold the cut that the file has.
  enum class Misfit { kRefuse, kRecut };
  Misfit misfit = Misfit::kRefuse;
};

// Drafts of tokens, which decode steps verify.
struct DraftSettings {
  // kSparse: Settings::selection has steps that draft. kModel: another model has.
  enum class By { kNone, kLookup, kSparse, kModel };
  By by = By::kNone;
  std::string model = {};  // folder or name
  int64_t tokens = 0;      // of a sequence in a step, at most; 0 where there are none
  // Drafts are any tokens, and each is taken as right with this probability.
  std::optional<double> acceptance;
};

// Of EngineOptions::draft: DraftSettings::By::kSparse.
inline constexpr const char* kSparseDrafts = "sparse";
// Of EngineOptions::placement: the policy's.
inline constexpr const char* kAutoPlacement = "auto";

struct Settings {
  hardware::Target target;
  int ranks = 1;        // that share the model, of which an engine may be one
  int layer_ranks = 1;  // of a run of its layers each, of which an engine may be one
  int nodes = 1;        // that these are on, as many on each
  plan::AssignmentMethod assignment = plan::AssignmentMethod::kBalanced;
  int assignment_copies = 0;
  std::optional<std::string> assignment_profile;  // file
  std::vector<double> assignment_shares;          // its, from LoadShares on; none without
  std::optional<int> machine_threads;             // those of all ranks, where it is one of several
  int gpu_ranks = 1;                              // that compute on this one's GPU
  // Each GPU of a process maps what any of its ranks pins: so many times what one pins is this
  // one's part of its GPU's page tables, where all pin as much.
  int mapped_ranks = 1;
  MemorySettings memory;
  std::optional<int> gpu_layers;  // absent: as many as fit
  bool lossless_weights = false;  // of the others, in host memory
  Policy policy = Policy::kAuto;
  plan::PromptOrder prompt_order = plan::PromptOrder::kAuto;
  kv::PlacementKind placement = kv::PlacementKind::kFirstFit;  // the policy's, if it has one
  CutSettings cut;
  PageEncoding encoding = Encoding::kNone;
  bool encoding_by_plan = false;  // a plan may have lossless pages instead (engine/encoding_choice)
  // Shares of the paths `host` and `recompute`; absent: the planner's choice.
  std::optional<double> host_share;
  std::optional<double> recompute_share;
  enum class Plans { kCorrected, kFrozen };
  Plans plans = Plans::kCorrected;  // whether the host's share follows the lanes
  std::optional<StreamingHeadsSettings> streaming_heads;
  kv::SelectionPolicy selection;
  kv::EvictionPolicy eviction;                  // without a profile's shares until LoadShares
  std::optional<std::string> eviction_profile;  // file
  kv::SaliencePolicy salience;
  std::optional<bool> salient_on_host;    // absent: as the planner finds it faster
  enum class Reach { kAuto, kOn, kOff };  // beyond the trained window; kAuto: where it is exceeded
  Reach reach = Reach::kAuto;
  std::optional<RopeScaling> rope_scaling;  // absent: as the model is
  SelfExtend self_extend;                   // as it is for contexts that are longer than its window
  std::optional<int64_t> sparse_from;       // absent: as is predicted
  bool levels_by_plan = false;              // the planner says whether pages are searched first
  bool blocks_by_plan = false;              // and whether blocks have more keys
  std::optional<int64_t> page_cache;        // bytes; absent: the planner's choice
  enum class FoundShares { kKept, kNone };
  FoundShares found_shares = FoundShares::kKept;  // what a page cache finds (engine/found_shares)
  std::optional<std::string> machine;             // name or file of a profile
  std::optional<SessionSettings> session;
  DraftSettings drafts;
  std::optional<std::string> trace;
  bool time_kernels = false;
  std::optional<int64_t> alias_host_memory;
  enum class Weights { kFromFiles, kRandom };
  Weights weights = Weights::kFromFiles;

  // Of either kind: only one of both is more than 1.
  int all_ranks() const { return ranks * layer_ranks; }

  // Bytes of disk that pages and weights may take. A session's file is the disk tier, too: as large
  // as it must be unless the user bounds it.
  int64_t DiskLimit() const;
};

// The one place where options are read and checked. kInvalidArgument for what makes no sense.
Result<Settings> ReadSettings(const EngineOptions& given);

}  // namespace headway

#endif  // HEADWAY_ENGINE_SETTINGS_H_
