// The inside of a Context: one workload's device, kernels, store, executor and slots.
#ifndef HEADWAY_ENGINE_CONTEXT_H_
#define HEADWAY_ENGINE_CONTEXT_H_

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/exceptions.h"
#include "base/thread_pool.h"
#include "device/budget.h"
#include "device/trace.h"
#include "engine/assembly.h"
#include "engine/blueprint.h"
#include "engine/generator.h"
#include "engine/orders.h"
#include "engine/ranks.h"
#include "engine/reconstruction.h"
#include "engine/session_meeting.h"
#include "engine/shared_save.h"
#include "engine/traced_counts.h"
#include "headway/context.h"
#include "kernels/backend/backend.h"
#include "parallel/process_group.h"
#include "parallel/rank_group.h"

namespace headway {

// What a context of plain pages is built by.
struct PlainContext {
  Blueprint blueprint;
  PlanReport report;
  const Settings* settings = nullptr;  // the engine's, but for the encoding
};

// The session that the stores of ranks in one process share, and its budget.
struct SharedSession {
  std::shared_ptr<kv::SlabFile> file;  // null without one
  Budget* budget = nullptr;
};

// What a context takes from its engine; all outlive it.
struct ContextParts {
  Env* env = nullptr;
  Backend* backend = nullptr;
  Budget* device_budget = nullptr;  // all that is on a device with its own memory; else null
  const Model* model = nullptr;
  const Tokenizer* tokenizer = nullptr;  // may be null
  const ChatTemplate* chat = nullptr;    // the same
  const Model* draft = nullptr;          // that drafts; the same
  const Settings* settings = nullptr;
  int64_t host_weights = 0;              // bytes of streamed weights in host memory
  int64_t disk_weights = 0;              // and of the disk's budget
  uint64_t weights_hash = 0;             // for a session
  Communicator* communicator = nullptr;  // of a rank; null: the model is whole
  const RankShare* share = nullptr;      // the same
  ProcessGroup* processes = nullptr;     // of a rank in a process of its own; else null
  SessionMeeting* meeting = nullptr;     // of such a rank with a session, while it is being made
  // Of the first of several ranks in one process, for the others; null for itself.
  const SharedSession* session = nullptr;
  // Of a context of lossless pages that can go on with plain ones; else null.
  std::function<Result<PlainContext>()> plain = nullptr;
};

struct Context::Impl {
  // `claim` is to the session of the settings; null where they name none. `report` is of the
  // blueprint.
  static Result<std::unique_ptr<Impl>> Create(const ContextParts& parts, const Blueprint& blueprint,
                                              const PlanReport& report,
                                              std::unique_ptr<kv::SessionClaim> claim);
  ~Impl();

  // Puts one of plain pages, with nothing in its slots, in the place of `impl`, whose memory goes
  // first. What fails then leaves one that is of no use.
  static Status GoOnPlain(std::unique_ptr<Impl>* impl, PlainContext plain);
  // Some numbers do not fit the cache's lossless pages.
  bool HasUnfitPages() const { return assembly.store->HasUnfitPages(); }

  Status Build(const Blueprint& blueprint, std::unique_ptr<kv::SessionClaim> claim);
  // Device and kernels of an assembly.
  Status OpenDevice(Assembly* of);
  // What runs the steps of the model that drafts, if there is one; it takes of the same budgets.
  Status BuildDraft(const Blueprint& blueprint);
  void GiveBudgets(Layout* layout);
  // kInvalidArgument for the session of another model; MakeBlueprint compares the configurations.
  Status CheckSession(const kv::Manifest& manifest) const;
  uint64_t TokenizerHash() const;
  kv::SessionHeads HeadsInSession() const;
  // Of the session's file, which ranks in one process have one budget for.
  static int64_t DiskLimit(const ContextParts& parts);
  // Of the session what a rank in a process of its own has.
  kv::SlabFileShare ShareOfSession() const;
  // The session's file: null without one. `claim` is null for ranks from 1 on.
  Result<std::shared_ptr<kv::SlabFile>> OpenSession(std::unique_ptr<kv::SessionClaim> claim,
                                                    const kv::CacheFormat& format);
  Result<std::unique_ptr<kv::SlabFile>> OpenClaimed(std::unique_ptr<kv::SessionClaim> claim,
                                                    const kv::CacheFormat& format);
  // The same on ranks in processes, which open what the first one has.
  Result<std::unique_ptr<kv::SlabFile>> OpenTogether(std::unique_ptr<kv::SessionClaim> claim,
                                                     const kv::CacheFormat& format);
  // Of such ranks the first one's claim, once each head has slabs of its own.
  Result<std::unique_ptr<kv::SessionClaim>> Split(std::unique_ptr<kv::SessionClaim> claim) const;
  // The path `host` and its share, of which the plan is told, if the settings want it.
  Status MakeHostAttention(const Blueprint& blueprint);
  Status RestoreSession(const kv::Manifest& manifest);
  kv::Manifest SessionMeta(std::string_view note) const;
  // What this rank has of the session, written to its file, which ranks in one process share.
  Result<kv::Manifest> WriteSession(std::string_view note);
  // Of the first of them: what all have written, as one. The same on each of those in processes.
  Status SaveOnRanks(std::string_view note);
  Status SaveInProcess(std::string_view note);
  // Of their first: what it has, and what the others have told it of theirs.
  Status CommitParts(Result<kv::Manifest> own, const std::vector<std::string>& others);
  // Whether others must take part in what the first one does within its on_progress.
  bool MaySave(const Hooks& hooks) const {
    return session.file != nullptr && hooks.on_progress != nullptr;
  }
  // `hooks`, with which a save within on_progress is one of all ranks.
  Hooks HooksOf(Impl& rank, const Hooks& hooks);

