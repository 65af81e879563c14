// Context::FarAttention, Context::AttentionOn and Context::RecallOfSelection: what single steps
// attend to; Context::EvictedBudgets.
#include <algorithm>

#include "engine/generator.h"
#include "engine/refused.h"

namespace headway {

Status Generator::StepThrough(std::span<const TokenId> tokens, int64_t from, const Hooks& hooks,
                              const WatchedStep& step) {
  if (evictor_ != nullptr) {
    return Unsupported({"attention is watched with all keys; leave out ", Option::kEvict});
  }
  Request request;
  request.prompt.assign(tokens.begin(), tokens.end());
  if (Status s = Check({&request, 1}); !s.ok()) return s;
  request.prompt.resize(static_cast<size_t>(from) + 1);  // the last one is not computed
  Run run;
  run.request = &request;
  if (Status s = Start(0, &run, hooks); !s.ok()) return s;
  const int slot = 0;
  for (size_t at = slots_[0].tokens.size(); at < static_cast<size_t>(from);) {
    const size_t n = std::min(static_cast<size_t>(from) - at, static_cast<size_t>(chunk_));
    const StepInput input{*slots_[0].sequence, tokens.subspan(at, n), &run.rope, LogitsMode::kNone};
    if (Status s = Step({&input, 1}, {&slot, 1}, {}, hooks.cancel); !s.ok()) return s;
    at += n;
  }
  for (size_t at = static_cast<size_t>(from); at < tokens.size(); ++at) {
    if (hooks.cancel != nullptr && hooks.cancel->load(std::memory_order_relaxed)) {
      return Status(StatusCode::kCancelled, "cancelled");
    }
    const StepInput input{*slots_[0].sequence, tokens.subspan(at, 1), &run.rope, LogitsMode::kNone};
    slots_[0].tokens.push_back(tokens[at]);
    const Status status = step(input);
    slots_[0].tokens.resize(static_cast<size_t>(store_.Length(*slots_[0].sequence)));
    if (!status.ok()) return status;
  }
  return OkStatus();
}

Result<std::vector<float>> Generator::FarAttention(std::span<const TokenId> tokens, int64_t from,
                                                   int64_t sink, int64_t recent,
                                                   const Hooks& hooks) {
  if (from < 1 || from >= static_cast<int64_t>(tokens.size()) || sink < 0 || recent < 1) {
    return Status(StatusCode::kInvalidArgument,
                  "attention is profiled behind at least one token, with at least one recent one");
  }
  return MeanFarMass(tokens, from, hooks, [&](int64_t) { return NearKeys{sink, recent}; });
}

Result<std::vector<float>> Generator::AttentionOn(std::span<const TokenId> tokens, int64_t from,
                                                  const TokenSpan& span, const Hooks& hooks) {
  if (from >= std::ssize(tokens) || span.begin < 0 || span.begin >= span.end || span.end > from) {
    return Status(StatusCode::kInvalidArgument,
                  "attention is measured on tokens that lie before those that attend");
  }
  return MeanFarMass(tokens, from, hooks, [&](int64_t position) {
    return NearKeys{span.begin, position + 1 - span.end};
  });
}

Result<HeadBudgets> Generator::EvictedBudgets() const {
  if (evictor_ == nullptr || evictor_->budgets().empty()) {
    return Status(StatusCode::kInvalidArgument, "no prompt was read of which heads keep some");
  }
  return HeadBudgets{evictor_->anyway(), evictor_->budgets()};
}

Result<std::vector<float>> Generator::MeanFarMass(std::span<const TokenId> tokens, int64_t from,
                                                  const Hooks& hooks, const NearKeysOf& near) {
  const ModelShape& shape = model_.shape();
  std::vector<float> share(static_cast<size_t>(shape.layers * shape.query_heads));
  std::vector<float> far(static_cast<size_t>(shape.layers * shape.kv_heads), 0.0f);
  const auto add = [&](const StepInput& input) {
    const NearKeys keys = near(store_.Length(input.sequence));
    const Status status = executor_.StepWithFarMass(input, keys, share);
    if (!status.ok()) return status;
    for (size_t head = 0; head < far.size(); ++head) {
      const auto group = share.begin() + static_cast<ptrdiff_t>(head) * shape.group();
      far[head] += *std::max_element(group, group + shape.group());
    }
    return OkStatus();
  };
  if (Status s = StepThrough(tokens, from, hooks, add); !s.ok()) return s;
  const auto probed = static_cast<float>(static_cast<int64_t>(tokens.size()) - from);
  for (float& each : far) each /= probed;
  return far;
}

Result<SelectionRecall> Generator::RecallOfSelection(std::span<const TokenId> tokens, int64_t from,
                                                     const Hooks& hooks) {
  if (from < 1 || from >= static_cast<int64_t>(tokens.size())) {
    return Status(StatusCode::kInvalidArgument, "recall is measured behind at least one token");
  }
  SelectionRecall recall;
  recall.layers = model_.shape().layers;
  recall.kv_heads = model_.shape().kv_heads;
  recall.heads.resize(static_cast<size_t>(recall.layers * recall.kv_heads));
  const auto add = [&](const StepInput& input) { return executor_.StepWithRecall(input, &recall); };
  if (Status s = StepThrough(tokens, from, hooks, add); !s.ok()) return s;
  return recall;
}

}  // namespace headway
