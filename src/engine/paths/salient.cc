#include "engine/paths/salient.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/paths/host_queries.h"
#include "engine/paths/reselection.h"
#include "engine/step/salience.h"
#include "kernels/items.h"
#include "kernels/selection_bound.h"
#include "kv/policy/selection.h"
#include "kv/policy/unread_bound.h"

namespace headway {
namespace {

class SalientPath : public AttentionPath {
 public:
  explicit SalientPath(const PathParts& parts)
      : parts_(parts), context_(parts.context), salience_(*parts.salience) {
    if (context_.limits.salience.reselects()) reselection_.emplace(parts);
  }

  void BeginStep() override;
  bool TakesResident() const override { return true; }
  void Take(int layer, std::vector<SlabRange>* ranges) override;
  void BeginLayer(int layer) override;
  Status Attend(int layer, int group) override;
  void EndLayer(int layer) override;
  Status EndLayers() override;
  void EndStep() override;
  void Abort() override { context_.store.reads().AwaitHost(); }

 private:
  bool Chooses(int entry) const { return chosen_[static_cast<size_t>(entry)] != nullptr; }
  int64_t Before(int entry) const { return chosen_[static_cast<size_t>(entry)]->before; }
  bool Weighs(int layer, int entry) const {
    return Chooses(entry) && salience_.Weighs(*chosen_[static_cast<size_t>(entry)], layer);
  }
  bool Reselects(int entry) const {
    return Chooses(entry) && salience_.Reselects(*chosen_[static_cast<size_t>(entry)]);
  }
  void Reselect(int layer);
  // The keys of a run from a position on.
  KeyRun From(const KeyRun& keys, int64_t position) const;
  void WeighLayer(int layer);
  std::span<const kv::SlabRead> HeldIn(int layer) const {
    const size_t first = first_[static_cast<size_t>(layer)];
    return std::span(held_).subspan(first, first_[static_cast<size_t>(layer) + 1] - first);
  }
  std::span<const kv::HostRead> ClosedIn(int layer) const {
    const size_t first = first_closed_[static_cast<size_t>(layer)];
    return std::span(closed_).subspan(first, first_closed_[static_cast<size_t>(layer) + 1] - first);
  }
  void Hold(const kv::SlabRead& slab);
  // Runs of an entry's closed keys, of all heads of a group, in the order of positions.
  struct Closed {
    std::vector<KeyRun> before;  // the window
    std::vector<KeyRun> near;
  };
  Closed KeysIn(int layer, int group, int entry) const;
  UnreadKeys Sample(int layer, const kv::HeadRun& head, int entry, const Closed& keys) const;
  void AddBounds(int layer, int entry);

