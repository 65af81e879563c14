// Headway's public API: open a model, plan, generate, score.
//
//   Result<std::unique_ptr<Engine>> engine = Engine::Open("models/demo", {});
//   Result<std::vector<TokenId>> prompt = (*engine)->Encode("Once upon a time", {});
//   Workload workload{{static_cast<int64_t>(prompt->size()) + 64}};
//   Result<std::unique_ptr<Context>> context = (*engine)->NewContext(workload);
//   Result<std::vector<Generation>> result = (*context)->Generate({{Request{*prompt}}}, {});
//
// Several engines can live in one process. An Engine may be used by several threads, a Context by
// one at a time. No function throws.
#ifndef HEADWAY_ENGINE_H_
#define HEADWAY_ENGINE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headway/context.h"
#include "headway/machine.h"
#include "headway/options.h"
#include "headway/plan.h"
#include "headway/status.h"
#include "headway/types.h"

namespace headway {

struct ChatMessage {
  std::string role;
  std::string content;
};

// What a chat template is given beside the messages.
struct ChatOptions {
  // A JSON object whose members the template sees as variables, {"enable_thinking": false} for one;
  // empty: none.
  std::string variables;

  // kInvalidArgument where it is none, or has what the engine sets itself: messages and
  // add_generation_prompt.
  Status Validate() const;
};

class Engine {
 public:
  // `model` is a folder as Hugging Face publishes them, or org/name in the local cache.
  static Result<std::unique_ptr<Engine>> Open(const std::string& model,
                                              const EngineOptions& options);
  ~Engine();

  const ModelInfo& info() const;
  std::string kernels() const;  // "cpu avx512"
  int threads() const;

  Result<std::vector<TokenId>> Encode(std::string_view text, const EncodeOptions& options) const;
  Result<std::string> Decode(std::span<const TokenId> tokens, SpecialTokens special) const;
  // The text of a conversation through the model's chat template, ready for the assistant's turn.
  Result<std::string> RenderChat(std::span<const ChatMessage> messages,
                                 const ChatOptions& options = {}) const;

  // Tokens that the session file of the options holds; 0 when there is none. A context must be at
  // least that long to continue it. From here on no other process can write to it.
  Result<int64_t> SessionTokens() const;

  // What NewContext would do, without taking memory. kOutOfBudget, naming the smallest budget that
  // would do, when nothing fits.
  Result<PlanReport> Plan(const Workload& workload) const;
  Result<std::unique_ptr<Context>> NewContext(const Workload& workload);
  // How long a phase should take in a context of `planned`, by the machine's profile.
  Result<double> PredictSeconds(const Workload& planned, const Phase& phase) const;

 private:
  friend class Context;
  friend struct EngineOpener;  // for tests, engine/open.h
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// What this machine does at best with the device, threads and kernels of `options`. Takes a second
// or two, 512 MiB of memory (2 GiB of a GPU's), and as much of the disk as its budget allows, at
// most 512 MiB.
Result<MachinePeaks> MeasurePeaks(const EngineOptions& options);

// What Engine::Plan would say, from the model's description alone: nothing is loaded, and with
// options.machine the machine need not be here, nor a GPU. A length of 0 is the trained one. Asked
// to explain, it also says what would make it faster. Ranks may be those of several machines of the
// same kind, as many on each; budgets are those of one.
enum class Explain { kNo, kYes };
Result<ModelPlan> PlanModel(const std::string& model, const EngineOptions& options,
                            const Workload& workload, Explain explain, int nodes = 1);

// Measures the machine with the device and threads of `options`, in ten seconds or twenty, and
// keeps what it found in $XDG_CACHE_HOME/headway (or ~/.cache/headway) for runs to come.
Result<MachineReport> ProbeMachine(const EngineOptions& options);

// What a session file or a model folder holds, for `headway inspect`.
struct Inspection {
  std::string kind;  // "model folder" or "session file"
  std::string path;
  std::vector<std::pair<std::string, std::string>> fields;  // name and value, for people to read
};
Result<Inspection> Inspect(const std::string& path);

}  // namespace headway

#endif  // HEADWAY_ENGINE_H_
