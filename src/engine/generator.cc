#include "engine/generator.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "headway/refusal.h"

namespace headway {
namespace {

double Seconds(int64_t from_ns, int64_t to_ns) {
  return static_cast<double>(to_ns - from_ns) * 1e-9;
}

}  // namespace

Generator::Generator(const GeneratorParts& parts, std::vector<int64_t> lengths,
                     std::vector<int> x_segments, int64_t chunk)
    : model_(parts.model),
      tokenizer_(parts.tokenizer),
      executor_(parts.executor),
      store_(parts.store),
      env_(parts.env),
      kept_executor_(parts.kept_executor),
      kept_store_(parts.kept_store),
      evictor_(parts.evictor),
      reconstruction_(parts.reconstruction),
      room_(parts.room),
      salience_(parts.salience),
      new_drafter_(parts.new_drafter),
      paces_drafts_(parts.paces_drafts),
      draft_model_(parts.draft_model),
      first_has_draft_model_(parts.first_has_draft_model),
      stepped_(parts.stepped),
      agreement_(parts.communicator),
      lengths_(std::move(lengths)),
      x_segments_(std::move(x_segments)),
      chunk_(chunk),
      slots_(lengths_.size()) {}

Status Generator::Check(std::span<const Request> requests) const {
  if (requests.empty()) return Status(StatusCode::kInvalidArgument, "there are no requests");
  const int64_t shortest = *std::min_element(lengths_.begin(), lengths_.end());
  const auto bad = [&](size_t i, const std::string& what) {
    const std::string which = requests.size() > 1 ? " of request " + std::to_string(i) : "";
    return Status(StatusCode::kInvalidArgument, "the prompt" + which + " " + what);
  };
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::vector<TokenId>& prompt = requests[i].prompt;
    if (prompt.empty()) return bad(i, "is empty");
    // A request that waits takes any slot.
    const int64_t length = requests.size() > slots_.size() ? shortest : lengths_[i];
    if (static_cast<int64_t>(prompt.size()) > length) {
      return bad(i, "has " + std::to_string(prompt.size()) + " tokens, and the context holds " +
                        std::to_string(length))
          .Within({}, {"; raise ", Option::kLength});
    }
    for (TokenId token : prompt) {
      if (token < 0 || token >= model_.shape().vocab) {
        return bad(i, "has the token " + std::to_string(token) + ", outside the vocabulary of " +
                          std::to_string(model_.shape().vocab));
      }
    }
    if (Status s = requests[i].sampling.Validate(); !s.ok()) return s;
  }
  return OkStatus();
}

RopeFrequencies Generator::RopeOf(int64_t prompt) const {
  const ModelConfig& config = model_.config();
  const ExecutorLimits& limits = executor_.limits();
  // What reaches beyond the trained window sees no distance that is longer.
  const bool reaches = limits.selection.reaches() || limits.self_extend.on();
  const int64_t length = reaches ? std::min(prompt, config.max_position) : prompt;
  RopeFrequencies rope = ComputeRope(config.rope, model_.shape().head_dim, length);
  if (reaches) rope.product = RopeProduct::kExact;
  rope.extend = limits.self_extend;
  return rope;
}

void Generator::Reset() {
  for (Slot& slot : slots_) DropSequence(&slot);
  if (draft_model_ != nullptr) draft_model_->Reset();
}

Status Generator::BringUp(int slot, const RopeFrequencies& rope, const Hooks& hooks) {
  const int64_t start = env_.NowNanos();
  const kv::UpProgress progress = [&](int64_t done, int64_t total) {
    Report(hooks, Progress::Phase::kRestore, done, total, start);
    return hooks.cancel == nullptr || !hooks.cancel->load(std::memory_order_relaxed);
  };
  const Slot& held = slots_[static_cast<size_t>(slot)];
  if (held.kept())
    return kept_store_->BringUp(*held.sequence, {}, kv::WithoutRoom::kFails, progress);
  return executor_.BringUp(*held.sequence, rope, progress);
}

