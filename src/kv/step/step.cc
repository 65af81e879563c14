#include "kv/step/step.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "headway/types.h"
#include "kv/step/cache.h"
#include "kv/step/sequences.h"
#include "kv/step/step_reads.h"

namespace headway::kv {
namespace {

Status Invalid(const std::string& text) {
  return Status(StatusCode::kInvalidArgument, "KV store: " + text);
}

}  // namespace

// --- Beginning

Status Step::CheckStretch(std::span<const StepEntry> wanted) const {
  if (first_layer_ < 0 || first_layer_ >= cache_.format.layers) {
    return Invalid("a step of layer " + std::to_string(first_layer_) + ", of " +
                   std::to_string(cache_.format.layers));
  }
  const bool windows = std::any_of(cache_.format.window.begin(), cache_.format.window.end(),
                                   [](int64_t window) { return window > 0; });
  const bool drafts = std::any_of(wanted.begin(), wanted.end(),
                                  [](const StepEntry& want) { return want.drafts > 0; });
  if (windows || drafts || cache_.format.pattern.StreamingHeads() > 0) {
    return Invalid("steps of a layer alone are not for windows, streaming heads or drafts");
  }
  return OkStatus();
}

Status Step::PlanStep(std::span<const StepEntry> wanted) {
  entries_.clear();
  if (wanted.empty()) return Invalid("a step needs at least one sequence");
  int64_t tokens = 0, append_page = 0, encoded_page = 0;
  for (const StepEntry& want : wanted) {
    const Sequence* sequence = sequences_.Find(want.sequence);
    if (sequence == nullptr) return Invalid("no sequence " + std::to_string(want.sequence));
    Entry entry;
    entry.place = sequences_.PlaceOf(*sequence);
    for (const Entry& other : entries_) {
      if (other.place == entry.place) {
        return Invalid("sequence " + std::to_string(want.sequence) + " is twice in a step");
      }
    }
    if (want.tokens < 1 || want.tokens > cache_.options.max_step_tokens - tokens) {
      return Invalid("a step of " + std::to_string(want.tokens) + " tokens for sequence " +
                     std::to_string(want.sequence) + "; a step takes 1 to " +
                     std::to_string(cache_.options.max_step_tokens) + " tokens in all");
    }
    if (!in_stretch_ && !sequence->ahead.empty()) {
      return Invalid("sequence " + std::to_string(want.sequence) +
                     " is in a stretch, and the step is of all layers");
    }
    const int64_t length = sequence->LengthIn(first_layer_);
    const int64_t open = length % cache_.math.slots();
    if (want.drafts < 0 || want.drafts > want.tokens ||
        (want.drafts > 0 && open + want.tokens >= cache_.math.slots())) {
      return Invalid(std::to_string(want.drafts) + " drafts among " + std::to_string(want.tokens) +
                     " tokens of a sequence that has " + std::to_string(open) +
                     " in its open page, which must not close");
    }
    if (want.tokens > kMaxLength - length) {
      return Invalid("sequence " + std::to_string(want.sequence) + " would be longer than " +
                     std::to_string(kMaxLength) + " tokens");
    }
    tokens += want.tokens;
    entry.tokens = want.tokens;
    entry.rotated = want.rotated;
    entry.before = length;
    entry.drafts = want.drafts;
    entry.appends = want.tokens > 1 && want.drafts == 0;
    entry.pages = CeilDiv(entry.before % cache_.math.slots() + entry.tokens, cache_.math.slots());
    if (entry.appends) {
      entry.append_page = append_page;
      append_page += entry.pages;
    }
    entry.closing = cache_.math.ClosedPages(entry.before + entry.tokens) -
                    cache_.math.ClosedPages(entry.before);
    entry.encoded_page = encoded_page;
    encoded_page += entry.closing;
    entries_.push_back(entry);
  }
  HEADWAY_CHECK(std::max(append_page, encoded_page) <= cache_.buffers->append_pages());
  return OkStatus();
}

Step::Growth Step::GrowthOf(const Entry& entry, const PageTable& table, int layer) const {
  Growth growth;
  if (entry.closing == 0 || !table.grows()) return growth;
  growth.last = cache_.math.Segments(table.pages() + entry.closing);
  // What no later query will see is not stored at all.
  growth.first = std::max(static_cast<int>(table.pages() / cache_.format.segment_pages),
                          cache_.math.FirstKept(layer, entry.before + entry.tokens));
  growth.first = std::min(growth.first, growth.last);
  return growth;
}

bool Step::MustCopy(const Slab& slab, int pages) const {
  return slab.refs > 1 || (slab.tier == Tier::kDisk && pages < slab.disk->sealed);
}

PerSlabKind<int64_t> Step::NewSlabs() const {
  PerSlabKind<int64_t> count = {};
  for (const Entry& entry : entries_) {
    if (entry.closing == 0) continue;
    const Sequence& sequence = sequences_.at(entry.place);
    for (int layer = first_layer_; layer < end_layer(); ++layer) {
      for (const PageTable& table : sequence.tables.of_layer(layer)) {
        const Growth growth = GrowthOf(entry, table, layer);
        for (int segment = growth.first; segment < growth.last; ++segment) {
          Of(count, sequence.KindOf(segment)) += table.groups().size();
          // Some are there: the first where it has pages already, in a stretch all.
          if (segment >= table.segments()) continue;
          const int pages = table.PagesIn(segment);
          for (int group = table.groups().first; group < table.groups().last; ++group) {
            const SlabId id = table.slab(group, segment);
            if (id == kNoSlab || MustCopy((*cache_.slabs)[id], pages)) continue;
            --Of(count, (*cache_.slabs)[id].kind);
          }
        }
      }
    }
  }
  return count;
}

void Step::PassBehind(const PageTable& table, int group, int segment) {
  // The segment may hold one page only: so many before it have recent keys.
  const int64_t recent = CeilDiv(cache_.options.recent_tokens, cache_.format.segment_tokens());
  const int64_t passed = segment - 1 - recent;
  if (passed < table.first_kept() || passed >= table.segments()) return;
  const SlabId id = table.slab(group, static_cast<int>(passed));
  if (id != kNoSlab) cache_.slabs->WasPassed(id);
}

Status Step::Grow(const Entry& entry, int layer, int group) {
  Sequence& sequence = sequences_.at(entry.place);
  PageTable& table = sequence.tables.of(layer, group);
  const Growth growth = GrowthOf(entry, table, layer);
  for (int segment = growth.first; segment < growth.last; ++segment) {
    PassBehind(table, group, segment);
    const SlabId old = segment < table.segments() ? table.slab(group, segment) : kNoSlab;
    SlabId id = old;
    const int pages = table.PagesIn(segment);
    if (old == kNoSlab || MustCopy((*cache_.slabs)[old], pages)) {
      Result<SlabId> made = old == kNoSlab
                                ? cache_.slabs->New(sequence.KindOf(segment), layer, group, segment)
                                : cache_.slabs->CopyOf(old, pages);
      if (!made.ok()) return made.status();
      id = *made;
      table.Exchange(group, segment, id);
      changes_.push_back(Change{entry.place, layer, group, segment, old});
    } else {
      cache_.slabs->Cut(id, pages);
    }
    (*cache_.slabs)[id].growing = true;
    growing_.push_back(id);
  }
  return OkStatus();
}

Status Step::GrowAll() {
  const PerSlabKind<int64_t> needed = NewSlabs();
  Status status;
  for (const SlabKind kind : kAllSlabKinds) {
    if (status.ok() && Of(needed, kind) > 0)
      status = cache_.slabs->CheckRoom(kind, Of(needed, kind));
  }
  if (!status.ok()) return status;
  for (const Entry& entry : entries_) {
    for (int layer = first_layer_; entry.closing > 0 && layer < end_layer(); ++layer) {
      for (int group = 0; group < cache_.format.head_groups(layer); ++group) {
        status = Grow(entry, layer, group);
        if (!status.ok()) return status;
      }
    }
  }
  return OkStatus();
}

void Step::UndoGrowth() {
  for (const SlabId id : growing_) (*cache_.slabs)[id].growing = false;
  for (const Change& change : changes_) {
    PageTables& tables = sequences_.at(change.place).tables;
    cache_.slabs->Release(
        tables.of(change.layer, change.group).Exchange(change.group, change.segment, change.old));
  }
  for (const Entry& entry : entries_) {
    for (PageTable& table : TablesOf(entry).all()) {
      table.Resize(cache_.math.Segments(table.pages()), ReleaserOf(*cache_.slabs));
    }
  }
}

Status Step::Refuse(const std::string& what) const {
  if (!in_step_) return OkStatus();
  return Invalid(what + " while a step is in progress");
}

bool Step::Has(SequenceId sequence) const {
  return in_step_ && std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
           return sequences_.at(entry.place).id == sequence;
         });
}

