#include "engine/paths/self_extend.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "model/self_extend.h"

namespace headway {
namespace {

// Of the keys that are turned: the memory begins on a multiple of this.
constexpr int64_t kPageAlignment = 4096;

// The parts of its memory, in order.
struct Sizes {
  int64_t keys, queries, key_angles, query_angles;

  Sizes(const ModelShape& shape, const ExecutorLimits& limits) {
    const PageFormat page = {shape.dtype, limits.page_slots, shape.head_dim};
    const int64_t stride = kv::CacheFormat::Padded(static_cast<int64_t>(page.bytes()));
    keys = shape.kv_heads * (limits.segment_tokens / limits.page_slots) * stride;
    keys = RoundUp(keys, kPageAlignment);
    const auto element = static_cast<int64_t>(DTypeBytes(limits.activation_dtype));
    queries = RoundUp(limits.step_tokens * shape.query_heads * shape.head_dim * element, 64);
    key_angles = FloatBytes(limits.length * (shape.head_dim / 2));
    query_angles = FloatBytes(limits.step_tokens * (shape.head_dim / 2));
  }
  int64_t total() const { return keys + queries + 2 * key_angles + 2 * query_angles; }
};

class SelfExtendPath : public AttentionPath {
 public:
  explicit SelfExtendPath(const PathParts& parts)
      : parts_(parts),
        context_(parts.context),
        extend_(context_.limits.self_extend),
        half_(context_.model.rotary_dim() / 2) {
    const Sizes sizes(context_.shape, context_.limits);
    Memory memory(parts.memory);
    keys_ = memory.Take(sizes.keys);
    queries_ = memory.Take(sizes.queries);
    key_angles_ = {memory.Floats(sizes.key_angles), memory.Floats(sizes.key_angles)};
    query_angles_ = {memory.Floats(sizes.query_angles), memory.Floats(sizes.query_angles)};
  }

  void BeginStep() override;
  bool TakesResident() const override { return true; }
  void Take(int layer, std::vector<SlabRange>* ranges) override;
  void BeginLayer(int layer) override;
  Status Attend(int layer, int group) override;

 private:
  // Rows of cosines and of sines.
  struct Angles {
    float* cos = nullptr;
    float* sin = nullptr;
  };
  static int64_t LastPosition(const BatchEntry& entry) { return entry.position + entry.tokens - 1; }
  // Keys of a sequence from the first on that are far from an entry's last query.
  int64_t FarKeys(const BatchEntry& entry) const {
    return std::max<int64_t>(0, LastPosition(entry) - extend_.window + 1);
  }
  bool IsFar(int layer, const BatchEntry& entry) const {
    return context_.WindowOf(layer) == 0 && entry.rope != nullptr && FarKeys(entry) > 0;
  }
  RopeTable At(const Angles& angles, int64_t row) const {
    return {angles.cos + row * half_, angles.sin + row * half_, static_cast<int>(2 * half_)};
  }
  void Fill(const RopeFrequencies& rope, const Angles& angles, int64_t row);
  void FillKeys(const RopeFrequencies& rope, int64_t count);
  void AttendNear(int entry, int layer, int group, const kv::SlabView& view);
  void AttendFar(int entry, int layer, int group, const kv::SlabView& view);