Status Generator::ReuseCache(Run* run, const Hooks& hooks) {
  const Request& request = *run->request;
  Slot& slot = SlotOf(*run);
  // The last prompt token is always computed: its logits are needed.
  const size_t limit = std::min(slot.tokens.size(), request.prompt.size() - 1);
  const size_t common = static_cast<size_t>(
      std::mismatch(slot.tokens.begin(), slot.tokens.begin() + static_cast<ptrdiff_t>(limit),
                    request.prompt.begin())
          .first -
      slot.tokens.begin());
  if (slot.sequence.has_value() && common > 0) {
    if (slot.rope_hash != run->rope.Hash()) {
      run->out.notices.push_back(WhyOthers(slot.rope_hash, run->rope) + "; prefilling again");
    } else {
      Result<int64_t> kept = CutTo(slot, static_cast<int64_t>(common));
      // What does not fit behind what is kept of a prompt is read with it.
      if (kept.ok() && slot.kept() && std::ssize(request.prompt) - slot.kept_from >= room_) {
        return EmptySlot(run->slot);
      }
      if (kept.ok()) {
        slot.tokens.resize(static_cast<size_t>(*kept));
        run->out.reused_tokens = *kept;
        if (slot.approximate && !slot.kept() && *kept > 0 &&
            !executor_.limits().selection.approximates() && salience_ == nullptr) {
          run->out.notices.push_back(
              "of the cached tokens that are used again, some attended to chosen keys alone "
              "(selection): what follows is as exact as they are");
        }
        return BringUp(run->slot, run->rope, hooks);
      }
      if (kept.status().code() != StatusCode::kNotFound) return kept.status();
      run->out.notices.push_back(
          "the cache has let go of what this prompt needs (a sliding window, streaming heads, or "
          "eviction); prefilling again");
    }
  }
  return EmptySlot(run->slot);
}

Status Generator::FillSlots(const Hooks& hooks) {
  std::vector<bool> taken(slots_.size(), false);
  for (const Run& run : runs_) {
    if (run.slot >= 0 && !run.finished) taken[static_cast<size_t>(run.slot)] = true;
  }
  for (size_t slot = 0; slot < slots_.size() && waiting_ < runs_.size(); ++slot) {
    if (taken[slot]) continue;
    if (Status s = Start(static_cast<int>(slot), &runs_[waiting_++], hooks); !s.ok()) return s;
  }
  return OkStatus();
}

Status Generator::Start(int slot, Run* run, const Hooks& hooks) {
  const Request& request = *run->request;
  run->slot = slot;
  run->rope = RopeOf(static_cast<int64_t>(request.prompt.size()));
  run->out.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  run->sampler.emplace(request.sampling);
  run->sampler->AcceptPrompt(request.prompt);
  run->stop.emplace(request.stop);
  if (tokenizer_ != nullptr) {
    run->decoder.emplace(tokenizer_, SpecialTokens::kSkip);
  }
  if (new_drafter_ != nullptr) {
    run->drafter = new_drafter_();
    run->drafter->Append(request.prompt);
  }
  if (Status s = ReuseCache(run, hooks); !s.ok()) return s;
  SlotOf(*run).rope_hash = run->rope.Hash();
  SlotOf(*run).approximate |= executor_.limits().selection.approximates() || salience_ != nullptr;
  return OkStatus();
}

Status Generator::Step(std::span<const StepInput> inputs, std::span<const int> slot_of,
                       const LogitsSink& sink, const std::atomic<bool>* cancel) {
  // Before the step, which changes the run's next token: the input points to it.
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<TokenId>& tokens = slots_[static_cast<size_t>(slot_of[i])].tokens;
    tokens.insert(tokens.end(), inputs[i].tokens.begin(), inputs[i].tokens.end());
  }
  Executor& executor = ExecutorOf(slots_[static_cast<size_t>(slot_of[0])]);
  const Status result = executor.Step(inputs, sink, cancel);
  if (!result.ok() && store_.HasUnfitPages()) {
    TakeOut(inputs, slot_of);
    return result;
  }
  // A step that was given up leaves each sequence on a page boundary.
  for (int index : slot_of) {
    Slot& slot = slots_[static_cast<size_t>(index)];
    slot.tokens.resize(static_cast<size_t>(StoreOf(slot).Length(*slot.sequence)));
  }
  if (!result.ok() && result.code() == StatusCode::kCorrupt) {
    // There are logits that are not finite. Say which weight is to blame, if one is.
    if (Status s = model_.CheckFinite(nullptr); !s.ok()) return s;
  }
  return result;
}

