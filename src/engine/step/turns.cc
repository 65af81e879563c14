#include "engine/step/turns.h"

#include <algorithm>
#include <numeric>

namespace headway {
namespace {

struct Sizes {
  int64_t rows = 0, slots = 0, inv_freq = 0;

  Sizes(const ModelShape& shape, const ExecutorLimits& limits) {
    if (!limits.selection.reaches()) return;
    const int64_t half = shape.head_dim / 2;
    rows = FloatBytes(limits.step_tokens * half);
    slots = FloatBytes((limits.step_tokens + limits.entries * limits.page_slots) * half);
    inv_freq = FloatBytes(limits.entries * half);
  }
};

}  // namespace

int64_t Turns::Bytes(const ModelShape& shape, const ExecutorLimits& limits) {
  const Sizes sizes(shape, limits);
  return 2 * sizes.rows + 2 * sizes.slots + sizes.inv_freq;
}

Turns::Turns(StepContext& context, const Batch& batch, Memory* memory)
    : context_(context), batch_(batch), half_(context.model.rotary_dim() / 2) {
  const Sizes sizes(context.shape, context.limits);
  rows_ = {memory->Floats(sizes.rows), memory->Floats(sizes.rows)};
  slots_ = {memory->Floats(sizes.slots), memory->Floats(sizes.slots)};
  inv_freq_ = memory->Floats(sizes.inv_freq);
  on_device_.resize(static_cast<size_t>(context.limits.entries));
}

bool Turns::Turn(int entry) const {
  return context_.limits.selection.reaches() && batch_[entry].rope != nullptr &&
         !batch_[entry].rope->inv_freq.empty();
}

RopeTable Turns::At(const Angles& angles, int64_t row) const {
  return {angles.cos + row * half_, angles.sin + row * half_, static_cast<int>(2 * half_)};
}

int64_t Turns::ClosingRow(int entry) const {
  return batch_[entry].row + entry * int64_t{context_.limits.page_slots};
}

void Turns::Fill(const RopeFrequencies& rope, std::span<const int32_t> positions,
                 const Angles& angles, int64_t row) {
  context_.kernels.RopeAngles(
      context_.compute,
      TurnAngles(rope, positions, angles.cos + row * half_, angles.sin + row * half_));
}

void Turns::Begin() {
  const int64_t slots = context_.limits.page_slots;
  for (int entry = 0; entry < batch_.size(); ++entry) {
    if (!Turn(entry)) continue;
    const BatchEntry& rows = batch_[entry];
    const int64_t end = rows.position + rows.tokens;
    positions_.clear();
    for (int64_t at = rows.position; at < end; ++at) {
      positions_.push_back(static_cast<int32_t>(context_.limits.selection.distance - at));
    }
    Fill(*rows.rope, positions_, rows_, rows.row);
    positions_.clear();
    const int64_t open = rows.position / slots * slots;
    for (int64_t at = open; at < end / slots * slots; ++at) {
      positions_.push_back(static_cast<int32_t>(at));
    }
    if (!positions_.empty()) Fill(*rows.rope, positions_, slots_, ClosingRow(entry));
    std::vector<float>& there = on_device_[static_cast<size_t>(entry)];
    if (there == rows.rope->inv_freq) continue;
    there = rows.rope->inv_freq;
    context_.compute.Copy(reinterpret_cast<std::byte*>(inv_freq_ + entry * half_),
                          reinterpret_cast<const std::byte*>(there.data()),
                          there.size() * sizeof(float));
  }
}

RopeTable Turns::OfRows(int entry) const {
  return Turn(entry) ? At(rows_, batch_[entry].row) : RopeTable{};
}

RopeTable Turns::OfClosing(int entry) const {
  return Turn(entry) ? At(slots_, ClosingRow(entry)) : RopeTable{};
}

kv::SlotAngles Turns::OfSlots(const RopeFrequencies& rope) {
  const ExecutorLimits& limits = context_.limits;
  const int64_t rows = limits.step_tokens + limits.entries * limits.page_slots;
  kv::SlotAngles angles;
  angles.slots = rows / limits.page_slots * limits.page_slots;
  angles.of = [this, &rope](int64_t position, int64_t count) {
    positions_.resize(static_cast<size_t>(count));
    std::iota(positions_.begin(), positions_.end(), static_cast<int32_t>(position));
    Fill(rope, positions_, slots_, 0);
    return At(slots_, 0);
  };
  return angles;
}

KeyRotation Turns::OfKeys(int entry, int layer) const {
  if (!Turn(entry)) return {};
  return {inv_freq_ + entry * half_, static_cast<int>(2 * half_),
          context_.limits.selection.PositionsIn(layer)};
}

BlockMove Turns::MoveTo(int entry, int64_t end, int64_t recent) const {
  if (!Turn(entry)) return {};
  const kv::SelectionPolicy& policy = context_.limits.selection;
  BlockMove move = {inv_freq_ + entry * half_, static_cast<int>(2 * half_), end};
  if (policy.far_positions == kv::SelectionPolicy::FarPositions::kTogether) {
    move.least = std::max<int64_t>(0, end - (recent + 1) * policy.summary.block_slots);
  }
  return move;
}

}  // namespace headway