  const PathParts parts_;
  StepContext& context_;
  const SelfExtend extend_;
  const int64_t half_;
  std::byte* keys_;     // of a slab: its K at grouped positions
  std::byte* queries_;  // [step_tokens, query_heads, head_dim] activations: q at grouped positions
  // How keys and queries are rotated on from where they are.
  Angles key_angles_;    // [length, half], of which the first filled_ are there
  Angles query_angles_;  // [step_tokens, half]
  int64_t filled_ = 0;
  std::vector<float> inv_freq_;  // of the angles that are there
  std::vector<int32_t> positions_;
  std::vector<AttentionItem> items_;
};

// The angles of positions_.
void SelfExtendPath::Fill(const RopeFrequencies& rope, const Angles& angles, int64_t row) {
  context_.kernels.RopeAngles(
      context_.compute,
      TurnAngles(rope, positions_, angles.cos + row * half_, angles.sin + row * half_));
}

// All sequences of a context have the same frequencies: Generator::RopeOf.
void SelfExtendPath::FillKeys(const RopeFrequencies& rope, int64_t count) {
  HEADWAY_CHECK(filled_ == 0 || inv_freq_ == rope.inv_freq);
  inv_freq_ = rope.inv_freq;
  while (filled_ < count) {
    const int64_t rows = std::min(count - filled_, context_.limits.step_tokens);
    positions_.clear();
    for (int64_t at = filled_; at < filled_ + rows; ++at) {
      positions_.push_back(static_cast<int32_t>(extend_.FarKey(at) - at));
    }
    Fill(rope, key_angles_, filled_);
    filled_ += rows;
  }
}

void SelfExtendPath::BeginStep() {
  for (const BatchEntry& entry : parts_.batch.entries()) {
    if (entry.rope == nullptr || FarKeys(entry) == 0) continue;
    FillKeys(*entry.rope, FarKeys(entry));
    positions_.clear();
    for (int64_t at = entry.position; at < entry.position + entry.tokens; ++at) {
      positions_.push_back(static_cast<int32_t>(extend_.FarQuery(at) - at));
    }
    Fill(*entry.rope, query_angles_, entry.row);
  }
}

void SelfExtendPath::Take(int layer, std::vector<SlabRange>* ranges) {
  const int64_t segment_tokens = context_.store.format().segment_tokens();
  std::erase_if(*ranges, [&](const SlabRange& range) {
    const BatchEntry& entry = parts_.batch[range.slab.entry];
    const bool far = IsFar(layer, entry) && range.slab.segment * segment_tokens < FarKeys(entry);
    if (far) parts_.reads.Add(parts_.number, range.slab);
    return far;
  });
}

void SelfExtendPath::BeginLayer(int layer) {
  const DType dtype = context_.limits.activation_dtype;
  for (const BatchEntry& entry : parts_.batch.entries()) {
    if (!IsFar(layer, entry)) continue;
    std::byte* const queries = queries_ + context_.ActivationBytes(entry.row * context_.QWidth());
    context_.kernels.Convert(context_.compute, {.from = context_.QueryAt(entry.row, 0),
                                                .from_dtype = dtype,
                                                .from_stride = context_.act.qkv_stride,
                                                .to = queries,
                                                .to_dtype = dtype,
                                                .to_stride = context_.QWidth(),
                                                .rows = entry.tokens,
                                                .width = context_.QWidth()});
    context_.kernels.Rope(context_.compute, At(query_angles_, entry.row),
                          {.x = queries,
                           .tokens = entry.tokens,
                           .heads = context_.shape.query_heads,
                           .head_dim = context_.shape.head_dim,
                           .stride = context_.QWidth()});
  }
}

void SelfExtendPath::AttendNear(int entry, int layer, int group, const kv::SlabView& view) {
  const KeyRun& keys = view.keys;
  if (keys.position + keys.pages.count <= parts_.batch[entry].position - extend_.window + 1) return;
  parts_.board.Attend(entry, context_.RunsOf(layer, group), keys, RangeOrder::kMoreFollow);
  parts_.board.FlushWithin(extend_.window);
}

// A query sees the keys that are `window` behind it, or farther: those up to its position less the
// window. Rows that see none stay with what AttendNear has left of them.
void SelfExtendPath::AttendFar(int entry_index, int layer, int group, const kv::SlabView& view) {
  const BatchEntry& entry = parts_.batch[entry_index];
  KeyRun keys = view.keys;
  keys.pages.count = std::min(keys.pages.count, FarKeys(entry) - keys.position);
  TurnKeysItem turn;
  turn.from = keys.pages;
  turn.to = keys_;
  turn.heads = context_.store.format().HeadsIn(layer, group);
  turn.table = At(key_angles_, keys.position);
  context_.kernels.TurnKeys(context_.compute, context_.format, turn);
  keys.pages.k = keys_;
  items_.clear();
  parts_.board.MakeItems(entry_index, context_.RunsOf(layer, group), keys, RangeOrder::kMoreFollow,
                         &items_);
  const int64_t rows = std::max<int64_t>(0, extend_.window - entry.position);
  const std::byte* const true_queries = context_.QueryAt(entry.row, 0);
  std::byte* const queries =
      queries_ + context_.ActivationBytes((entry.row + rows) * context_.QWidth());
  for (AttentionItem& item : items_) {
    HEADWAY_CHECK(rows == 0 || item.merge);
    item.q = queries + (static_cast<const std::byte*>(item.q) - true_queries);
    item.q_stride = context_.QWidth();
    item.q_position += rows - extend_.window;
    item.tokens -= rows;
    item.o += rows * item.o_stride;
    item.lse += rows * item.lse_stride;
    parts_.board.Add(item);
  }
}

Status SelfExtendPath::Attend(int layer, int group) {
  Reads& reads = parts_.reads;
  while (reads.IsNext(parts_.number, layer, group)) {
    const int entry = reads.Peek().entry;
    Result<kv::SlabView> view = reads.Next();
    if (!view.ok()) return view.status();
    AttendNear(entry, layer, group, *view);
    AttendFar(entry, layer, group, *view);
    reads.FinishLater(*view);
    parts_.board.Flush();  // the next slab's keys are turned into the same memory
  }
  return OkStatus();
}

}  // namespace

const PathKind kSelfExtendPath = {
    .name = "self-extend",
    .order = path_order::kSelfExtend,
    .bytes =
        [](const ModelShape& shape, const ExecutorLimits& limits) {
          return limits.self_extend.on() ? Sizes(shape, limits).total() : 0;
        },
    .make = [](const PathParts& parts) -> std::unique_ptr<AttentionPath> {
      if (!parts.context.limits.self_extend.on()) return nullptr;
      return std::make_unique<SelfExtendPath>(parts);
    }};

}  // namespace headway