void Generator::Report(const Hooks& hooks, Progress::Phase phase, int64_t done, int64_t total,
                       int64_t start_ns) const {
  if (!hooks.on_progress) return;
  Progress progress;
  progress.phase = phase;
  progress.done = done;
  progress.total = total;
  progress.seconds = Seconds(start_ns, env_.NowNanos());
  for (int tier = 0; tier < kTierCount; ++tier) {
    progress.tier_bytes[tier] = store_.Bytes(static_cast<Tier>(tier));
    if (kept_store_ == nullptr) continue;
    progress.tier_bytes[tier] += kept_store_->Bytes(static_cast<Tier>(tier));
  }
  if (evictor_ != nullptr) {
    progress.tier_bytes[static_cast<size_t>(Tier::kHost)] += evictor_->demoted_bytes();
  }
  hooks.on_progress(progress);
}

void Generator::Emit(const std::string& text, Run* run, const Hooks& hooks) {
  const std::string shown = run->stop->Feed(text);
  run->out.text += shown;
  if (!shown.empty() && hooks.on_text && !hooks.on_text(run->index, shown)) {
    End(FinishReason::kCancelled, run, hooks);
  }
}

void Generator::Finish(FinishReason reason, Run* run, const Hooks& hooks) {
  if (!run->stop.has_value()) return End(reason, run, hooks);  // it never began
  std::string rest;
  if (run->decoder.has_value() && !run->stop->stopped())
    rest = run->stop->Feed(run->decoder->Finish());
  rest += run->stop->Finish();
  run->out.text += rest;
  if (!rest.empty() && hooks.on_text) hooks.on_text(run->index, rest);
  End(reason, run, hooks);
}

void Generator::End(FinishReason reason, Run* run, const Hooks& hooks) {
  run->active = false;
  run->finished = true;
  run->out.finish = reason;
  if (hooks.on_done) hooks.on_done(run->index, run->out);
}

void Generator::Accept(TokenId token, Run* run, const Hooks& hooks) {
  if (Ends(*run, token)) return Finish(FinishReason::kEos, run, hooks);
  run->sampler->Accept(token);
  if (run->drafter != nullptr) run->drafter->Append({&token, 1});
  run->out.tokens.push_back(token);
  run->active = true;
  if (run->decoder.has_value()) {
    Emit(run->decoder->Push(token), run, hooks);
    if (!run->active) return;  // the hook has ended it
    if (run->stop->stopped()) return Finish(FinishReason::kStop, run, hooks);
  }
  if (static_cast<int64_t>(run->out.tokens.size()) >= run->request->max_tokens) {
    return Finish(FinishReason::kLength, run, hooks);
  }
  const int64_t length = run->out.prompt_tokens + static_cast<int64_t>(run->out.tokens.size());
  const Slot& slot = SlotOf(*run);
  // The token itself is not in the cache yet.
  const bool full = slot.kept() && length - slot.kept_from > room_;
  if (full || length > lengths_[static_cast<size_t>(run->slot)]) {
    return Finish(FinishReason::kContextFull, run, hooks);
  }
}

Status Generator::AddPrompts(std::vector<Run>& runs, int64_t room, Batch* batch) {
  // A prompt of a call before, which was not read to its end, gives way.
  const auto reads = [&](const Run& run) { return run.slot == reading_ && !run.finished; };
  if (reading_ >= 0 && std::none_of(runs.begin(), runs.end(), reads)) {
    DropSequence(&slots_[static_cast<size_t>(reading_)]);
  }
  for (Run& run : runs) {
    if (run.slot < 0 || run.finished || run.active || !MayJoin(run, *batch)) continue;
    const Slot& slot = SlotOf(run);
    const std::span<const TokenId> prompt = run.request->prompt;
    const size_t at = slot.tokens.size();
    if (at >= prompt.size()) continue;
    if (Status s = BeginPrompt(run.slot); !s.ok()) return s;
    if (slot.kept()) room = std::min(room, kept_executor_->limits().step_tokens - batch->Tokens());
    if (room <= 0) break;
    const size_t count = std::min(prompt.size() - at, static_cast<size_t>(room));
    StepInput input{*slot.sequence, prompt.subspan(at, count), &run.rope};
    if (at + count == prompt.size() && run.request->max_tokens > 0) SampleNext(&run, &input);
    batch->inputs.push_back(input);
    batch->runs.push_back(&run);
    batch->prompt_tokens += static_cast<int64_t>(count);
    batch->kept = slot.kept();
    room -= static_cast<int64_t>(count);
  }
  return OkStatus();
}

