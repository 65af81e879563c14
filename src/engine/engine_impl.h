// The inside of an Engine: an open model, or a rank's shard of it, and what contexts of it take.
#ifndef HEADWAY_ENGINE_ENGINE_IMPL_H_
#define HEADWAY_ENGINE_ENGINE_IMPL_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/head_set.h"
#include "base/thread_pool.h"
#include "device/budget.h"
#include "engine/blueprint.h"
#include "engine/context.h"
#include "engine/draft_plan.h"
#include "engine/head_assignment.h"
#include "engine/model_info.h"
#include "engine/ranks.h"
#include "engine/settings.h"
#include "hardware/profiles.h"
#include "headway/engine.h"
#include "kernels/backend/backend.h"
#include "model/model.h"
#include "parallel/process_group.h"
#include "text/template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace headway {

// The model that drafts for an engine's.
struct DraftSource {
  DraftBasis basis;
  std::unique_ptr<Device> device;  // of the weights, where it has its own memory
  std::unique_ptr<Model> model;
  bool placed = false;  // its weights are where they are used
};

struct Engine::Impl {
  Impl(Env* e, Settings s)
      : env(e),
        settings(std::move(s)),
        pool(settings.target.pool_threads()),
        host_budget(Option::kHostMemory, settings.memory.host),
        disk_budget(Option::kDiskMemory, settings.DiskLimit()) {}

  Env* const env;
  Settings settings;
  ThreadPool pool;  // for loading and planning; a context has its own
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Kernels> kernels;
  // Where the device has its own memory: what is there, the weights once a context needs them.
  std::optional<Budget> device_budget;
  Reservation driver_memory;
  std::unique_ptr<Device> device;
  Budget host_budget, disk_budget;  // of weights that stream
  // Whose weights are on the device, and of the others on disk, once they are moved.
  std::optional<int> placed_layers, placed_on_disk;
  Status moved;  // why that did not work
  std::mutex moving;
  std::mutex claiming;
  std::unique_ptr<kv::SessionClaim> claim;  // not yet a context's
  std::optional<uint64_t> weights_hash;     // once it was needed
  std::unique_ptr<Model> model;
  kv::HeadPattern pattern;
  std::vector<kv::HeadPattern> rank_patterns;  // of all ranks, where there are several
  std::unique_ptr<Tokenizer> tokenizer;        // null when the folder has none, which is why then:
  Status no_tokenizer;
  std::unique_ptr<ChatTemplate> chat;  // null when the folder has none
  std::unique_ptr<DraftSource> draft;  // null without
  ModelInfo info;
  int64_t program_bytes = ProgramBytes(0);
  std::optional<hardware::ChosenProfile>
      machine;                          // that cuts are chosen for; empty: by the planner's rule
  std::optional<MachineProfile> quick;  // measured for predictions alone
  // Where ranks share the model: which of them has which heads.
  std::optional<HeadAssignment> assignment;
  RankHeads heads;
  // Where ranks in this process share the model: those from 1 on. Each has a shard and what a
  // context of it takes.
  std::vector<std::unique_ptr<Impl>> others;
  // Where ranks in processes share it: of which this process is one; else null.
  ProcessGroup* processes = nullptr;
  std::unique_ptr<Communicator> links;  // between their GPUs; null where hosts read all memory
  int64_t link_memory = 0;              // of the GPU, that these take
  Reservation link_reservation;
  std::optional<int64_t> smallest_device;  // of all of them, what each may take of its GPU
  std::optional<Settings> plain;     // but for the encoding those above, once a context needs them
  std::optional<int64_t> shared_id;  // by which the other processes know the engine
  int all_threads = 0;               // of all processes
  uint64_t model_hash = 0;           // the same in all of them
  std::optional<RankShare> share;    // where ranks share the model

  // The model, or the shard of each rank, and what is told of it.
  Status LoadModel(const Settings& all, const std::string& folder);
  // The same of ranks with a run of layers each.
  Status LoadRuns(const Settings& all, const ModelConfig& config, const std::string& folder);
  // The pattern of streaming heads, or each rank's part of it.
  Status LoadPattern();
  // Reads the profiles of heads, and says which rank has which heads.
  Status Assign(const ModelConfig& config, const std::string& folder);
  // With null the model is whole.
  Status LoadShard(const ModelConfig& config, const std::string& folder, const Shard* shard);
  Status LoadText(const std::string& folder);
  // The model that drafts, behind LoadText, if the settings name one.
  Status LoadDraft();
  // kInvalidArgument where its tokens are others than the model's.
  Status CompareTokens(const std::string& folder) const;
  Status OpenBackend();
  // What a plan's error means, and whether what it takes of a device with its own memory is free.
  Status Explain(const Status& error) const;
  Status CheckRoom(const PlanReport& plan);
  // Puts the weights where a plan has them, the first one.
  Status MoveWeights(const PlanReport& plan);
  // The same of the model that drafts.
  Status MoveDraft();
  Status FindMachine();
  // The session of the settings becomes this process's: until a context of it ends, or the engine.
  Status ClaimSession();
  // What it holds; of no layers where there is none.
  Result<kv::Manifest> Session();
  // Hashes the weights, for a session.
  Status FindFingerprint();
  // With null the planner is asked; ranks have the first one's plan.
  Result<Blueprint> Draw(const Workload& workload, const plan::Plan* plan = nullptr);
  // The same under other settings.
  Result<Blueprint> DrawUnder(const Settings& given, const Workload& workload,
                              const plan::Plan* plan);
  // Of ranks with a run of layers each those behind the first, which cut their caches as it does;
  // of others none.
  Result<std::vector<Blueprint>> DrawRuns(const Workload& workload, const Blueprint& first);
  // What a context of lossless pages becomes where some do not fit: of the same chunks and
  // segments, so that sums are taken in the same order.
  Result<PlainContext> DrawPlain(const Workload& workload, const plan::CacheChoice& cut);
  // Whether there is that: an encoding of its own belongs to a session, and to what is kept.
  bool MayGoOnPlain(const Blueprint& blueprint) const;
  // Of the ranks in this process: what each may take of its GPU, one with a run of layers its own,
  // and the GPUs; empty without.
  int64_t SmallestDevice() const;
  std::vector<int> Gpus() const;
  // Of all ranks; `runs` are what DrawRuns says.
  PlanReport Report(const Blueprint& blueprint, const std::vector<Blueprint>& runs) const;
  ContextParts PartsOfContext(Communicator* communicator);
  // The context of the model, or of the shards in this process.
  Result<std::unique_ptr<Context>> MakeContext(const Workload& workload, const Blueprint& blueprint,
                                               SessionMeeting* meeting = nullptr);
  // The same in all processes, and by the plan of the first one's shard.
  Result<std::unique_ptr<Context>> MakeContextTogether(const Workload& workload);
  // Arranges `meeting` where there are a plan and a session.
  Result<Blueprint> DrawTogether(const Workload& workload, SessionMeeting* meeting);
  // Whether all processes have the same model open; `engine` is null where this one has none. An
  // error where this one has another model than the first.
  static Result<bool> CompareModels(ProcessGroup& group, Engine* engine);
  // Connects their GPUs, if they have some.
  Status ConnectProcesses();
  // The contexts of the other ranks in this process, beside the first one's.
  Status AddContexts(const Workload& workload, const Blueprint& first,
                     const std::vector<Blueprint>& runs, const PlanReport& report,
                     Context::Impl* context);
  Budget* fast_budget() { return device_budget.has_value() ? &*device_budget : nullptr; }
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_ENGINE_IMPL_H_
