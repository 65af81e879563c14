#include "engine/step/observed_queries.h"

#include <algorithm>

namespace headway {

int64_t ObservedQueries::Bytes(const ModelShape& shape, const ExecutorLimits& limits) {
  return RoundUp(int64_t{shape.layers} * limits.observed_queries * shape.query_heads *
                     shape.head_dim * static_cast<int64_t>(DTypeBytes(limits.activation_dtype)),
                 64);
}

ObservedQueries::ObservedQueries(StepContext& context, const Batch& batch, Memory* memory)
    : context_(context),
      batch_(batch),
      memory_(memory->Take(Bytes(context.shape, context.limits))) {}

std::byte* ObservedQueries::Row(int layer, int64_t position) const {
  const int64_t rows = context_.limits.observed_queries;
  return memory_ + context_.ActivationBytes((layer * rows + position % rows) * context_.QWidth());
}

void ObservedQueries::Take(int layer) {
  const int64_t ring = context_.limits.observed_queries;
  if (ring == 0) return;
  const std::span<const BatchEntry> entries = batch_.entries();
  const auto last = std::find_if(entries.rbegin(), entries.rend(),
                                 [](const BatchEntry& each) { return each.observed; });
  if (last == entries.rend()) return;
  const BatchEntry& entry = *last;
  const int64_t end = entry.position + entry.tokens;
  if (layer == 0) {
    if (!EndOf(entry.sequence, entry.position)) first_ = entry.position;
    sequence_ = entry.sequence;
    end_ = end;
  }
  const auto width = static_cast<size_t>(context_.ActivationBytes(context_.QWidth()));
  int64_t position = std::max(entry.position, end - ring);
  while (position < end) {
    const int64_t rows = std::min(end - position, ring - position % ring);
    context_.compute.Copy2D(Row(layer, position), width,
                            context_.QueryAt(entry.row + position - entry.position, 0),
                            static_cast<size_t>(context_.ActivationBytes(context_.act.qkv_stride)),
                            width, static_cast<size_t>(rows));
    position += rows;
  }
}

std::array<ObservedQueries::Run, 2> ObservedQueries::Of(int layer) const {
  const int64_t ring = context_.limits.observed_queries;
  std::array<Run, 2> runs;
  int64_t position = begin();
  for (Run& run : runs) {
    if (position == end_) break;
    run = {Row(layer, position), std::min(end_ - position, ring - position % ring), position};
    position += run.rows;
  }
  return runs;
}

int64_t ObservedQueries::begin() const {
  return std::max(first_, end_ - context_.limits.observed_queries);
}

std::vector<KeyLogitsItem> ObservedQueries::LogitsItems(int layer, int head,
                                                        std::span<const KeyRun> keys, int64_t begin,
                                                        int64_t end, const Logits& logits) const {
  const ModelShape& shape = context_.shape;
  const int group = shape.group();
  std::vector<KeyLogitsItem> items;
  int64_t row = 0;
  for (const Run& run : Of(layer)) {
    const int64_t first = std::max(begin, run.position);
    const int64_t rows = std::min(end, run.position + run.rows) - first;
    if (rows <= 0) continue;
    for (const KeyRun& range : keys) {
      if (range.pages.count == 0) continue;
      KeyLogitsItem item;
      item.q = run.q + context_.ActivationBytes((first - run.position) * context_.QWidth() +
                                                int64_t{head} * group * shape.head_dim);
      item.q_stride = context_.QWidth();
      item.rows = rows;
      item.q_position = first;
      item.keys = range;
      item.logits = logits.at + row * group * logits.stride + range.position - logits.first;
      item.stride = logits.stride;
      items.push_back(item);
    }
    row += rows;
  }
  return items;
}

}  // namespace headway