Status Generator::RunBatch(Batch* batch, const Hooks& hooks) {
  std::vector<int> slot_of;
  for (const Run* run : batch->runs) slot_of.push_back(run->slot);
  if (Status s = Step(batch->inputs, slot_of, nullptr, hooks.cancel); !s.ok()) return s;
  if (stepped_) stepped_();
  for (size_t i = 0; i < batch->runs.size(); ++i) {
    Run* const run = batch->runs[i];
    if (batch->inputs[i].sampler != nullptr) {
      const bool decodes = run->active;
      const Result<int64_t> accepted = AcceptPicked(batch->inputs[i], run, hooks);
      if (!accepted.ok()) return accepted.status();
      if (decodes) batch->decoded += *accepted;
    } else if (SlotOf(*run).tokens.size() == run->request->prompt.size()) {
      Finish(FinishReason::kLength, run, hooks);  // nothing is to be generated
    }
    if (SlotOf(*run).tokens.size() < run->request->prompt.size()) continue;
    // The first token behind the prompt is not in the cache yet.
    const bool read = SlotOf(*run).tokens.size() == run->request->prompt.size();
    if (read && salience_ != nullptr) {
      if (Status s = ChooseSalient(SlotOf(*run)); !s.ok()) return s;
    }
    if (read && run->active) {
      if (Status s = ReadToDraft(*run, hooks); !s.ok()) return s;
    }
    if (evictor_ == nullptr || SlotOf(*run).kept()) continue;
    if (Status s = LetGo(run->slot, &run->rope, hooks); !s.ok()) return s;
  }
  return OkStatus();
}

Status Generator::Prefill(std::vector<Run>& runs, const Hooks& hooks) {
  const int64_t start = env_.NowNanos();
  int64_t total = 0;
  for (const Run& run : runs) {
    if (run.slot >= 0) total += run.out.prompt_tokens - run.out.reused_tokens;
  }
  Report(hooks, Progress::Phase::kPrefill, 0, total, start);
  while (timings_.prefill_tokens < total) {
    Batch batch;
    const int64_t most = std::max(chunk_, executor_.limits().stretch_tokens);
    if (Status s = AddPrompts(runs, most, &batch); !s.ok()) return s;
    executor_.OnPart([&](int64_t parts, int64_t of) {
      const int64_t tokens = batch.prompt_tokens * parts / of;
      Report(hooks, Progress::Phase::kPrefill, timings_.prefill_tokens + tokens, total, start);
    });
    const Status status = RunBatch(&batch, hooks);
    executor_.OnPart(nullptr);
    timings_.prefill_seconds = Seconds(start, env_.NowNanos());
    if (!status.ok()) return status;
    timings_.prefill_tokens += batch.prompt_tokens;
    Report(hooks, Progress::Phase::kPrefill, timings_.prefill_tokens, total, start);
  }
  if (Status s = executor_.Synchronize(); !s.ok()) return s;
  timings_.prefill_seconds = Seconds(start, env_.NowNanos());
  return OkStatus();
}

Status Generator::DecodeBatch(Batch* batch, int64_t* begun, const Hooks& hooks) {
  const Status status = RunBatch(batch, hooks);
  // The step's time belongs to both, by their tokens, but for what drafts took before it.
  const int64_t now = env_.NowNanos();
  const double seconds = Seconds(*begun, now);
  const double of_prompts = static_cast<double>(batch->prompt_tokens) /
                            static_cast<double>(batch->Tokens()) *
                            (seconds - batch->drafting_seconds);
  timings_.prefill_seconds += of_prompts;
  timings_.decode_seconds += seconds - of_prompts;
  if (batch->prompt_tokens == 0 && !ClosedPages(*batch)) {
    const int64_t sequences = std::ssize(batch->inputs);
    draft_costs_.Observe(sequences, batch->Tokens() - sequences, seconds - batch->reading_seconds);
  }
  *begun = now;
  timings_.prefill_tokens += batch->prompt_tokens;
  timings_.decode_tokens += batch->decoded;
  return status;
}

