#include "engine/paths/recompute.h"

#include <cstddef>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace headway {
namespace {

// Of the pages that a gather is recomputed into: the memory begins on a multiple of this.
constexpr int64_t kPageAlignment = 4096;

int64_t PageStride(const ModelShape& shape, const ExecutorLimits& limits) {
  const PageFormat page = {shape.dtype, limits.page_slots, shape.head_dim};
  return kv::CacheFormat::Padded(static_cast<int64_t>(page.bytes()));
}

// The parts of its memory, in order, each aligned to 64 bytes; the first to a page.
struct Sizes {
  int64_t pages, x, kv, angles;

  Sizes(const ModelShape& shape, const ExecutorLimits& limits) {
    const int64_t gather = limits.gather_tokens;
    const DType dtype = limits.activation_dtype;
    const auto width = static_cast<int64_t>(DTypeBytes(dtype));
    pages = 2 * shape.kv_heads * (gather / limits.page_slots) * PageStride(shape, limits);
    pages = RoundUp(pages, kPageAlignment);
    x = dtype == shape.dtype ? 0 : RoundUp(gather * shape.d_model * width, 64);
    kv = RoundUp(gather * 2 * shape.kv_heads * shape.head_dim * width, 64);
    angles = FloatBytes(gather * (shape.head_dim / 2));
  }
  int64_t total() const { return pages + x + kv + 2 * angles; }
};

class RecomputePath : public AttentionPath {
 public:
  explicit RecomputePath(const PathParts& parts) : parts_(parts), context_(parts.context) {
    const Sizes sizes(context_.shape, context_.limits);
    Memory memory(parts.memory);
    pages_ = memory.Take(sizes.pages);
    x_ = sizes.x == 0 ? nullptr : memory.Take(sizes.x);
    kv_ = memory.Take(sizes.kv);
    cos_ = memory.Floats(sizes.angles);
    sin_ = memory.Floats(sizes.angles);
  }

  bool WantsX() const override { return true; }
  void Take(int layer, std::vector<SlabRange>* ranges) override;
  void BeginLayer(int layer) override;
  Status Attend(int layer, int group) override;
  void Abort() override { gather_.clear(); }

 private:
  // X that was read and not recomputed yet.
  struct Gathered {
    int entry;
    kv::SlabView view;
  };
  // Rows of new X on their way to the store.
  struct Keeping {
    ConvertItem item;
    int64_t next_row = 0;             // behind the item's
    const std::byte* last = nullptr;  // where its last row goes; null: not to be continued
  };
  bool Continue(const BatchEntry& entry, std::byte* to, Keeping* keeping) const;
  void Flush(Keeping* keeping);
  void Angles();
  void Project(int layer, int64_t rows);
  PageRun StorePages(int64_t rows);
  void Recompute(int layer, int group);

  int64_t KvWidth() const { return int64_t{context_.shape.kv_heads} * context_.shape.head_dim; }

