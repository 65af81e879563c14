#include "engine/paths/demoted.h"

#include <algorithm>

#include "base/check.h"
#include "engine/step/demoted.h"
#include "engine/step/selected_states.h"

namespace headway {
namespace {

constexpr const SummaryFormat& kSummary = kv::DemotionPolicy::kSummary;

// Of one head.
int64_t ScratchBytes(const ModelShape& shape, const ExecutorLimits& limits) {
  return SelectScratchBytes(1, shape.group(), limits.length / kSummary.block_slots, 1);
}

class DemotedPath : public AttentionPath {
 public:
  explicit DemotedPath(const PathParts& parts)
      : parts_(parts),
        context_(parts.context),
        demoted_(*parts.demoted),
        cut_(DemotedStates(context_.shape, context_.limits, context_.kernels)) {}

  void BeginStep() override;
  void Take(int /*layer*/, std::vector<SlabRange>* /*ranges*/) override {}
  void BeginLayer(int layer) override;
  Status Attend(int /*layer*/, int /*group*/) override { return OkStatus(); }
  void EndStep() override;
  void Abort() override;

 private:
  // What is held of an entry that decodes.
  struct Entry {
    int entry = 0;
    Demoted::Held* held = nullptr;
    bool chooses = false;  // in this step; else it reads what an earlier one has listed
  };
  void AddItems(int layer, const Entry& entry);

  const PathParts parts_;
  StepContext& context_;
  Demoted& demoted_;
  const StateCut cut_;
  std::vector<Entry> entries_;  // of the step
  // Of the layer at hand:
  std::vector<SegmentPlace> places_;
  std::vector<SelectItem> selects_;
  std::vector<AttendBlocksItem> attends_;
};

void DemotedPath::BeginStep() {
  entries_.clear();
  for (int entry = 0; entry < parts_.batch.size(); ++entry) {
    const BatchEntry& row = parts_.batch[entry];
    Demoted::Held* const held = row.decode ? demoted_.Find(row.sequence) : nullptr;
    if (held != nullptr) entries_.push_back({entry, held, demoted_.Chooses(*held, row.position)});
  }
}

// Neighbouring heads that let go of equally many tokens go together.
void DemotedPath::AddItems(int layer, const Entry& entry) {
  const ModelShape& shape = context_.shape;
  const Demoted::Held& held = *entry.held;
  for (int first = 0, end = 0; first < shape.kv_heads; first = end) {
    const int64_t blocks = demoted_.BlocksOf(held, layer, first);
    for (end = first + 1; end < shape.kv_heads && demoted_.BlocksOf(held, layer, end) == blocks;) {
      ++end;
    }
    if (blocks == 0) continue;
    const size_t place = places_.size();
    for (int head = first; head < end; ++head) {
      places_.push_back(demoted_.PlaceOf(held, layer, head));
    }
    SelectItem select;
    select.q = context_.QueryAt(parts_.batch[entry.entry].row, int64_t{first} * shape.group());
    select.keys = demoted_.KeysOf(end - first, blocks);
    select.keys.segments = std::span(places_).subspan(place);
    select.budget.far_end = blocks;
    select.budget.far_blocks = std::min(blocks, demoted_.capacity());
    select.budget.share = BudgetShare::kHead;
    select.capacity = demoted_.capacity();
    select.blocks = demoted_.ListsOf(held, layer) + first * select.capacity;
    select.counts = demoted_.CountsOf(held, layer) + first;
    select.scratch =
        parts_.memory + (int64_t{entry.entry} * shape.kv_heads + first) *
                            ScratchBytes(shape, context_.limits);
    if (entry.chooses) selects_.push_back(select);
    const Board::States states =
        parts_.board.TakeStates(entry.entry, {first, end - first, 0}, cut_.parts);
    AttendBlocksItem attend;
    attend.q = select.q;
    attend.keys = select.keys;
    attend.blocks = select.blocks;
    attend.capacity = select.capacity;
    attend.counts = select.counts;
    attend.split = cut_.split;
    attend.parts = cut_.parts;
    attend.o = states.o;
    attend.o_part_stride = states.o_part_stride;
    attend.lse = states.lse;
    attend.lse_part_stride = states.lse_part_stride;
    attend.scratch = select.scratch;
    attends_.push_back(attend);
  }
}

void DemotedPath::BeginLayer(int layer) {
  if (entries_.empty()) return;
  places_.clear();
  places_.reserve(entries_.size() * static_cast<size_t>(context_.shape.kv_heads));  // items see it
  selects_.clear();
  attends_.clear();
  for (const Entry& entry : entries_) AddItems(layer, entry);
  const int group = context_.shape.group();
  const float scale = parts_.board.Params(0).scale;
  if (!selects_.empty()) {
    context_.kernels.SelectBlocks(context_.compute, context_.format, kSummary, group, scale,
                                  selects_);
  }
  if (!attends_.empty()) {
    context_.kernels.AttendBlocks(context_.compute, context_.format, kSummary, group, scale,
                                  attends_);
  }
}

void DemotedPath::EndStep() {
  for (const Entry& entry : entries_) {
    if (entry.chooses) entry.held->made = parts_.batch[entry.entry].position;
  }
}

// Some of its lists may be there.
void DemotedPath::Abort() {
  for (const Entry& entry : entries_) entry.held->made = -1;
}

int64_t PathBytes(const ModelShape& shape, const ExecutorLimits& limits) {
  return limits.demotion.demotes() ? limits.entries * shape.kv_heads * ScratchBytes(shape, limits)
                                   : 0;
}

}  // namespace

const PathKind kDemotedPath = {
    .name = "demoted",
    .order = path_order::kDemoted,
    .bytes = PathBytes,
    .make = [](const PathParts& parts) -> std::unique_ptr<AttentionPath> {
      if (parts.demoted == nullptr) return nullptr;
      return std::make_unique<DemotedPath>(parts);
    }};

}  // namespace headway