  const PathParts parts_;
  StepContext& context_;
  Salience& salience_;
  std::vector<Salience::Chosen*> chosen_;    // [entries] of the step; null: read whole
  std::vector<Salience::Chosen*> choosing_;  // those that are not null
  bool any_ = false;
  // Slabs that are held in place, layer by layer: those of which the window of an entry that is
  // weighed has something, or that have something before that of an entry that chooses anew.
  std::vector<kv::SlabRead> held_;
  std::vector<size_t> first_;  // [layers + 1]: the first of each layer
  // Slabs of entries whose policy is bounded, layer by layer, which the cores read where they lie.
  std::vector<kv::HostRead> closed_;
  std::vector<size_t> first_closed_;  // [layers + 1]
  std::optional<Reselection> reselection_;
  std::vector<Salience::WindowKeys> windows_;
};

void SalientPath::BeginStep() {
  chosen_.clear();
  for (const BatchEntry& entry : parts_.batch.entries()) {
    chosen_.push_back(entry.decode && parts_.board.observer() == nullptr
                          ? salience_.Find(entry.sequence, entry.position)
                          : nullptr);
  }
  any_ = std::any_of(chosen_.begin(), chosen_.end(), [](const auto* each) { return each; });
  held_.clear();
  first_.assign(static_cast<size_t>(context_.shape.layers) + 1, 0);
  closed_.clear();
  first_closed_ = first_;
}

// Memory of a device that is the host's own is as good as its other memory; caches of others lie
// there (CheckBound).
void SalientPath::Hold(const kv::SlabRead& slab) {
  const bool on_host = context_.store.reads().PlaceOf(slab).tier == Tier::kHost;
  closed_.push_back({slab, 0});
  if (on_host) {
    parts_.reads.Hold(closed_.back());
  } else {
    parts_.reads.HoldInPlace(slab);
  }
}

// What is before the window is left out; of a slab on the edge of it a part.
void SalientPath::Take(int layer, std::vector<SlabRange>* ranges) {
  const int64_t segment_tokens = context_.store.format().segment_tokens();
  std::erase_if(*ranges, [&](const SlabRange& range) {
    const kv::SlabRead& slab = range.slab;
    if (!salience_.ChoosesIn(layer) || !Chooses(slab.entry)) return false;
    const int64_t begin = slab.segment * segment_tokens;
    const int64_t pages = context_.store.reads().PlaceOf(slab).pages;
    const bool far = begin < Before(slab.entry);
    const bool near = begin + pages * context_.format.page_slots > Before(slab.entry);
    if ((near && Weighs(layer, slab.entry)) || (far && Reselects(slab.entry))) {
      held_.push_back(slab);
      parts_.reads.HoldInPlace(slab);
    }
    if (context_.limits.salience.is_bounded() && Before(slab.entry) > 0) Hold(slab);
    if (far && near) parts_.reads.Add(parts_.number, slab);
    return far;
  });
  first_[static_cast<size_t>(layer) + 1] = held_.size();
  first_closed_[static_cast<size_t>(layer) + 1] = closed_.size();
}

// Has each entry that chooses anew do so.
void SalientPath::Reselect(int layer) {
  const std::span<const kv::SlabRead> held = HeldIn(layer);
  std::vector<kv::SlabRead> far;  // by entry
  far.reserve(held.size());
  std::vector<Reselection::Entry> entries;
  for (int entry = 0; entry < parts_.batch.size(); ++entry) {
    if (!Reselects(entry)) continue;
    const size_t first = far.size();
    std::copy_if(held.begin(), held.end(), std::back_inserter(far),
                 [&](const kv::SlabRead& slab) { return slab.entry == entry; });
    entries.push_back({entry, chosen_[static_cast<size_t>(entry)], std::span(far).subspan(first)});
  }
  if (!entries.empty()) reselection_->Choose(layer, entries);
}

SalientPath::Closed SalientPath::KeysIn(int layer, int group, int entry) const {
  Closed closed;
  for (const kv::HostRead& read : ClosedIn(layer)) {
    if (read.slab.group != group || read.slab.entry != entry) continue;
    const KeyRun keys = context_.store.reads().KeysOnHost(read);
    const int64_t before = Before(entry) - keys.position;
    if (before < keys.pages.count) closed.near.push_back(From(keys, Before(entry)));
    if (before <= 0) continue;
    closed.before.push_back(keys);
    closed.before.back().pages.count = std::min(keys.pages.count, before);
  }
  return closed;
}

// The blocks that say what a head leaves out in this step, of all that are before the window: the
// same ones for all heads, so that ranks, which number their own heads, draw what one would.
UnreadKeys SalientPath::Sample(int layer, const kv::HeadRun& head, int entry,
                               const Closed& closed) const {
  const Salience::Chosen& chosen = *chosen_[static_cast<size_t>(entry)];
  const int slots = kv::BoundSlots(context_.format.page_slots);
  const int64_t segment = context_.store.format().segment_tokens();
  const uint64_t seed = kv::SampleSeed(parts_.batch[entry].position, context_.LayerOfModel(layer));
  UnreadKeys unread;
  unread.blocks = chosen.before / slots;
  for (int i = 0; i < selection::SamplesOf(unread.blocks); ++i) {
    const selection::SampledBlock sampled = selection::SampleOf(seed, 0, i, unread.blocks);
    const int64_t position = sampled.block * slots;
    const uint32_t bits = salience_.NotSalient(chosen, layer, head.head, position, slots);
    if (bits == 0) continue;
    KeyRun keys = closed.before[static_cast<size_t>(position / segment)];
    keys.pages = kv::PagesOf(keys.pages, head);
    keys = KeysOf(context_.format, keys, 0, position - keys.position, slots);
    unread.sample.push_back({keys, sampled.stratum, bits});
  }
  for (KeyRun keys : closed.near) {
    keys.pages = kv::PagesOf(keys.pages, head);
    unread.near.push_back(keys);
  }
  return unread;
}

// Has heads of an entry that leave too much out read all that is before the window.
void SalientPath::AddBounds(int layer, int entry) {
  for (int group = 0; group < context_.store.format().head_groups(layer); ++group) {
    const Closed closed = KeysIn(layer, group, entry);
    if (closed.before.empty()) continue;
    for (const kv::HeadRun& run : context_.RunsOf(layer, group)) {
      for (int i = 0; i < run.heads; ++i) {
        const kv::HeadRun head = {run.head + i, 1, run.index + i};
        parts_.host.attention->AddAll({entry, parts_.batch[entry].position}, head, closed.before,
                                      Sample(layer, head, entry, closed));
      }
    }
  }
}

// Has the host's cores begin.
void SalientPath::BeginLayer(int layer) {
  if (!any_ || !salience_.ChoosesIn(layer)) return;
  if (reselection_.has_value()) Reselect(layer);
  if (!salience_.on_host()) return;
  HostAttention& host = *parts_.host.attention;
  host.Begin();
  std::vector<bool> on_host;
  for (int entry = 0; entry < parts_.batch.size(); ++entry) on_host.push_back(Chooses(entry));
  SendQueries(context_, parts_.batch, on_host, host);
  for (int entry = 0; entry < parts_.batch.size(); ++entry) {
    if (!Chooses(entry)) continue;
    for (int head = 0; head < context_.shape.kv_heads; ++head) {
      const KeyRun keys =
          salience_.OfCores(salience_.KeysOf(*chosen_[static_cast<size_t>(entry)], layer, head));
      // The query sees all of them, and tasks are cut for so many.
      host.Add({entry, keys.pages.count}, {head, 1, 0}, {&keys, 1});
    }
    if (context_.limits.salience.is_bounded()) AddBounds(layer, entry);
  }
  const WorkCost cost = host.Cost();
  context_.store.reads().RunOnHost(ClosedIn(layer), cost, host.Work(0));
}

Status SalientPath::Attend(int layer, int group) {
  Reads& reads = parts_.reads;
  while (reads.IsNext(parts_.number, layer, group)) {
    const int entry = reads.Peek().entry;
    Result<kv::SlabView> view = reads.Next();
    if (!view.ok()) return view.status();
    parts_.board.Attend(entry, context_.RunsOf(layer, group), From(view->keys, Before(entry)),
                        RangeOrder::kMoreFollow);
    reads.FinishLater(*view);
    if (view->tier != Tier::kDevice) parts_.board.Flush();
  }
  if (!any_ || !salience_.ChoosesIn(layer) ||
      group == context_.store.format().StreamingGroup(layer)) {
    return OkStatus();
  }
  for (int entry = 0; entry < parts_.batch.size(); ++entry) {
    if (!Chooses(entry)) continue;
    const HostAttention* const host = parts_.host.attention;
    if (salience_.on_host()) {
      parts_.board.AddLastState(entry, context_.RunsOf(layer, group), host->o(entry),
                                host->lse(entry));
    }
    for (const kv::HeadRun& run : context_.RunsOf(layer, group)) {
      for (int head = run.head; head < run.head + run.heads; ++head) {
        const KeyRun keys =
            salience_.OfDevice(salience_.KeysOf(*chosen_[static_cast<size_t>(entry)], layer, head));
        const kv::HeadRun alone = {head, 1, 0};
        if (keys.pages.count == 0) continue;
        parts_.board.Attend(entry, {&alone, 1}, keys, RangeOrder::kMoreFollow);
      }
    }
  }
  return OkStatus();
}

KeyRun SalientPath::From(const KeyRun& keys, int64_t position) const {
  const int64_t before = std::max<int64_t>(0, position - keys.position);
  return KeysOf(context_.format, keys, 0, before, keys.pages.count - before);
}

// Adds what the layer's queries give the tokens that are not before the window to their masses.
void SalientPath::WeighLayer(int layer) {
  const std::span<const kv::SlabRead> held = HeldIn(layer);
  context_.store.reads().AwaitInPlace(held);
  windows_.clear();
  for (int entry = 0; entry < parts_.batch.size(); ++entry) {
    if (!Weighs(layer, entry)) continue;
    Salience::WindowKeys& window = windows_.emplace_back();
    window.entry = entry;
    window.chosen = chosen_[static_cast<size_t>(entry)];
    window.q = context_.QueryAt(parts_.batch[entry].row, 0);
    window.keys.resize(static_cast<size_t>(context_.shape.kv_heads));
    const auto add = [&](int group, const KeyRun& keys) {
      if (keys.pages.count == 0) return;
      for (const kv::HeadRun& run : context_.RunsOf(layer, group)) {
        for (int head = 0; head < run.heads; ++head) {
          KeyRun of_head = keys;
          of_head.pages = kv::PagesOf(keys.pages, {run.head + head, 1, run.index + head});
          window.keys[static_cast<size_t>(run.head + head)].push_back(of_head);
        }
      }
    };
    for (const kv::SlabRead& slab : held) {
      if (slab.entry != entry) continue;
      add(slab.group, From(context_.store.reads().KeysInPlace(slab), window.chosen->before));
    }
    for (int group = 0; group < context_.store.format().head_groups(layer); ++group) {
      add(group, context_.store.step().Tail(entry, layer, group));
    }
  }
  salience_.Weigh(layer, windows_);
  context_.store.reads().FinishInPlace(held);
}

void SalientPath::EndLayer(int layer) {
  if (!any_) return;
  if (salience_.ChoosesIn(layer)) {
    if (!reselection_.has_value()) WeighLayer(layer);
    if (salience_.on_host()) {
      parts_.host.attention->StreamWaits(context_.compute);
      context_.store.reads().AwaitHost();
    }
  }
}

Status SalientPath::EndLayers() {
  if (!any_ || reselection_.has_value()) return OkStatus();
  choosing_.clear();
  std::copy_if(chosen_.begin(), chosen_.end(), std::back_inserter(choosing_),
               [](const auto* each) { return each != nullptr; });
  return salience_.ChooseFromLeaving(choosing_);
}

void SalientPath::EndStep() {
  for (Salience::Chosen* chosen : chosen_) {
    if (chosen != nullptr) salience_.Append(chosen);
  }
}

}  // namespace

const PathKind kSalientPath = {
    .name = "salient",
    .order = path_order::kSalient,
    .bytes = Reselection::Bytes,
    .make = [](const PathParts& parts) -> std::unique_ptr<AttentionPath> {
      if (parts.salience == nullptr) return nullptr;
      return std::make_unique<SalientPath>(parts);
    }};

}  // namespace headway