// A token of each sequence a step, with drafts behind it, and prompts of requests that take the
// places of those that have ended: both share the step, and what it reads of the weights. Where
// tokens are let go, prompts that are read from their beginning have steps of their own.
Status Generator::Decode(std::vector<Run>& runs, const Hooks& hooks) {
  const int64_t start = env_.NowNanos();
  int64_t total = 0, begun = start;
  for (const Run& run : runs) total += run.request->max_tokens;
  while (true) {
    if (Status s = FillSlots(hooks); !s.ok()) return s;
    Batch batch;
    if (Status s = Feed(runs, &batch, hooks); !s.ok()) return s;
    for (Run& run : runs) {
      if (!run.active) continue;
      StepInput input{*SlotOf(run).sequence, run.fed, &run.rope};
      input.observed = false;
      input.drafts = std::ssize(run.fed) - 1;
      SampleNext(&run, &input);
      batch.inputs.push_back(input);
      batch.runs.push_back(&run);
      batch.kept = SlotOf(run).kept();
    }
    Batch prompts;
    prompts.beside = true;
    Status status = AddPrompts(runs, chunk_ - batch.Tokens(), &batch);
    if (status.ok() && batch.kept) status = AddPrompts(runs, chunk_, &prompts);
    if (!status.ok()) return status;
    if (batch.inputs.empty()) break;
    status = DecodeBatch(&batch, &begun, hooks);
    if (status.ok() && !prompts.inputs.empty()) status = DecodeBatch(&prompts, &begun, hooks);
    if (!status.ok()) return status;
    Report(hooks, Progress::Phase::kDecode, timings_.decode_tokens, total, start);
  }
  return OkStatus();
}

Result<std::vector<Generation>> Generator::Generate(std::span<const Request> requests,
                                                    const Hooks& hooks) {
  if (Status s = Check(requests); !s.ok()) return s;
  timings_ = Timings{};
  runs_.clear();
  runs_.resize(requests.size());
  waiting_ = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    runs_[i].request = &requests[i];
    runs_[i].index = static_cast<int>(i);
  }
  return RunAll(hooks);
}

Result<std::vector<Generation>> Generator::RunAll(const Hooks& hooks) {
  Status status = FillSlots(hooks);
  if (status.ok()) status = Prefill(runs_, hooks);
  if (status.ok()) status = Decode(runs_, hooks);
  const bool cancelled = status.code() == StatusCode::kCancelled;
  if (!status.ok() && !cancelled) return status;
  std::vector<Generation> results;
  for (Run& run : runs_) {
    if (!run.finished) Finish(FinishReason::kCancelled, &run, hooks);
    results.push_back(std::move(run.out));
  }
  runs_.clear();
  return results;
}

Result<Context::ScoreResult> Generator::Score(std::span<const TokenId> tokens,
                                              const Context::ScorePart& part, const Hooks& hooks) {
  Request request;
  request.prompt.assign(tokens.begin(), tokens.end());
  if (Status s = Check({&request, 1}); !s.ok()) return s;
  const size_t count = tokens.size() - 1;  // the last token is predicted and predicts nothing
  const size_t end = part.end < 0 ? count : static_cast<size_t>(part.end);
  const auto begin = static_cast<size_t>(part.begin);
  if (begin > end || end > count ||
      (begin > 0 && (!slots_[0].sequence.has_value() ||
                     StoreOf(slots_[0]).Length(*slots_[0].sequence) != part.begin))) {
    return Status(StatusCode::kInvalidArgument,
                  "the parts of a sequence are scored one behind the other");
  }
  timings_ = Timings{};
  const RopeFrequencies rope = RopeOf(static_cast<int64_t>(tokens.size()));
  if (Status s = ReadyToScore(begin, end, rope, hooks); !s.ok()) return s;
  slots_[0].rope_hash = rope.Hash();
  const int64_t most =
      slots_[0].kept() ? std::min(chunk_, kept_executor_->limits().step_tokens) : chunk_;
  Context::ScoreResult score;
  const int64_t start = env_.NowNanos();
  std::vector<double> losses;
  for (size_t at = begin; at < end;) {
    const size_t n = std::min(end - at, static_cast<size_t>(most));
    losses.resize(n);
    StepInput input{*slots_[0].sequence, tokens.subspan(at, n), &rope};
    input.logits = part.logits ? LogitsMode::kAll : LogitsMode::kNone;
    input.targets = tokens.subspan(at + 1, n);
    input.losses = losses;
    const int slot = 0;
    const Status status = Step(
        {&input, 1}, {&slot, 1},
        [&](int, int64_t token, std::span<float> logits) {
          part.logits(static_cast<int64_t>(at) + token + 1, logits);
          return OkStatus();
        },
        hooks.cancel);
    if (!status.ok()) return status;
    for (const double loss : losses) score.negative_log_likelihood += loss;
    score.predictions += static_cast<int64_t>(n);
    at += n;
    Report(hooks, Progress::Phase::kPrefill, static_cast<int64_t>(at), static_cast<int64_t>(count),
           start);
  }
  timings_.prefill_tokens = static_cast<int64_t>(end - begin);
  timings_.prefill_seconds = Seconds(start, env_.NowNanos());
  return score;
}

}  // namespace headway