  const PathParts parts_;
  StepContext& context_;
  std::byte* pages_;  // of K, head by head, then of V
  std::byte* x_;      // [gather, d_model] activations, null where those are in the pages' dtype
  std::byte* kv_;     // [gather, 2, kv_heads, head_dim] activations
  float* cos_;        // [gather, rotary_dim / 2]
  float* sin_;        // the same
  std::vector<Gathered> gather_;
};

// X is read ahead of keys and values: recomputing goes on while the rest streams.
void RecomputePath::Take(int /*layer*/, std::vector<SlabRange>* ranges) {
  size_t kept = 0;
  for (const SlabRange& range : *ranges) {
    if (range.x) {
      parts_.reads.Add(parts_.number, range.slab);
    } else {
      (*ranges)[kept++] = range;
    }
  }
  ranges->resize(kept);
}

// --- The step's new X

// Single rows that are equally far apart, as in a batch of equal lengths, are one copy: whether
// this one joins those before.
bool RecomputePath::Continue(const BatchEntry& entry, std::byte* to, Keeping* keeping) const {
  ConvertItem& item = keeping->item;
  if (item.rows == 0 || keeping->last == nullptr || entry.tokens != 1 ||
      entry.row != keeping->next_row) {
    return false;
  }
  const auto element = static_cast<int64_t>(DTypeBytes(context_.shape.dtype));
  const std::ptrdiff_t apart = to - keeping->last;
  const bool even = item.rows == 1 || apart == item.to_stride * element;
  if (!even || apart < item.width * element || apart % element != 0) return false;
  item.to_stride = apart / element;
  ++item.rows;
  ++keeping->next_row;
  keeping->last = to;
  return true;
}

void RecomputePath::Flush(Keeping* keeping) {
  if (keeping->item.rows > 0) context_.kernels.Convert(context_.compute, keeping->item);
  keeping->item.rows = 0;
}

void RecomputePath::BeginLayer(int layer) {
  const int64_t width = context_.shape.d_model;
  Keeping keeping;
  ConvertItem& item = keeping.item;
  item.from_dtype = context_.limits.activation_dtype;
  item.from_stride = width;
  item.to_dtype = context_.shape.dtype;
  item.width = width;
  for (int e = 0; e < parts_.batch.size(); ++e) {
    const BatchEntry& entry = parts_.batch[e];
    std::byte* const to = context_.store.step().XTarget(e, layer);
    if (to == nullptr || Continue(entry, to, &keeping)) continue;
    Flush(&keeping);
    item.from = static_cast<const std::byte*>(context_.act.normed) +
                context_.ActivationBytes(entry.row * width);
    item.to = to;
    item.to_stride = width;
    item.rows = entry.tokens;
    keeping.next_row = entry.row + entry.tokens;
    keeping.last = entry.tokens == 1 ? to : nullptr;
  }
  Flush(&keeping);
}

// --- Keys and values from X

Status RecomputePath::Attend(int layer, int group) {
  Reads& reads = parts_.reads;
  while (reads.IsNext(parts_.number, layer, group)) {
    const int entry = reads.Peek().entry;
    Result<kv::SlabView> view = reads.Next();
    if (!view.ok()) return view.status();
    gather_.push_back({entry, *view});
    if (view->ends_gather) Recompute(layer, group);
  }
  return OkStatus();
}

// The rotation angles of a gather's keys, by the positions that they were stored with.
void RecomputePath::Angles() {
  const int64_t half = context_.model.rotary_dim() / 2;
  int64_t row = 0;  // of the first position that is left
  std::vector<int32_t> positions;
  const auto rope_of = [&](const Gathered& gathered) -> const RopeFrequencies& {
    return *parts_.batch[gathered.entry].rope;
  };
  for (size_t i = 0; i < gather_.size(); ++i) {
    const KeyRun& keys = gather_[i].view.keys;
    for (int64_t t = 0; t < keys.pages.count; ++t) {
      positions.push_back(static_cast<int32_t>(keys.position + t));
    }
    const RopeFrequencies& rope = rope_of(gather_[i]);
    if (i + 1 < gather_.size()) {
      const RopeFrequencies& next = rope_of(gather_[i + 1]);
      if (next.inv_freq == rope.inv_freq && next.scale == rope.scale) continue;
    }
    context_.kernels.RopeAngles(context_.compute,
                                AnglesOf(rope, positions, cos_ + row * half, sin_ + row * half));
    row += static_cast<int64_t>(positions.size());
    positions.clear();
  }
}

// K and V of the gather's rows, rotated.
void RecomputePath::Project(int layer, int64_t rows) {
  const ModelShape& shape = context_.shape;
  const void* x = gather_.front().view.x;
  if (x_ != nullptr) {
    context_.kernels.Convert(context_.compute, {.from = x,
                                                .from_dtype = shape.dtype,
                                                .from_stride = shape.d_model,
                                                .to = x_,
                                                .to_dtype = context_.limits.activation_dtype,
                                                .to_stride = shape.d_model,
                                                .rows = rows,
                                                .width = shape.d_model});
    x = x_;
  }
  const int64_t stride = 2 * KvWidth();
  std::byte* const v = kv_ + context_.ActivationBytes(KvWidth());
  context_.model.Kv(context_.kernels, context_.compute, {layer, rows, context_.block}, x,
                    {kv_, v, stride});
  for (const Gathered& gathered : gather_) parts_.reads.Finish(gathered.view);
  const RopeTable table = {cos_, sin_, context_.model.rotary_dim()};
  if (table.rotary_dim == 0) return;
  Angles();
  context_.kernels.Rope(context_.compute, table,
                        {.x = kv_,
                         .tokens = rows,
                         .heads = shape.kv_heads,
                         .head_dim = shape.head_dim,
                         .stride = stride});
}

// Puts them into pages.
PageRun RecomputePath::StorePages(int64_t rows) {
  const PageFormat& format = context_.format;
  PageRun pages;
  pages.page_stride = PageStride(context_.shape, context_.limits);
  pages.head_stride = context_.limits.gather_tokens / format.page_slots * pages.page_stride;
  pages.k = pages_;
  pages.v = pages_ + context_.shape.kv_heads * pages.head_stride;
  pages.count = rows;
  // Not RopeStoreKv, which lets the next kernel begin: decode attention would read these pages
  // ahead of the store, as those of earlier steps that they are.
  const StoreKvItem store = {.k = kv_,
                             .v = kv_ + context_.ActivationBytes(KvWidth()),
                             .kv_stride = 2 * KvWidth(),
                             .heads = context_.shape.kv_heads,
                             .to = pages};
  context_.kernels.StoreKv(context_.compute, format, {&store, 1});
  return pages;
}

// Keys and values of the gather that was read, and attention to them.
void RecomputePath::Recompute(int layer, int group) {
  int64_t rows = 0;
  for (const Gathered& gathered : gather_) rows += gathered.view.keys.pages.count;
  HEADWAY_CHECK(rows <= context_.limits.gather_tokens);
  Project(layer, rows);
  PageRun pages = StorePages(rows);
  int64_t left = context_.limits.gather_tokens;
  for (const Gathered& gathered : gather_) {
    KeyRun keys = gathered.view.keys;
    const int64_t count = keys.pages.count;
    keys.pages = pages;
    keys.pages.count = count;
    keys.pages.readable = left;
    parts_.board.Attend(gathered.entry, context_.RunsOf(layer, group), keys,
                        RangeOrder::kMoreFollow);
    // A prefill state takes its ranges one after the other.
    if (!parts_.batch[gathered.entry].decode) parts_.board.Flush();
    const int64_t bytes = count / context_.format.page_slots * pages.page_stride;
    pages.k += bytes;
    pages.v += bytes;
    left -= count;
  }
  gather_.clear();
  parts_.board.Flush();
}

}  // namespace

const PathKind kRecomputePath = {
    .name = "recompute",
    .order = path_order::kRecompute,
    .bytes =
        [](const ModelShape& shape, const ExecutorLimits& limits) {
          return limits.gather_tokens == 0 ? 0 : Sizes(shape, limits).total();
        },
    .make = [](const PathParts& parts) -> std::unique_ptr<AttentionPath> {
      if (parts.context.limits.gather_tokens == 0) return nullptr;
      return std::make_unique<RecomputePath>(parts);
    }};

}  // namespace headway
