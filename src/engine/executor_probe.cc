// How the attention of a decode step spreads, for profiling heads.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "engine/executor.h"

namespace headway {

Status Executor::ProbeFarAttention(const StepInput& input, int64_t sink, int64_t recent,
                                   std::span<float> far) {
  HEADWAY_CHECK(far.size() == static_cast<size_t>(shape_.layers * shape_.query_heads));
  if (input.tokens.size() != 1 || limits_.step_tokens < 2 || limits_.streaming_heads) {
    return Status(StatusCode::kInvalidArgument,
                  "attention is profiled a token at a time, without streaming heads, with chunks "
                  "of at least 2 tokens");
  }
  Probe probe{.sink = sink, .recent = recent, .far = far};
  probe.lse.resize(2 * static_cast<size_t>(shape_.query_heads));
  probe_ = &probe;
  const Status status = Step({&input, 1}, {}, nullptr);
  probe_ = nullptr;
  return status;
}

// Adds those of a range's keys to the probe's state that are in the sink or recent: all at or
// before the query.
void Executor::ProbeRange(int layer, int group, const KeyRun& keys) {
  const int64_t begin = keys.position;
  const int64_t end = begin + keys.pages.count;
  const int64_t sink_end = std::clamp(probe_->sink, begin, end);
  const int64_t recent_begin = std::clamp(entries_[0].position - probe_->recent + 1, sink_end, end);
  for (const auto& [from, to] : {std::pair(begin, sink_end), {recent_begin, end}}) {
    if (from == to) continue;
    Flush(WindowOf(layer));  // items of a call do not merge into one state
    for (const kv::HeadRun& run : RunsOf(layer, group)) {
      const int64_t head = int64_t{run.head} * shape_.group();
      AttentionItem item;
      item.q = static_cast<const std::byte*>(act_.q) + ActivationBytes(head * shape_.head_dim);
      item.q_stride = act_.qkv_stride;
      item.tokens = 1;
      item.q_position = entries_[0].position;
      item.heads = run.heads;
      item.keys.pages = PagesOf(keys.pages, run);
      const int64_t slot = keys.pages.first_slot + from - begin;
      const int64_t page = slot / limits_.page_slots;
      item.keys.pages.k += page * keys.pages.page_stride;
      item.keys.pages.v += page * keys.pages.page_stride;
      if (keys.pages.params != nullptr) {
        item.keys.pages.params += page * keys.pages.params_page_stride;
      }
      item.keys.pages.first_slot = slot % limits_.page_slots;
      item.keys.pages.count = to - from;
      item.keys.pages.readable = 0;
      item.keys.position = from;
      item.o = o_ + QWidth() + head * shape_.head_dim;
      item.o_stride = QWidth();
      item.lse = lse_ + shape_.query_heads + head;
      item.lse_stride = shape_.query_heads;
      item.merge = probe_->started;
      items_.push_back(item);
    }
    probe_->started = true;
  }
}

// With lse over all keys and lse' over some of them, those have the share exp(lse' - lse).
Status Executor::FinishProbe(int layer) {
  const auto heads = static_cast<size_t>(shape_.query_heads);
  compute_.Copy(reinterpret_cast<std::byte*>(probe_->lse.data()),
                reinterpret_cast<const std::byte*>(lse_), probe_->lse.size() * sizeof(float));
  if (Status s = compute_.Synchronize(); !s.ok()) return s;
  for (size_t head = 0; head < heads; ++head) {
    const float near = std::exp(probe_->lse[heads + head] - probe_->lse[head]);
    probe_->far[static_cast<size_t>(layer) * heads + head] = std::clamp(1.0f - near, 0.0f, 1.0f);
  }
  return OkStatus();
}

}  // namespace headway