PageTables& Step::TablesOf(const Entry& entry) { return sequences_.at(entry.place).tables; }
const PageTables& Step::TablesOf(const Entry& entry) const {
  return sequences_.at(entry.place).tables;
}

Status Step::Begin(std::span<const StepEntry> wanted, std::optional<int> layer) {
  if (Status s = Refuse("a step cannot begin"); !s.ok()) return s;
  in_stretch_ = layer.has_value();
  first_layer_ = layer.value_or(0);
  layers_ = in_stretch_ ? 1 : cache_.format.layers;
  Status status = cache_.LaneStatus();
  if (status.ok() && in_stretch_) status = CheckStretch(wanted);
  if (status.ok()) status = PlanStep(wanted);
  if (status.ok()) {
    changes_.clear();
    growing_.clear();
    status = GrowAll();
    if (!status.ok()) UndoGrowth();
  }
  if (!status.ok()) {
    sequences_.GiveUpStretches();
    return status;
  }
  for (const Change& change : changes_) {
    if (change.old != kNoSlab) cache_.slabs->Release(change.old);
  }
  in_step_ = true;
  std::vector<int> places;
  for (const Entry& entry : entries_) places.push_back(entry.place);
  reads_.Begin(std::move(places));
  cache_.slabs->BeginStep();
  current_ = -1;
  next_layer_ = first_layer_;
  return OkStatus();
}

