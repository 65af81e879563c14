#include "engine/processes.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "engine/orders.h"
#include "engine/ranks.h"
#include "engine/refused.h"
#include "headway/engine.h"
#include "headway/processes.h"
#include "kernels/backend/backend.h"

namespace headway {
namespace {

// A process joins once, and MPI is the process's.
std::atomic<ProcessGroup*> g_joined = nullptr;

// The engines and contexts of a rank from 1 on, and what it does with them.
class Servant {
 public:
  Status Obey(const std::string& text, bool* leaves) {
    WireReader wire(text);
    Order order{};
    wire(order, id_);
    makes_ = order == Order::kOpen || order == Order::kContext;
    switch (order) {
      case Order::kLeave:
        *leaves = true;
        return OkStatus();
      case Order::kOpen:
        return Open(wire);
      case Order::kClose:
        Forget();
        return OkStatus();
      case Order::kContext:
        return NewContext(wire);
      case Order::kGenerate:
        return Generate(wire);
      case Order::kScore:
        return Score(wire);
      case Order::kSave:
        return contexts_.at(id_)->SaveSession();
      case Order::kFill:
        return Fill(wire);
      case Order::kReset:
        contexts_.at(id_)->Reset();
        return OkStatus();
      case Order::kTierBytes: {
        int tier = 0;
        wire(tier);
        contexts_.at(id_)->TierBytes(tier);
        return OkStatus();
      }
      case Order::kAttended: {
        int phase = 0;
        wire(phase);
        contexts_.at(id_)->AttendSeconds(static_cast<Progress::Phase>(phase));
        return OkStatus();
      }
    }
    return Status(StatusCode::kInternal, "an order that this rank does not know");
  }

  // What the last order has made, if it makes something, and the first rank does not have.
  void ForgetMade() {
    if (makes_) Forget();
  }

 private:
  // Those within which the first rank may save.
  static Hooks HooksThat(bool saves) {
    Hooks hooks;
    if (saves) hooks.on_progress = [](const Progress&) {};
    return hooks;
  }
  Status Open(WireReader& wire) {
    std::string model;
    EngineOptions options;
    wire(model, options);
    Result<std::unique_ptr<Engine>> engine = Engine::Open(model, options);
    if (engine.ok()) engines_[id_] = std::move(*engine);
    return engine.status();
  }
  Status NewContext(WireReader& wire) {
    int64_t engine = 0;
    Workload workload;
    wire(engine, workload);
    Result<std::unique_ptr<Context>> context = engines_.at(engine)->NewContext(workload);
    if (context.ok() && *context != nullptr) contexts_[id_] = std::move(*context);
    return context.status();
  }
  Status Generate(WireReader& wire) {
    std::vector<Request> requests;
    bool shows_text = false, saves = false;
    wire(requests, shows_text, saves);
    Hooks hooks = HooksThat(saves);
    if (shows_text) hooks.on_text = [](int, std::string_view) { return true; };
    return contexts_.at(id_)->Generate(requests, hooks).status();
  }
  Status Score(WireReader& wire) {
    std::vector<TokenId> tokens;
    Context::ScorePart part;
    bool saves = false;
    wire(tokens, part.begin, part.end, saves);
    return contexts_.at(id_)->Score(tokens, part, HooksThat(saves)).status();
  }
  Status Fill(WireReader& wire) {
    int slot = 0;
    int64_t tokens = 0;
    uint64_t seed = 0;
    double spread = 0.0;
    wire(slot, tokens, seed, spread);
    return contexts_.at(id_)->FillSynthetic(slot, tokens, seed, spread);
  }

  void Forget() {
    contexts_.erase(id_);
    engines_.erase(id_);
  }

  int64_t id_ = 0;  // of the last order
  bool makes_ = false;
  std::map<int64_t, std::unique_ptr<Engine>> engines_;
  std::map<int64_t, std::unique_ptr<Context>> contexts_;  // which end before their engines
};

}  // namespace

ProcessGroup* JoinedProcesses() { return g_joined; }

Status Together(ProcessGroup& group, const std::string& order,
                const std::function<Status()>& work) {
  if (group.rank() != 0) return work();
  return group.Run([&] {
    const Result<std::string> given = group.TextOfFirst(order);
    return given.ok() ? work() : given.status();
  });
}

int64_t NewSharedId() {
  static std::atomic<int64_t> last = 0;
  return ++last;
}

Settings SettingsOfProcess(const Settings& settings, const ProcessGroup& group) {
  Settings own = SettingsOfRank(settings, group.rank());
  if (!settings.target.threads.has_value()) {
    own.target.threads = std::max(1, ThreadPool(0).threads() / group.core_sharers());
  }
  own.target.device =
      *DeviceOfRank(settings.target.device, group.rank(), group.ranks(), group.rank_on_machine());
  own.gpu_ranks = own.mapped_ranks = 1;  // NCCL connects no others
  return own;
}

Status CheckProcesses(const ProcessGroup* group, const Settings& settings) {
  const int ranks = settings.ranks;
  if (group == nullptr || group->ranks() == ranks) return OkStatus();
  return Wrong({Option::kTensorParallel,
                fmt::format(" {}: each process is one rank, and the launcher started {}", ranks,
                            group->ranks())});
}

Processes::Processes(std::unique_ptr<ProcessGroup> group) : group_(std::move(group)) {
  g_joined = group_.get();
}

Processes::~Processes() {
  if (group_->rank() == 0) {
    // Without them it ends all, where that is needed.
    (void)Together(*group_, OrderOf(Order::kLeave, 0), [] { return OkStatus(); });
  }
  g_joined = nullptr;
}

int Processes::LaunchedRank() {
  const std::optional<Launch> launch = LaunchOfProcess();
  return launch.has_value() ? launch->rank : 0;
}

int Processes::rank() const { return group_->rank(); }

Result<std::unique_ptr<Processes>> Processes::Join(const std::string& same,
                                                   const std::string& differs) {
  const std::optional<Launch> launch = LaunchOfProcess();
  if (!launch.has_value()) return std::unique_ptr<Processes>();
  Result<std::unique_ptr<ProcessGroup>> group = JoinProcesses();
  if (!group.ok()) {
    // One process of a launcher runs as it does alone.
    if (launch->processes == 1) return std::unique_ptr<Processes>();
    return group.status();
  }
  const Status equal = (*group)->Run([&] {
    const auto own = static_cast<int64_t>(XXH3_64bits(same.data(), same.size()));
    const Result<int64_t> first = (*group)->communicator().OfFirst(own);
    if (!first.ok() || *first == own) return first.status();
    return Status(StatusCode::kInvalidArgument, "it has " + differs + " than rank 0");
  });
  if (!equal.ok()) return equal;
  return std::unique_ptr<Processes>(new Processes(std::move(*group)));
}

Status Processes::Serve() {
  Servant servant;
  bool leaves = false;
  while (!leaves && group_->broken().ok()) {
    const Status done = group_->Run([&] {
      const Result<std::string> order = group_->TextOfFirst("");
      return order.ok() ? servant.Obey(*order, &leaves) : order.status();
    });
    if (!done.ok()) servant.ForgetMade();
  }
  return group_->broken();
}

}  // namespace headway
