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

#include "engine/draft_model.h"
#include "engine/drafts/agreement.h"
#include "engine/drafts/drafter.h"
#include "engine/drafts/pace.h"
#include "engine/evictor.h"
#include "engine/executor.h"
#include "engine/reconstruction.h"
#include "engine/step/salience.h"
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
  // Not negative: heads have let go of tokens behind a prompt of so many, and the sequence is in
  // the store of what is kept.
  int64_t kept_from = -1;

  bool kept() const { return kept_from >= 0; }
};

// What a generator works with; all outlives it.
struct GeneratorParts {
  const Model& model;
  const Tokenizer* tokenizer;  // null: generations have tokens and no text
  Executor& executor;
  kv::Store& store;
  Env& env;
  // Of contexts that let tokens go behind each prompt, which then are read one after the other;
  // else null.
  Executor* kept_executor = nullptr;
  kv::Store* kept_store = nullptr;
  Evictor* evictor = nullptr;
  Reconstruction* reconstruction = nullptr;  // where that sees prompts repeated; else null
  int64_t room = 0;                          // tokens that a sequence may grow by then
  // Of contexts whose decodes attend to salient tokens; else null. Prompts have steps of their own
  // then, or share them with decodes.
  Salience* salience = nullptr;
  // Of contexts whose decode steps verify drafts, as many as the executor's limits say; else null.
  NewDrafter new_drafter = nullptr;
  // Whether a step verifies as many as is fastest by the steps before it, or as many as it may:
  // then a run gives the same bits every time.
  bool paces_drafts = false;
  // Where another model makes the drafts; else null, as on ranks whose first one has it.
  DraftModel* draft_model = nullptr;
  bool first_has_draft_model = false;
  Communicator* communicator = nullptr;     // of a rank; null: it has all heads
  std::function<void()> stepped = nullptr;  // after each step of Generate; or null
};

class Generator {
  struct Run;

 public:
  // `lengths` bounds each slot, whose first x_segments segments are recomputed.
  Generator(const GeneratorParts& parts, std::vector<int64_t> lengths, std::vector<int> x_segments,
            int64_t chunk);

  Result<std::vector<Generation>> Generate(std::span<const Request> requests, const Hooks& hooks);
  // What Generate leaves that ends with an error: runs, and what the cache held of their sequences.
  struct Unfinished {
    std::vector<Run> runs;
    size_t waiting = 0;                      // the first run that has had no slot
    std::vector<std::vector<TokenId>> held;  // of each slot
    Timings timings;
  };
  Unfinished TakeUnfinished();
  // Goes on with what another generator has left, of a context of the same sequences: reads what
  // that held. The requests are still there.
  Result<std::vector<Generation>> Resume(Unfinished unfinished, const std::string& notice,
                                         const Hooks& hooks);
  Result<Context::ScoreResult> Score(std::span<const TokenId> tokens,
                                     const Context::ScorePart& part, const Hooks& hooks);

  Result<std::vector<float>> FarAttention(std::span<const TokenId> tokens, int64_t from,
                                          int64_t sink, int64_t recent, const Hooks& hooks);
  Result<std::vector<float>> AttentionOn(std::span<const TokenId> tokens, int64_t from,
                                         const TokenSpan& span, const Hooks& hooks);
  Result<HeadBudgets> EvictedBudgets() const;

  Result<SelectionRecall> RecallOfSelection(std::span<const TokenId> tokens, int64_t from,
                                            const Hooks& hooks);

  // Puts `tokens` random keys and values behind what slot `slot` holds.
  Status FillSynthetic(int slot, int64_t tokens, uint64_t seed, double spread);