// --- Ending

void Step::FinishStretch(Sequence& sequence) {
  const int64_t tokens = sequence.ahead[0];
  const bool all = std::all_of(sequence.ahead.begin(), sequence.ahead.end(),
                               [tokens](int64_t ahead) { return ahead == tokens; });
  if (!all) return;
  sequence.length += tokens;
  sequence.drafts = 0;
  sequence.ahead.clear();
}

void Step::FinishEntry(const Entry& entry) {
  Sequence& sequence = sequences_.at(entry.place);
  if (in_stretch_) {
    for (PageTable& table : sequence.tables.of_layer(first_layer_)) {
      table.set_pages(table.pages() + entry.closing);
    }
    sequence.ahead.resize(static_cast<size_t>(cache_.format.layers));
    sequence.ahead[static_cast<size_t>(first_layer_)] += entry.tokens;
    return FinishStretch(sequence);
  }
  sequence.length = entry.before + entry.tokens;
  sequence.drafts = entry.drafts + (entry.drafts == entry.tokens ? sequence.drafts : 0);
  // Tables change as pages close. Many sequences whose heads have tables of their own have too many
  // to look at each in each step.
  if (entry.closing == 0) return;
  const int64_t closed = cache_.math.ClosedPages(sequence.length);
  sequence.recent_first = cache_.streaming_pages.FirstKept(sequence.recent_first, closed);
  sequence.recent_area = 1 - sequence.recent_area;
  for (int layer = 0; layer < cache_.format.layers; ++layer) {
    for (PageTable& table : sequence.tables.of_layer(layer)) {
      if (table.grows()) table.set_pages(table.pages() + entry.closing);
      const int segments = cache_.math.Segments(table.pages());
      table.Resize(segments, ReleaserOf(*cache_.slabs));
      table.FreeBefore(std::min(segments, cache_.math.FirstKept(layer, sequence.length)),
                       ReleaserOf(*cache_.slabs));
    }
  }
}

// Errors of lanes, and of writes to disk of slabs that the step's sequences own.
Status Step::EntriesStatus() {
  Status status = cache_.lanes.status();
  if (!status.ok() || !cache_.disk.has_failed()) return status;
  for (const Entry& entry : entries_) {
    for (const PageTable& table : TablesOf(entry).all()) {
      table.ForEachSlab([&](int, int, SlabId id) {
        const Slab& slab = (*cache_.slabs)[id];
        if (status.ok() && slab.tier == Tier::kDisk) status = slab.disk->Check(slab.pages);
      });
    }
  }
  return status;
}

Status Step::End() {
  HEADWAY_CHECK(in_step_ && next_layer_ == end_layer());
  Status status = reads_.End();
  if (status.ok()) status = EntriesStatus();
  if (!status.ok()) {
    Abort();
    return status;
  }
  for (const SlabId id : growing_) (*cache_.slabs)[id].growing = false;
  for (const Entry& entry : entries_) FinishEntry(entry);
  in_step_ = false;
  return OkStatus();
}

void Step::Abort() {
  if (!in_step_) return;
  // Whatever the reads brought is dropped with the step.
  Status ignored = reads_.End();
  (void)ignored;
  for (const SlabId id : growing_) (*cache_.slabs)[id].growing = false;
  sequences_.GiveUpStretches();
  for (const Entry& entry : entries_) {
    Sequence& sequence = sequences_.at(entry.place);
    const int64_t left = std::min(entry.before, sequence.length);
    sequences_.Cut(sequence, cache_.math.ClosedTokens(left));
  }
  in_step_ = false;
}

}  // namespace headway::kv
