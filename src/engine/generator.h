// Generator: prefills and decodes a batch of requests in the slots of a context, one step after the
// other. The sole mutator of slots.
#ifndef HEADWAY_ENGINE_GENERATOR_H_
#define HEADWAY_ENGINE_GENERATOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/executor.h"
#include "engine/stop_matcher.h"
#include "headway/context.h"
#include "headway/status.h"
#include "kernels/sampler.h"
#include "kv/store/store.h"
#include "model/model.h"
#include "model/rope.h"
#include "text/tokenizer/tokenizer.h"

namespace headway {

// One sequence of a context between calls.
struct Slot {
  std::optional<kv::SequenceId> sequence;
  std::vector<TokenId> tokens;  // those whose keys and values the sequence holds
  uint64_t rope_hash = 0;       // of the frequencies that its keys were rotated with
  bool approximate = false;     // some of these may have attended to chosen keys alone
};

// What a generator works with; all outlives it.
struct GeneratorParts {
  const Model& model;
  const Tokenizer* tokenizer;  // null: generations have tokens and no text
  Executor& executor;
  kv::Store& store;
  Env& env;
};

class Generator {
 public:
  // `lengths` bounds each slot, whose first x_segments segments are recomputed.
  Generator(const GeneratorParts& parts, std::vector<int64_t> lengths, std::vector<int> x_segments,
            int64_t chunk);

  Result<std::vector<Generation>> Generate(std::span<const Request> requests, const Hooks& hooks);
  Result<Context::ScoreResult> Score(std::span<const TokenId> tokens,
                                     const Context::ScorePart& part, const Hooks& hooks);

  Result<std::vector<float>> FarAttention(std::span<const TokenId> tokens, int64_t from,
                                          int64_t sink, int64_t recent, const Hooks& hooks);

  Result<SelectionRecall> RecallOfSelection(std::span<const TokenId> tokens, int64_t from,
                                            const Hooks& hooks);

  // Puts `tokens` random keys and values behind what slot `slot` holds.
  Status FillSynthetic(int slot, int64_t tokens, uint64_t seed, double spread);

  void Reset();
  std::vector<Slot>& slots() { return slots_; }
  const Timings& timings() const { return timings_; }

 private:
  // A request on its way.
  struct Run {
    const Request* request = nullptr;
    int index = 0;  // of the request
    int slot = -1;  // none yet
    bool finished = false;
    RopeFrequencies rope;
    std::optional<Sampler> sampler;
    std::optional<Detokenizer> decoder;  // none without a tokenizer
    std::optional<StopMatcher> stop;
    TokenId next = 0;     // sampled, not yet in the cache
    bool active = false;  // decoding
    Generation out;
  };

  Status Check(std::span<const Request> requests) const;
  // Reads tokens[0, from) into slot 0, then the others one a step, each by `step`.
  using WatchedStep = std::function<Status(const StepInput& input)>;
  Status StepThrough(std::span<const TokenId> tokens, int64_t from, const Hooks& hooks,
                     const WatchedStep& step);
  // Gives free slots to requests that have none, in order.
  Status FillSlots(std::vector<Run>& runs, size_t* waiting, const Hooks& hooks);
  Status Start(int slot, Run* run, const Hooks& hooks);
  // What the slot's sequence has on disk, where a selection wants it in memory.
  Status BringUp(int slot, const RopeFrequencies& rope, const Hooks& hooks);
  // Empties the slot or keeps as much of its cache as fits the prompt.
  Status ReuseCache(Run* run, const Hooks& hooks);
  std::string WhyOthers(uint64_t hash, RopeFrequencies rope) const;
  // The frequencies of a prompt of so many tokens.
  RopeFrequencies RopeOf(int64_t prompt) const;
  Status EmptySlot(int index);
  Status Prefill(std::vector<Run>& runs, const Hooks& hooks);
  Status Decode(std::vector<Run>& runs, size_t waiting, const Hooks& hooks);
  // The inputs of one step, and whose they are.
  struct Batch {
    std::vector<StepInput> inputs;
    std::vector<Run*> runs;
    int64_t prompt_tokens = 0;
  };
  // As much of prompts that are not read to the end as `room` tokens take.
  void AddPrompts(std::vector<Run>& runs, int64_t room, Batch* batch);
  Status RunBatch(const Batch& batch, const Hooks& hooks);
  // A token was sampled: ends the run or appends it to the output.
  void Accept(TokenId token, Run* run, const Hooks& hooks);
  // Has a step pick the run's next token.
  static void SampleNext(Run* run, StepInput* input);
  void Emit(const std::string& text, Run* run, const Hooks& hooks);
  // Ends a run, with the text that was held back; without it.
  void Finish(FinishReason reason, Run* run, const Hooks& hooks);
  static void End(FinishReason reason, Run* run, const Hooks& hooks);
  Status Step(std::span<const StepInput> inputs, std::span<const int> slot_of,
              const LogitsSink& sink, const std::atomic<bool>* cancel);
  Slot& SlotOf(const Run& run) { return slots_[static_cast<size_t>(run.slot)]; }
  void Report(const Hooks& hooks, Progress::Phase phase, int64_t done, int64_t total,
              int64_t start_ns) const;

  const Model& model_;
  const Tokenizer* tokenizer_;
  Executor& executor_;
  kv::Store& store_;
  Env& env_;
  const std::vector<int64_t> lengths_;
  const std::vector<int> x_segments_;
  const int64_t chunk_;
  std::vector<Slot> slots_;
  Timings timings_;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_GENERATOR_H_
