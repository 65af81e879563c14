#include "engine/step/dense_rows.h"

#include <algorithm>

namespace headway {
namespace {

struct Sizes {
  int64_t q = 0, o = 0, lse = 0;

  Sizes(const ModelShape& shape, const ExecutorLimits& limits) {
    const int64_t every = limits.selection.dense_every;
    if (every == 0) return;
    // Each entry may end with a block of fewer rows.
    const int64_t rows =
        std::min(limits.step_tokens, CeilDiv(limits.step_tokens, every) + limits.entries);
    const int64_t width = int64_t{shape.query_heads} * shape.head_dim;
    // Kernels may read half as many rows behind the last one (kernels/README.md).
    q = RoundUp((rows + CeilDiv(rows, 2)) * width *
                    static_cast<int64_t>(DTypeBytes(limits.activation_dtype)),
                64);
    o = FloatBytes(rows * width);
    lse = FloatBytes(rows * shape.query_heads);
  }
};

}  // namespace

int64_t DenseRows::Bytes(const ModelShape& shape, const ExecutorLimits& limits) {
  const Sizes sizes(shape, limits);
  return sizes.q + sizes.o + sizes.lse;
}

DenseRows::DenseRows(StepContext& context, const Batch& batch, Memory* memory)
    : context_(context), batch_(batch), every_(context.limits.selection.dense_every) {
  const Sizes sizes(context.shape, context.limits);
  q_ = memory->Take(sizes.q);
  o_ = memory->Floats(sizes.o);
  lse_ = memory->Floats(sizes.lse);
}

void DenseRows::BeginLayer() {
  entries_.assign(static_cast<size_t>(batch_.size()), Entry());
  rows_ = 0;
}

void DenseRows::Begin(int entry_index) {
  if (every_ == 0) return;
  const BatchEntry& rows = batch_[entry_index];
  Entry& entry = entries_[static_cast<size_t>(entry_index)];
  entry.begun = true;
  entry.first = rows_;
  entry.started.assign(static_cast<size_t>(context_.shape.kv_heads), false);
  rows_ += RowsOf(rows.tokens);
  ConvertItem queries;
  queries.from = context_.QueryAt(rows.row, 0);
  queries.from_dtype = context_.limits.activation_dtype;
  queries.from_stride = every_ * context_.act.qkv_stride;
  queries.to = q_ + context_.ActivationBytes(entry.first * context_.QWidth());
  queries.to_dtype = context_.limits.activation_dtype;
  queries.to_stride = context_.QWidth();
  queries.rows = RowsOf(rows.tokens);
  queries.width = context_.QWidth();
  context_.kernels.Convert(context_.compute, queries);
}

void DenseRows::MakeItems(int entry_index, const kv::HeadRun& run, const KeyRun& keys,
                          std::vector<AttentionItem>* items) {
  const ModelShape& shape = context_.shape;
  const BatchEntry& rows = batch_[entry_index];
  Entry& entry = entries_[static_cast<size_t>(entry_index)];
  const int64_t width = context_.QWidth();
  const int64_t head = int64_t{run.head} * shape.group();  // query head
  AttentionItem item;
  item.q = q_ + context_.ActivationBytes(entry.first * width + head * shape.head_dim);
  item.q_stride = width;
  item.tokens = RowsOf(rows.tokens);
  item.q_position = rows.position;
  item.heads = run.heads;
  item.keys = keys;
  item.keys.pages = PagesOf(keys.pages, run);
  item.o = o_ + entry.first * width + head * shape.head_dim;
  item.o_stride = width;
  item.lse = lse_ + entry.first * shape.query_heads + head;
  item.lse_stride = shape.query_heads;
  item.merge = entry.started[static_cast<size_t>(run.head)];
  std::fill_n(entry.started.begin() + run.head, run.heads, true);
  if (keys.position + keys.pages.count <= rows.position) {  // every row sees them all
    items->push_back(item);
    return;
  }
  // The rows lie `every_` positions apart, and see different keys.
  const int64_t count = item.tokens;
  item.tokens = 1;
  for (int64_t row = 0; row < count; ++row) {
    item.keys.pages.count = std::min(keys.pages.count, item.q_position + 1 - keys.position);
    items->push_back(item);
    item.q = static_cast<const std::byte*>(item.q) + context_.ActivationBytes(width);
    item.q_position += every_;
    item.o += width;
    item.lse += shape.query_heads;
  }
}

void DenseRows::Correct() {
  for (int entry = 0; entry < batch_.size(); ++entry) {
    if (!Has(entry)) continue;
    const int64_t width = context_.QWidth();
    const BatchEntry& rows = batch_[entry];
    context_.kernels.CorrectRows(
        context_.compute,
        {.x = static_cast<std::byte*>(context_.act.o) + context_.ActivationBytes(rows.row * width),
         .rows = rows.tokens,
         .width = width,
         .every = every_,
         .exact = o_ + entries_[static_cast<size_t>(entry)].first * width});
  }
}

}  // namespace headway