  void Reset();
  std::vector<Slot>& slots() { return slots_; }
  kv::Store& StoreOf(const Slot& slot) const { return slot.kept() ? *kept_store_ : store_; }
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
    std::unique_ptr<Drafter> drafter;  // none without drafts, or where steps alone make them
    DraftPace pace;
    // Of the step at hand: the token that was picked last, which is not in the cache yet, and
    // drafts behind it; and the tokens that the step picks.
    std::vector<TokenId> fed, picked;
    std::optional<Sampler> guesses;  // picks drafts of steps by the random numbers to come
    // That another model, which drafts, lacks of the sequence and `fed` before it does.
    std::vector<TokenId> certain;
    bool active = false;  // decoding
    Generation out;
  };

  Status Check(std::span<const Request> requests) const;
  // Reads tokens[0, from) into slot 0, then the others one a step, each by `step`.
  using WatchedStep = std::function<Status(const StepInput& input)>;
  Status StepThrough(std::span<const TokenId> tokens, int64_t from, const Hooks& hooks,
                     const WatchedStep& step);
  // The share of attention that does not fall on near keys, the mean over the tokens from there on.
  using NearKeysOf = std::function<NearKeys(int64_t position)>;
  Result<std::vector<float>> MeanFarMass(std::span<const TokenId> tokens, int64_t from,
                                         const Hooks& hooks, const NearKeysOf& near);
  // Runs all to their ends.
  Result<std::vector<Generation>> RunAll(const Hooks& hooks);
  // Reads what another generator's slot held of a run's sequence.
  Status ReadHeld(const Run& run, std::span<const TokenId> tokens, const Hooks& hooks);
  // Gives free slots to requests that have none, in order.
  Status FillSlots(const Hooks& hooks);
  Status Start(int slot, Run* run, const Hooks& hooks);
  // What the slot's sequence has on disk, where a selection wants it in memory, or of what is kept.
  Status BringUp(int slot, const RopeFrequencies& rope, const Hooks& hooks);
  // Empties the slot or keeps as much of its cache as fits the prompt.
  Status ReuseCache(Run* run, const Hooks& hooks);
  // Cuts the slot's sequence back to the first `tokens`, or a few less, and returns how many are
  // left. kNotFound where that needs what is gone.
  Result<int64_t> CutTo(const Slot& slot, int64_t tokens);
  std::string WhyOthers(uint64_t hash, RopeFrequencies rope) const;
  // The frequencies of a prompt of so many tokens.
  RopeFrequencies RopeOf(int64_t prompt) const;
  // Where tokens are let go, an empty slot has no sequence before it is its turn to read a prompt.
  Status EmptySlot(int index);
  Status BeginPrompt(int index);
  void DropSequence(Slot* slot);
  Status ReadyToScore(size_t begin, size_t end, const RopeFrequencies& rope, const Hooks& hooks);
  // The slot's prompt has been read, with these frequencies; null: it is synthetic.
  Status LetGo(int index, const RopeFrequencies* rope, const Hooks& hooks);
  Status ChooseSalient(const Slot& slot);
  Status Prefill(std::vector<Run>& runs, const Hooks& hooks);
  Status Decode(std::vector<Run>& runs, const Hooks& hooks);
  // The inputs of one step, and whose they are.
  struct Batch {
    std::vector<StepInput> inputs;
    std::vector<Run*> runs;
    int64_t prompt_tokens = 0;
    int64_t decoded = 0;            // tokens that the step gave those that decode
    double drafting_seconds = 0.0;  // of steps before it
    double reading_seconds = 0.0;   // of these, for what a model that drafts had not read for long
    bool kept = false;              // of sequences of what is kept
    bool beside = false;            // another batch has these, as far as they fit

    int64_t Tokens() const {
      int64_t tokens = 0;
      for (const StepInput& input : inputs) tokens += std::ssize(input.tokens);
      return tokens;
    }
  };
  // As much of prompts that are not read to the end as `room` tokens take, and as may be in the
  // batch.
  Status AddPrompts(std::vector<Run>& runs, int64_t room, Batch* batch);
  // Whether the run's slot may read on in the batch.
  bool MayJoin(const Run& run, const Batch& batch) const;
  Status DecodeBatch(Batch* batch, int64_t* begun, const Hooks& hooks);
  // Whether the batch's step has filled the page of one of its sequences.
  bool ClosedPages(const Batch& batch) const;
  Status RunBatch(Batch* batch, const Hooks& hooks);
  // A token was sampled: ends the run or appends it to the output.
  void Accept(TokenId token, Run* run, const Hooks& hooks);
  // Has a step pick the run's next tokens.
  static void SampleNext(Run* run, StepInput* input);
  // Gives each run that decodes the token that was picked last, and drafts behind it; the batch
  // that they will be of gets the time that takes.
  Status Feed(std::vector<Run>& runs, Batch* batch, const Hooks& hooks);
  int64_t MostDrafts(const Run& run);
  // A run that steps over chosen keys draft for, as many tokens as it wants, and the length of its
  // sequence before that.
  struct Drafting {
    Run* run = nullptr;
    int64_t drafts = 0;
    int64_t length = 0;
  };
  // Feeds runs that decode the token that was picked last, and says which of them want drafts.
  Result<std::vector<Drafting>> BeginDrafts(std::vector<Run>& runs);
  // Has steps append drafts to what runs are fed.
  Status DraftTogether(std::span<Drafting> drafting, Batch* batch, const Hooks& hooks);
  Status DraftBySteps(std::span<Drafting> drafting, const Hooks& hooks);
  // Whether the model that drafts knows all tokens of the run's sequence.
  bool FollowedByModel(const Run& run) const;
  // Has the model that drafts read the run's prompt, where one does.
  Status ReadToDraft(const Run& run, const Hooks& hooks);
  // Has the model that drafts read what it lacks, but for what it reads as it drafts.
  Status ReadBehind(std::span<const Drafting> drafting, Batch* batch, const Hooks& hooks);
  // What the run's next token is guessed of, behind `drafted` guesses.
  StepInput DraftInput(Run* run, int64_t drafted) const;
  // One more token of those that want so many; none does: there is nothing to be done.
  Status DraftStep(std::span<Drafting> drafting, int64_t drafted, const Hooks& hooks);
  // Whether another model drafts, which of several ranks the first one has.
  bool ModelDrafts() const { return draft_model_ != nullptr || first_has_draft_model_; }
  Status TakeBackGuesses(const Drafting& drafting);
  // Takes the last tokens back, drafts that have been read, up to this length.
  Status TakeBackTo(Run* run, int64_t length);
  bool Ends(const Run& run, TokenId token) const;
  // A step has picked what follows each draft, too: accepts tokens up to the first draft that is
  // wrong, or to the end of the run, and cuts what is behind them off the cache. Returns how many.
  Result<int64_t> AcceptPicked(const StepInput& input, Run* run, const Hooks& hooks);
  void Emit(const std::string& text, Run* run, const Hooks& hooks);
  // Ends a run, with the text that was held back; without it.
  void Finish(FinishReason reason, Run* run, const Hooks& hooks);
  static void End(FinishReason reason, Run* run, const Hooks& hooks);
  Status Step(std::span<const StepInput> inputs, std::span<const int> slot_of,
              const LogitsSink& sink, const std::atomic<bool>* cancel);
  // A step has failed whose sequences are lost: slots and samplers are as they were before it.
  void TakeOut(std::span<const StepInput> inputs, std::span<const int> slot_of);
  Executor& ExecutorOf(const Slot& slot) { return slot.kept() ? *kept_executor_ : executor_; }
  const Slot& SlotOf(const Run& run) const { return slots_[static_cast<size_t>(run.slot)]; }
  Slot& SlotOf(const Run& run) { return slots_[static_cast<size_t>(run.slot)]; }
  void Report(const Hooks& hooks, Progress::Phase phase, int64_t done, int64_t total,
              int64_t start_ns) const;

  const Model& model_;
  const Tokenizer* tokenizer_;
  Executor& executor_;
  kv::Store& store_;
  Env& env_;
  Executor* const kept_executor_;
  kv::Store* const kept_store_;
  Evictor* const evictor_;
  Reconstruction* const reconstruction_;
  const int64_t room_;
  Salience* const salience_;
  const NewDrafter new_drafter_;
  const bool paces_drafts_;
  DraftModel* const draft_model_;
  const bool first_has_draft_model_;
  const std::function<void()> stepped_;  // or null
  DraftAgreement agreement_;
  DraftCosts draft_costs_;
  int reading_ = -1;  // where tokens are let go: the slot whose prompt the store has
  const std::vector<int64_t> lengths_;
  const std::vector<int> x_segments_;
  const int64_t chunk_;
  std::vector<Slot> slots_;
  std::vector<Run> runs_;  // of the last Generate
  size_t waiting_ = 0;     // Unfinished's
  Timings timings_;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_GENERATOR_H_
