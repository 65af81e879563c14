#include "engine/paths/reselection.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "engine/paths/listed_segments.h"
#include "kernels/items.h"
#include "kernels/selection_scratch.h"

namespace headway {
namespace {

constexpr int kBlock = kv::SalientBlocks::kSummary.block_slots;

}  // namespace

Reselection::Places::Places(const ModelShape& shape, const ExecutorLimits& limits) {
  constexpr int64_t kLine = 256;
  const auto take = [this](int64_t count) {
    return std::exchange(bytes, RoundUp(bytes + count * int64_t{sizeof(int32_t)}, kLine));
  };
  capacity = Salience::BlocksOf(limits.salience, limits.length);
  const int64_t lists = limits.entries * shape.kv_heads;
  counts = lists * capacity * int64_t{sizeof(int32_t)};
  take(lists * (capacity + 1));
  slots = take(lists * capacity * kBlock);
  scratch = bytes;
  // At most one head group a head.
  const int64_t segments = CeilDiv(limits.length, limits.segment_tokens) * shape.kv_heads;
  scratch_bytes =
      SelectScratchBytes(shape.kv_heads, shape.group(), limits.length / kBlock, segments);
  bytes += limits.entries * scratch_bytes;
}

int64_t Reselection::Bytes(const ModelShape& shape, const ExecutorLimits& limits) {
  return limits.salience.reselects() ? Places(shape, limits).bytes : 0;
}

Reselection::Reselection(const PathParts& parts)
    : context_(parts.context),
      batch_(parts.batch),
      salience_(*parts.salience),
      memory_(parts.memory),
      places_(context_.shape, context_.limits),
      keys_(BlockedKeysIn(context_.store.format())) {
  // Copies read them.
  slots_.reserve(static_cast<size_t>(context_.limits.entries * context_.shape.kv_heads *
                                     places_.capacity * kBlock));
}

SelectItem Reselection::ItemFor(int number, const Entry& entry,
                                const SegmentPlace* segments) const {
  const int64_t heads = context_.shape.kv_heads;
  const int64_t blocks = entry.chosen->before / kBlock;
  SelectItem item;
  item.q = context_.QueryAt(batch_[entry.entry].row, 0);
  item.keys = keys_;
  item.keys.segments = {segments, entry.far.size()};
  item.keys.blocks = blocks;
  item.budget.far_end = blocks;
  item.budget.share = BudgetShare::kHead;
  // All heads of a layer have chosen as often.
  const auto first = static_cast<size_t>(salience_.HeadIndex(entry.far[0].layer, 0));
  item.budget.far_blocks =
      entry.chosen->blocks[first].ToList(blocks, salience_.PlacesOf(*entry.chosen));
  item.blocks = reinterpret_cast<int32_t*>(memory_) + number * heads * places_.capacity;
  item.capacity = places_.capacity;
  item.counts = reinterpret_cast<int32_t*>(memory_ + places_.counts) + number * heads;
  item.scratch = memory_ + places_.scratch + number * places_.scratch_bytes;
  return item;
}

void Reselection::Choose(int layer, std::span<const Entry> entries) {
  kv::StepReads& reads = context_.store.reads();
  segments_.clear();
  for (const Entry& entry : entries) {
    reads.AwaitInPlace(entry.far);
    for (const kv::SlabRead& slab : entry.far) {
      HEADWAY_CHECK(reads.PlaceOf(slab).summarised);
      segments_.push_back(reads.InPlace(slab));
    }
  }
  selects_.clear();
  const SegmentPlace* segments = segments_.data();
  for (size_t i = 0; i < entries.size(); ++i) {
    selects_.push_back(ItemFor(static_cast<int>(i), entries[i], segments));
    segments += entries[i].far.size();
  }
  context_.kernels.SelectBlocks(context_.compute, context_.format, kv::SalientBlocks::kSummary,
                                context_.shape.group(), AttentionScale(context_.shape), selects_);
  const int64_t heads = std::ssize(entries) * context_.shape.kv_heads;
  const auto width = static_cast<size_t>(heads) * sizeof(int32_t);
  auto* const lists = reinterpret_cast<std::byte*>(salience_.lists());
  context_.compute.Copy(lists, memory_, width * static_cast<size_t>(places_.capacity));
  context_.compute.Copy(lists + places_.counts, memory_ + places_.counts, width);
  // Slots of the layer before have come to the device, too.
  reads.AwaitCompute();
  gathers_.clear();
  slots_.clear();
  for (size_t i = 0; i < entries.size(); ++i) Gather(layer, static_cast<int>(i), entries[i]);
  if (!gathers_.empty()) {
    context_.compute.Copy(memory_ + places_.slots,
                          reinterpret_cast<const std::byte*>(slots_.data()),
                          slots_.size() * sizeof(int32_t));
    context_.kernels.GatherSlots(context_.compute, context_.format, gathers_);
  }
  for (const Entry& entry : entries) reads.FinishInPlace(entry.far);
}

// Gives listed blocks of an entry their places.
void Reselection::Gather(int layer, int number, const Entry& entry) {
  const int heads = context_.shape.kv_heads;
  const int64_t places = salience_.PlacesOf(*entry.chosen);
  const int32_t* const counts =
      salience_.lists() + places_.counts / int64_t{sizeof(int32_t)} + int64_t{number} * heads;
  for (int head = 0; head < heads; ++head) {
    const int64_t list = int64_t{number} * heads + head;
    const auto index = static_cast<size_t>(salience_.HeadIndex(layer, head));
    kv::SalientBlocks& blocks = entry.chosen->blocks[index];
    moves_.clear();
    blocks.Choose({salience_.lists() + list * places_.capacity, static_cast<size_t>(counts[head])},
                  places, &moves_);
    entry.chosen->counts[index] = std::ssize(blocks.blocks()) * kBlock;
    AddGathers(layer, head, entry, moves_);
  }
}

// Neighbours that go from one slab to neighbouring places go together.
void Reselection::AddGathers(int layer, int head, const Entry& entry,
                             std::span<const kv::SalientBlocks::Move> moves) {
  const int group = head / keys_.group_heads;
  const auto segments = std::ssize(entry.far) / keys_.head_groups();
  const PageRun to = salience_.KeysOf(*entry.chosen, layer, head).pages;
  int64_t last_segment = -1, next_place = -1;
  for (const auto& [block, place] : moves) {
    const int64_t segment = block / keys_.segment_blocks;
    if (segment != last_segment || place != next_place) {
      GatherSlotsItem& item = gathers_.emplace_back();
      const kv::SlabRead& slab = entry.far[static_cast<size_t>(group * segments + segment)];
      item.from = kv::PagesOf(context_.store.reads().KeysInPlace(slab).pages,
                              {head, 1, head % keys_.group_heads});
      item.slots = reinterpret_cast<const int32_t*>(memory_ + places_.slots) + slots_.size();
      item.to = to;
      item.to.first_slot = int64_t{place} * kBlock;
      item.to.count = 0;
    }
    last_segment = segment;
    next_place = place + 1;
    GatherSlotsItem& item = gathers_.back();
    item.count += kBlock;
    item.to.count += kBlock;
    const auto first = static_cast<int32_t>(block % keys_.segment_blocks) * kBlock;
    for (int32_t slot = 0; slot < kBlock; ++slot) slots_.push_back(first + slot);
  }
}

}  // namespace headway
