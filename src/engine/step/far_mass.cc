#include "engine/step/far_mass.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "kernels/items.h"

namespace headway {

FarMass::FarMass(StepContext& context, const Batch& batch, Board& board, const NearKeys& near,
                 std::span<float> far)
    : context_(context),
      batch_(batch),
      board_(board),
      near_(near),
      far_(far),
      started_(static_cast<size_t>(context.shape.kv_heads)),
      lse_(2 * static_cast<size_t>(context.shape.query_heads)) {
  HEADWAY_CHECK(far.size() ==
                static_cast<size_t>(context.shape.layers * context.shape.query_heads));
}

// The near ones of a range's keys, which are all at or before the query, join the state of those
// before.
void FarMass::OnRange(int /*entry*/, std::span<const kv::HeadRun> heads, const KeyRun& keys) {
  const int64_t begin = keys.position;
  const int64_t end = begin + keys.pages.count;
  const int64_t sink_end = std::clamp(near_.sink, begin, end);
  const int64_t recent_begin = std::clamp(batch_[0].position - near_.recent + 1, sink_end, end);
  for (const auto& [from, to] : {std::pair(begin, sink_end), {recent_begin, end}}) {
    if (from == to) continue;
    board_.Flush();  // items of a call do not merge into one state
    for (const kv::HeadRun& run : heads) AddState(run, keys, from, to);
  }
}

// Of the keys at positions [from, to).
void FarMass::AddState(const kv::HeadRun& run, const KeyRun& keys, int64_t from, int64_t to) {
  const int64_t head = int64_t{run.head} * context_.shape.group();
  AttentionItem item;
  item.q = context_.QueryAt(0, head);
  item.q_stride = context_.act.qkv_stride;
  item.tokens = 1;
  item.q_position = batch_[0].position;
  item.heads = run.heads;
  item.keys = KeysOf(context_.format, keys, 0, from - keys.position, to - from);
  item.keys.pages = PagesOf(item.keys.pages, run);
  item.o = board_.o() + context_.QWidth() + head * context_.shape.head_dim;
  item.o_stride = context_.QWidth();
  item.lse = board_.lse() + context_.shape.query_heads + head;
  item.lse_stride = context_.shape.query_heads;
  item.merge = started_[static_cast<size_t>(run.head)];
  board_.Add(item);
  std::fill_n(started_.begin() + run.head, run.heads, true);
}

// With lse over all keys and lse' over some of them, those have the share exp(lse' - lse).
Status FarMass::OnLayer(int layer) {
  std::fill(started_.begin(), started_.end(), false);
  context_.compute.Copy(reinterpret_cast<std::byte*>(lse_.data()),
                        reinterpret_cast<const std::byte*>(board_.lse()),
                        lse_.size() * sizeof(float));
  if (Status s = context_.compute.Synchronize(); !s.ok()) return s;
  const auto heads = static_cast<size_t>(context_.shape.query_heads);
  for (size_t head = 0; head < heads; ++head) {
    const float near = std::exp(lse_[heads + head] - lse_[head]);
    far_[static_cast<size_t>(layer) * heads + head] = std::clamp(1.0f - near, 0.0f, 1.0f);
  }
  return OkStatus();
}

}  // namespace headway