  // Of the first rank in this process: what it does, on all of them; `order` is for ranks in other
  // processes.
  Status EachRank(const std::string& order, const std::function<Status(Impl& rank)>& work);
  // The same with hooks, within some of which sessions are saved.
  Status CallRanks(const std::string& order, const std::function<Status(Impl& rank)>& work);
  // Empty where no other rank needs it.
  template <typename... Arguments>
  std::string OrderTo(Order order, const Arguments&... arguments) const {
    return shared_id.has_value() ? OrderOf(order, *shared_id, arguments...) : std::string();
  }
  bool shared() const { return parts.communicator != nullptr; }
  Result<std::vector<Generation>> GenerateOnRanks(std::span<const Request> requests,
                                                  const Hooks& hooks);
  Result<ScoreResult> ScoreOnRanks(std::span<const TokenId> tokens, const ScorePart& part,
                                   const Hooks& hooks);
  // kUnsupported for what ranks do not do.
  Status CheckOneRank(const char* what) const;
  int64_t TierBytes(Tier tier) const;  // of this rank
  int64_t TierBytesOfRanks(Tier tier) const;
  std::vector<std::vector<double>> AttendSecondsOfRanks(Progress::Phase phase) const;

  explicit Impl(const ContextParts& p);

  const ContextParts parts;
  // In the order in which they are built; destroyed in reverse.
  std::unique_ptr<RankGroup> group;  // of the first of several ranks in this process; else null
  ProcessGroup* const processes;     // as in the parts
  std::optional<int64_t> shared_id;  // by which the others know the first one's context
  Trace trace;
  Budget kv_budget, host_budget, disk_budget;
  Budget memory_budget;  // RAM that no other budget counts
  ThreadPool pool;
  std::unique_ptr<ThreadPool> host_pool;  // of the path `host`; null without it
  Assembly assembly;
  // Where another model drafts.
  Assembly draft_assembly;
  std::unique_ptr<DraftModel> draft_model;
  std::unique_ptr<Reconstruction> reconstruction;  // where prompts are repeated; else null
  std::optional<TracedCounts> traced_counts;       // where there is a trace
  std::unique_ptr<Generator> generator;
  PlanReport plan;
  SharedSession session;  // of the first of several ranks in this process, or of one in its own
  SharedSave saving;      // into it
  int64_t session_tokens = 0;
  std::string session_note;
  std::string found_key;  // the blueprint's, or empty where nothing is to be kept
  std::vector<std::unique_ptr<Impl>> others;  // where there is a group: its ranks from 1 on
  Status broken;  // an exception ended a call at some point or other: the context is of no more use

  // For a catch block: from now on every call fails with what the exception says.
  Status Break() {
    broken = StatusOfException();
    return Guarded([this] { return broken; });  // a copy, which takes memory
  }
};

// The manifest of the session of the settings, read without a claim to it; one of no layers where
// there is none. For planning without opening a context.
Result<kv::Manifest> SessionManifest(Env& env, const Settings& settings);

// Threads that attend to pages in host memory, where the kernels of the target have `threads`:
// beside an accelerator, or beside kernels that run on the same cores.
enum class CoresBeside { kAccelerator, kKernels };
int HostThreads(const hardware::Target& target, int threads, CoresBeside beside);

}  // namespace headway

#endif  // HEADWAY_ENGINE_CONTEXT_H_
