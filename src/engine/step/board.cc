#include "engine/step/board.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "engine/step/selected_states.h"
#include "kernels/items.h"

namespace headway {
namespace {

// Parts of a decode item's states for a sequence of `length` tokens, the tail's among them. Alone
// it has the most: parts are the longer the more keys there are beside its own.
int64_t PartsAt(const ModelShape& shape, const ExecutorLimits& limits, const KernelSizes& kernels,
                int64_t length) {
  const int64_t split = RoundUp(kernels.DecodeSplit(length, shape.kv_heads), limits.page_slots);
  const int64_t of_slab = CeilDiv(limits.segment_tokens, split);
  // With Self-Extend the slab that has far and near keys is attended to twice.
  const int64_t slabs = CeilDiv(length, limits.segment_tokens) + (limits.self_extend.on() ? 1 : 0);
  // Salient tokens are fewer than those that they stand for; their last part may be short, and so
  // is that of the slab at the window's edge.
  const int64_t of_slabs = slabs * of_slab + 1 + (limits.salience.chooses() ? 2 : 0);
  // Of the five ranges of a streaming head each may end in a short part.
  return limits.streaming_heads ? std::max(of_slabs, CeilDiv(length, split) + 5) : of_slabs;
}

// The most of any length: longer sequences may be split into fewer parts.
int64_t MaxParts(const ModelShape& shape, const ExecutorLimits& limits,
                 const KernelSizes& kernels) {
  int64_t parts = 0;
  for (int64_t length = limits.keys > 0 ? limits.keys : limits.length; length > 0; length /= 2) {
    parts = std::max(parts, PartsAt(shape, limits, kernels, length));
  }
  // Lengths between sampled ones, of which each is half of the one before, have up to twice as
  // many.
  return 2 * parts + SelectedStates(shape, limits, kernels).parts +
         DemotedStates(shape, limits, kernels).parts;
}

// Whether `next`, of one head, continues the item, whose heads end where its head begins. Then it
// is one more of it.
bool Join(AttentionItem* item, const AttentionItem& next, int group, int64_t head_elements,
          int64_t head_bytes) {
  const int64_t rows = int64_t{item->heads} * group;
  PageRun& pages = item->keys.pages;
  const PageRun& more = next.keys.pages;
  const int64_t stride = HeadStrideWith(pages, item->heads, more);
  if (next.heads != 1 || stride == 0 || pages.params != nullptr || more.params != nullptr ||
      more.count != pages.count || more.first_slot != pages.first_slot ||
      next.keys.position != item->keys.position ||
      next.q != static_cast<const std::byte*>(item->q) + rows * head_bytes ||
      next.o != item->o + rows * head_elements || next.lse != item->lse + rows) {
    return false;
  }
  pages.head_stride = stride;
  ++item->heads;
  return true;
}

struct Sizes {
  int64_t o, lse, part_o, part_lse;

