// A stretch: prompts that pass through one layer after the other, part by part.
#include <algorithm>
#include <utility>

#include "engine/executor.h"

namespace headway {
namespace {

// Cuts the inputs as steps of so many tokens would have them. What is wanted behind an input's last
// token is wanted of its last piece.
std::vector<std::vector<StepInput>> PartsOf(std::span<const StepInput> inputs, int64_t tokens) {
  std::vector<std::vector<StepInput>> parts;
  int64_t room = 0;
  for (const StepInput& input : inputs) {
    for (size_t at = 0; at < input.tokens.size();) {
      if (room == 0) {
        parts.emplace_back();
        room = tokens;
      }
      const size_t count = std::min(input.tokens.size() - at, static_cast<size_t>(room));
      StepInput piece = input;
      piece.tokens = input.tokens.subspan(at, count);
      at += count;
      if (at < input.tokens.size()) piece.sampler = nullptr;
      parts.back().push_back(piece);
      room -= static_cast<int64_t>(count);
    }
  }
  return parts;
}

}  // namespace

Status Executor::RunStretch(std::span<const StepInput> inputs, int64_t tokens,
                            const std::atomic<bool>* cancel) {
  bool prompts = true;
  for (const StepInput& input : inputs) {
    prompts = prompts && input.logits == LogitsMode::kNone && input.targets.empty() &&
              input.drafts == 0 && !input.drafting;
  }
  if (hidden_ == nullptr || tokens > limits().stretch_tokens || !prompts) {
    return Status(StatusCode::kInvalidArgument,
                  "a step of " + std::to_string(tokens) + " tokens; " +
                      std::to_string(limits().step_tokens) + " are possible, and " +
                      std::to_string(limits().stretch_tokens) + " of prompts");
  }
  const std::vector<std::vector<StepInput>> parts = PartsOf(inputs, limits().step_tokens);
  std::vector<int64_t> rows;
  for (const std::vector<StepInput>& part : parts) {
    int64_t& count = rows.emplace_back();
    for (const StepInput& input : part) count += std::ssize(input.tokens);
  }
  Status status;
  for (const StepInput& input : inputs) {
    if (status.ok()) {
      status = context_.store.BeginStretch(input.sequence, std::ssize(input.tokens));
    }
  }
  if (status.ok()) {
    float* const x = context_.act.x;
    hidden_->Begin(rows, context_.shape.layers, x);
    in_stretch_ = true;
    status = RunParts(parts, cancel);
    in_stretch_ = false;
    hidden_->End();
    context_.act.x = x;
  }
  if (!status.ok()) context_.store.GiveUpStretches();
  return status;
}

Status Executor::RunParts(std::span<const std::vector<StepInput>> parts,
                          const std::atomic<bool>* cancel) {
  const int layers = context_.shape.layers;
  const int64_t all = std::ssize(parts) * layers;
  int64_t done = 0;
  for (int layer = 0; layer < layers; ++layer) {
    for (const std::vector<StepInput>& part : parts) {
      context_.act.x = hidden_->Acquire();
      if (Status s = RunStep(part, layer, cancel); !s.ok()) return s;
      if (layer == layers - 1) {
        if (Status s = FinishStep(part, nullptr); !s.ok()) return s;
      }
      hidden_->Release();
      if (part_seen_ != nullptr) part_seen_(++done, all);
    }
  }
  return OkStatus();
}

}  // namespace headway