  Sizes(const ModelShape& shape, const ExecutorLimits& limits, const KernelSizes& kernels) {
    const int64_t rows = limits.step_tokens * shape.query_heads;
    o = limits.activation_dtype == DType::kF32 ? 0 : FloatBytes(rows * shape.head_dim);
    lse = FloatBytes(rows * limits.sharing_ranks);
    const int64_t states = limits.entries * limits.decode_tokens() *
                           MaxParts(shape, limits, kernels) * shape.query_heads;
    part_o = FloatBytes(states * shape.head_dim);
    part_lse = FloatBytes(states);
  }
};

}  // namespace

int64_t Board::Bytes(const ModelShape& shape, const ExecutorLimits& limits,
                     const KernelSizes& kernels) {
  const Sizes sizes(shape, limits, kernels);
  return sizes.o + sizes.lse + sizes.part_o + sizes.part_lse + DenseRows::Bytes(shape, limits);
}

Board::Board(StepContext& context, const Batch& batch, Reads& reads, Memory* memory)
    : context_(context),
      batch_(batch),
      reads_(reads),
      max_parts_(MaxParts(context.shape, context.limits, context.kernels)),
      lse_stride_(int64_t{context.limits.sharing_ranks} * context.shape.query_heads),
      dense_(context, batch, memory) {
  const Sizes sizes(context.shape, context.limits, context.kernels);
  o_ = sizes.o == 0 ? static_cast<float*>(context.act.o) : memory->Floats(sizes.o);
  lse_ = memory->Floats(sizes.lse);
  if (context.limits.sharing_ranks > 1) {
    HEADWAY_CHECK(context.shared != nullptr &&
                  context.shared->ranks() == context.limits.sharing_ranks);
    lse_ += int64_t{context.shared->rank()} * context.shape.query_heads;
  }
  part_o_ = memory->Floats(sizes.part_o);
  part_lse_ = memory->Floats(sizes.part_lse);
}

void Board::BeginLayer(int layer) {
  layer_ = layer;
  window_ = context_.WindowOf(layer);
  states_.assign(static_cast<size_t>(batch_.size() * context_.shape.kv_heads), HeadStates());
  tails_.assign(static_cast<size_t>(batch_.size()), 0);
  results_taken_.assign(static_cast<size_t>(batch_.size()), false);
  const SharedHeads* const shared = context_.shared;
  scales_parts_ = context_.limits.sharing_ranks > 1 && shared->AnyIn(layer);
  for (int entry = 0; shared != nullptr && entry < batch_.size(); ++entry) {
    for (const SharedHead& head : shared->In(layer)) {
      StatesOf(entry, head.slot).part = scales_parts_;
      StatesOf(entry, head.slot).elsewhere = !scales_parts_ && !head.first();
    }
  }
  dense_.BeginLayer();
}

// The states of an entry's heads from part `part` on; of each part, [tokens] one behind the other.
Board::States Board::StatesFrom(int entry, int64_t part) const {
  const int64_t width = context_.QWidth();
  const int64_t tokens = context_.limits.decode_tokens();
  const int64_t first = (entry * max_parts_ + part) * tokens;
  return {part_o_ + first * width, tokens * width, part_lse_ + first * context_.shape.query_heads,
          tokens * context_.shape.query_heads};
}

// The heads of the run have equal states. Their next state is the item's.
AttentionItem Board::MakeItem(int entry_index, const kv::HeadRun& run, const KeyRun& keys,
                              RangeOrder order) {
  const BatchEntry& entry = batch_[entry_index];
  const ModelShape& shape = context_.shape;
  const int64_t width = context_.QWidth();
  const int64_t head = int64_t{run.head} * shape.group();  // query head
  AttentionItem item;
  item.q = context_.QueryAt(entry.row, head);
  item.q_stride = context_.act.qkv_stride;
  item.tokens = entry.tokens;
  item.q_position = entry.position;
  item.heads = run.heads;
  item.keys = keys;
  item.keys.pages = PagesOf(keys.pages, run);
  item.o_stride = width;
  HeadStates states = StatesOf(entry_index, run.head);
  if (states.elsewhere) item.keys.pages.count = 0;
  if (entry.decode) {
    const States parts = StatesFrom(entry_index, states.parts);
    item.lse_stride = shape.query_heads;
    item.split = window_ == 0 ? entry.split : entry.split_in_windows;
    item.o = parts.o + head * shape.head_dim;
    item.o_part_stride = parts.o_part_stride;
    item.lse = parts.lse + head;
    item.lse_part_stride = parts.lse_part_stride;
    states.parts += static_cast<int>(PartsOf(item));
    HEADWAY_CHECK(states.parts <= max_parts_);
  } else {
    item.o = o_ + entry.row * width + head * shape.head_dim;
    item.lse = LseAt(entry.row, head);
    item.lse_stride = lse_stride_;
    item.merge = states.started;
    // Of a part the state is wanted.
    if (order == RangeOrder::kLast && o_ != context_.act.o && !states.part) {
      item.result = static_cast<std::byte*>(context_.act.o) +
                    context_.ActivationBytes(entry.row * width + head * shape.head_dim);
      item.result_stride = width;
    }
  }
  states.started = true;
  std::fill_n(&StatesOf(entry_index, run.head), run.heads, states);
  return item;
}

void Board::MakeItems(int entry, std::span<const kv::HeadRun> heads, const KeyRun& keys,
                      RangeOrder order, std::vector<AttentionItem>* items) {
  HEADWAY_CHECK(!ResultTaken(entry));
  for (const kv::HeadRun& run : heads) {
    // Neighbours whose states are equal go together.
    for (int first = 0, end = 0; first < run.heads; first = end) {
      const HeadStates& states = StatesOf(entry, run.head + first);
      for (end = first + 1; end < run.heads && StatesOf(entry, run.head + end) == states;) ++end;
      // Without keys there is nothing to do, but that prefills write what their last range leaves.
      const bool empty = states.elsewhere || keys.pages.count == 0;
      if (empty && (batch_[entry].decode || order == RangeOrder::kMoreFollow)) continue;
      const kv::HeadRun part = {run.head + first, end - first, run.index + first};
      items->push_back(MakeItem(entry, part, keys, order));
    }
  }
}

void Board::Attend(int entry, std::span<const kv::HeadRun> heads, const KeyRun& keys,
                   RangeOrder order) {
  const size_t before = items_.size();
  MakeItems(entry, heads, keys, order, &items_);
  if (batch_[entry].decode && order == RangeOrder::kLast && items_.size() == before + 1) {
    JoinTail(entry);
  }
  if (dense_.Has(entry)) AttendWithDenseRows(entry, heads, keys);
  if (observer_ != nullptr) observer_->OnRange(entry, heads, keys);
}

// Where each head is a group of its own, the open page of a sequence is one item of all its heads,
// as far as these have as many states.
void Board::JoinTail(int entry) {
  size_t& tail = tails_[static_cast<size_t>(entry)];
  const int64_t head_dim = context_.shape.head_dim;
  if (tail > 0 && Join(&items_[tail - 1], items_.back(), context_.shape.group(), head_dim,
                       context_.ActivationBytes(head_dim))) {
    items_.pop_back();
  } else {
    tail = items_.size();
  }
}

void Board::AttendWithDenseRows(int entry, std::span<const kv::HeadRun> heads, const KeyRun& keys) {
  for (const kv::HeadRun& run : heads) dense_.MakeItems(entry, run, keys, &items_);
}

Board::States Board::TakeStates(int entry, const kv::HeadRun& heads, int parts) {
  for (int head = heads.head; head < heads.head + heads.heads; ++head) {
    HeadStates& states = StatesOf(entry, head);
    HEADWAY_CHECK(batch_[entry].decode && !states.started && parts <= max_parts_);
    states.parts = parts;
    states.started = true;
  }
  const int64_t head = int64_t{heads.head} * context_.shape.group();  // query head
  States states = StatesFrom(entry, 0);
  states.o += head * context_.shape.head_dim;
  states.lse += head;
  return states;
}

// The last ones of the first entry: MaxParts counts them behind those of all ranges.
Board::SpareStates Board::StatesOfObserver() const {
  HEADWAY_CHECK(observer_ != nullptr && observer_->WantsLists() && batch_.size() == 1);
  const int parts = SelectedStates(context_.shape, context_.limits, context_.kernels).parts;
  return {StatesFrom(0, max_parts_ - parts), parts};
}

void* Board::TakeResult(int entry) {
  HEADWAY_CHECK(batch_[entry].decode && observer_ == nullptr);
  results_taken_[static_cast<size_t>(entry)] = true;
  return ResultAt(entry, 0, 0);
}

Board::RowStates Board::TakeRowStates(int entry, const kv::HeadRun& heads) {
  for (int head = heads.head; head < heads.head + heads.heads; ++head) {
    HeadStates& states = StatesOf(entry, head);
    HEADWAY_CHECK(!batch_[entry].decode && !states.started);
    states.started = true;
  }
  if (!dense_.Has(entry)) dense_.Begin(entry);
  const int64_t width = context_.QWidth();
  const int64_t row = batch_[entry].row;
  const int64_t head = int64_t{heads.head} * context_.shape.group();  // query head
  return {o_ + row * width + head * context_.shape.head_dim, width, LseAt(row, head), lse_stride_};
}

void Board::AddLastState(int entry, std::span<const kv::HeadRun> heads, const float* o,
                         const float* lse) {
  HEADWAY_CHECK(!ResultTaken(entry));
  for (const kv::HeadRun& run : heads) {
    for (int head = run.head; head < run.head + run.heads; ++head) {
      if (StatesOf(entry, head).elsewhere) continue;
      StatesOf(entry, head).last_o = o;
      StatesOf(entry, head).last_lse = lse;
    }
  }
}

AttentionParams Board::Params(int64_t window) const {
  AttentionParams params;
  params.scale = AttentionScale(context_.shape);
  params.window = window;
  return params;
}

void Board::FlushWithin(int64_t window) {
  if (!items_.empty()) {
    context_.kernels.Attend(context_.compute, context_.format, context_.shape.group(),
                            Params(window), items_);
    items_.clear();
    tails_.assign(tails_.size(), 0);
  }
  reads_.FinishHeld();
}

void* Board::ResultAt(int entry, int64_t token, int64_t query_head) const {
  return static_cast<std::byte*>(context_.act.o) +
         context_.ActivationBytes((batch_[entry].row + token) * context_.QWidth() +
                                  query_head * context_.shape.head_dim);
}

MergeItem Board::MakeMerge(int entry, int64_t token, const kv::HeadRun& run) {
  const ModelShape& shape = context_.shape;
  const int64_t width = context_.QWidth();
  const HeadStates& states = StatesOf(entry, run.head);
  const int64_t head = int64_t{run.head} * shape.group();  // query head
  const States parts = StatesFrom(entry, 0);
  MergeItem item;
  item.part_o = parts.o + token * width + head * shape.head_dim;
  item.o_part_stride = parts.o_part_stride;
  item.part_lse = parts.lse + token * shape.query_heads + head;
  item.lse_part_stride = parts.lse_part_stride;
  item.parts = states.parts;
  if (states.last_o != nullptr) {
    item.extra_o = states.last_o + token * width + head * shape.head_dim;
    item.extra_lse = states.last_lse + token * shape.query_heads + head;
  }
  item.rows = int64_t{run.heads} * shape.group();
  item.o = ResultAt(entry, token, head);
  if (observer_ != nullptr || scales_parts_) item.lse = LseAt(batch_[entry].row + token, head);
  return item;
}

Status Board::Merge() {
  merges_.clear();
  const int heads = context_.shape.kv_heads;
  for (int entry = 0; entry < batch_.size(); ++entry) {
    if (!batch_[entry].decode || ResultTaken(entry)) continue;
    for (int first = 0, end = 0; first < heads; first = end) {
      const HeadStates& states = StatesOf(entry, first);
      for (end = first + 1; end < heads && StatesOf(entry, end) == states;) ++end;
      for (int64_t token = 0; token < batch_[entry].tokens; ++token) {
        merges_.push_back(MakeMerge(entry, token, {first, end - first, 0}));
      }
    }
  }
  if (!merges_.empty()) context_.kernels.Merge(context_.compute, context_.shape.head_dim, merges_);
  dense_.Correct();
  if (scales_parts_) ScaleParts();
  return observer_ == nullptr ? OkStatus() : observer_->OnLayer(layer_);
}

void Board::ScaleParts() {
  const ModelShape& shape = context_.shape;
  const SharedHeads& shared = *context_.shared;
  const int64_t own = int64_t{shared.rank()} * shape.query_heads;
  context_.communicator->AllGather(context_.compute, {.data = lse_ - own,
                                                      .rows = batch_.tokens(),
                                                      .columns = lse_stride_,
                                                      .begin = own,
                                                      .end = own + shape.query_heads});
  scales_.clear();
  for (const SharedHead& head : shared.In(layer_)) {
    ScaleHeldItem item;
    item.o_stride = item.from_stride = context_.QWidth();
    item.lse_stride = lse_stride_;
    item.own = head.own;
    for (const HeadHolder& holder : head.holders) {
      item.columns[item.holders++] = holder.rank * shape.query_heads + holder.slot * shape.group();
    }
    // Entries of one kind lie side by side.
    for (int entry = 0, end = 0; entry < batch_.size(); entry = end) {
      const bool decode = batch_[entry].decode;
      item.rows = 0;
      for (end = entry; end < batch_.size() && batch_[end].decode == decode; ++end) {
        HEADWAY_CHECK(!ResultTaken(end));
        item.rows += batch_[end].tokens;
      }
      const int64_t column = int64_t{head.slot} * shape.group() * shape.head_dim;
      item.o = ResultAt(entry, 0, int64_t{head.slot} * shape.group());
      item.from = decode || o_ == context_.act.o
                      ? nullptr
                      : o_ + batch_[entry].row * context_.QWidth() + column;
      item.lse = lse_ - own + batch_[entry].row * lse_stride_;
      scales_.push_back(item);
    }
  }
  if (scales_.empty()) return;
  context_.kernels.ScaleHeld(context_.compute, shape.head_dim, shape.group(), scales_);
}

void Board::Abort() {
  items_.clear();
  reads_.Abort();
}

}  // namespace headway
