#include "engine/paths/demoted.h"

#include <algorithm>
#include <vector>

#include "base/bytes.h"
#include "engine/step/demoted.h"
#include "engine/step/selected_states.h"
#include "kernels/selection_scratch.h"

namespace headway {
namespace {

constexpr const SummaryFormat& kSummary = kv::DemotionPolicy::kSummary;

// The path's memory: scratch of each head of each entry that decodes; lists of the rows of text
// that is read behind prompts, and scratch for choosing for some heads of one entry at a time.
struct DemotedMemory {
  int64_t head_scratch = 0;  // bytes of one
  int64_t lists = 0, counts = 0, scratch = 0, bytes = 0;

  DemotedMemory(const ModelShape& shape, const ExecutorLimits& limits) {
    constexpr int64_t kLine = 256;
    const int64_t blocks = limits.length / kSummary.block_slots;
    head_scratch = SelectScratchBytes(1, shape.group(), blocks, 1);
    const int64_t of_rows =
        (CeilDiv(limits.step_tokens, kSelectRows) + limits.entries) * shape.kv_heads;
    lists = limits.entries * shape.kv_heads * head_scratch;
    counts = lists + RoundUp(of_rows * limits.demotion.blocks() * int64_t{sizeof(int32_t)}, kLine);
    scratch = counts + RoundUp(of_rows * int64_t{sizeof(int32_t)}, kLine);
    bytes = scratch + SelectScratchBytes(shape.kv_heads, shape.group(), blocks, shape.kv_heads,
                                         limits.step_tokens);
  }
};

class DemotedPath : public AttentionPath {
 public:
  explicit DemotedPath(const PathParts& parts)
      : parts_(parts),
        context_(parts.context),
        demoted_(*parts.demoted),
        cut_(DemotedStates(context_.shape, context_.limits, context_.kernels)),
        memory_(context_.shape, context_.limits) {}

  void BeginStep() override;
  void Take(int /*layer*/, std::vector<SlabRange>* /*ranges*/) override {}
  void BeginLayer(int layer) override;
  Status Attend(int /*layer*/, int /*group*/) override { return OkStatus(); }
  void EndStep() override;
  void Abort() override;

 private:
  // What is held of an entry.
  struct Entry {
    int entry = 0;
    Demoted::Held* held = nullptr;
    bool chooses = true;  // in this step; else it reads what an earlier one has listed
  };
  const BatchEntry& RowsOf(const Entry& entry) const { return parts_.batch[entry.entry]; }
  std::vector<kv::HeadRun> RunsOf(int layer, const Entry& entry) const;
  SelectItem ItemFor(int layer, const Entry& entry, const kv::HeadRun& heads);
  AttendBlocksItem AttendTo(const SelectItem& select) const;
  void AddDecode(int layer, const Entry& entry);
  void RunRows(int layer, const Entry& entry);
  void Run(std::span<const SelectItem> selects, std::span<const AttendBlocksItem> attends);

  const PathParts parts_;
  StepContext& context_;
  Demoted& demoted_;
  const StateCut cut_;
  const DemotedMemory memory_;
  std::vector<Entry> entries_;  // of the step
  // Of the layer at hand:
  std::vector<SegmentPlace> places_;
  std::vector<SelectItem> selects_;
  std::vector<AttendBlocksItem> attends_;
  int64_t row_lists_ = 0;  // of rows so far
};

void DemotedPath::BeginStep() {
  entries_.clear();
  for (int entry = 0; entry < parts_.batch.size(); ++entry) {
    const BatchEntry& rows = parts_.batch[entry];
    Demoted::Held* const held = demoted_.Find(rows.sequence);
    if (held == nullptr) continue;
    entries_.push_back({entry, held, !rows.decode || demoted_.Chooses(*held, rows.position)});
  }
}

// Neighbouring heads that let go of equally many tokens go together; of none, nowhere.
std::vector<kv::HeadRun> DemotedPath::RunsOf(int layer, const Entry& entry) const {
  std::vector<kv::HeadRun> runs;
  for (int head = 0; head < context_.shape.kv_heads; ++head) {
    const int64_t blocks = demoted_.BlocksOf(*entry.held, layer, head);
    if (blocks == 0) continue;
    const bool joins = !runs.empty() && runs.back().head + runs.back().heads == head &&
                       demoted_.BlocksOf(*entry.held, layer, head - 1) == blocks;
    if (joins) {
      ++runs.back().heads;
    } else {
      runs.push_back({head, 1, 0});
    }
  }
  return runs;
}

// But for its lists and scratch.
SelectItem DemotedPath::ItemFor(int layer, const Entry& entry, const kv::HeadRun& heads) {
  const size_t first = places_.size();
  for (int head = heads.head; head < heads.head + heads.heads; ++head) {
    places_.push_back(demoted_.PlaceOf(*entry.held, layer, head));
  }
  const int64_t blocks = demoted_.BlocksOf(*entry.held, layer, heads.head);
  SelectItem select;
  select.q = context_.QueryAt(RowsOf(entry).row, int64_t{heads.head} * context_.shape.group());
  select.q_stride = context_.act.qkv_stride;
  select.rows = RowsOf(entry).tokens;
  select.keys = demoted_.KeysOf(heads.heads, blocks);
  select.keys.segments = std::span(places_).subspan(first);
  select.budget.far_end = blocks;
  select.budget.far_blocks = std::min(blocks, demoted_.capacity());
  select.budget.share = BudgetShare::kHead;
  select.capacity = demoted_.capacity();
  return select;
}

// But for its states.
AttendBlocksItem DemotedPath::AttendTo(const SelectItem& select) const {
  AttendBlocksItem attend;
  attend.q = select.q;
  attend.q_stride = select.q_stride;
  attend.rows = select.rows;
  attend.keys = select.keys;
  attend.blocks = select.blocks;
  attend.capacity = select.capacity;
  attend.counts = select.counts;
  attend.scratch = select.scratch;
  return attend;
}

void DemotedPath::AddDecode(int layer, const Entry& entry) {
  for (const kv::HeadRun& heads : RunsOf(layer, entry)) {
    SelectItem select = ItemFor(layer, entry, heads);
    select.blocks = demoted_.ListsOf(*entry.held, layer) + heads.head * select.capacity;
    select.counts = demoted_.CountsOf(*entry.held, layer) + heads.head;
    select.scratch = parts_.memory + (int64_t{entry.entry} * context_.shape.kv_heads + heads.head) *
                                         memory_.head_scratch;
    if (entry.chooses) selects_.push_back(select);
    const Board::States states = parts_.board.TakeStates(entry.entry, heads, cut_.parts);
    AttendBlocksItem& attend = attends_.emplace_back(AttendTo(select));
    attend.split = cut_.split;
    attend.parts = cut_.parts;
    attend.o = states.o;
    attend.o_part_stride = states.o_part_stride;
    attend.lse = states.lse;
    attend.lse_part_stride = states.lse_part_stride;
  }
}

// Rows of text behind a prompt choose in blocks of kSelectRows.
void DemotedPath::RunRows(int layer, const Entry& entry) {
  for (const kv::HeadRun& heads : RunsOf(layer, entry)) {
    SelectItem select = ItemFor(layer, entry, heads);
    select.blocks =
        reinterpret_cast<int32_t*>(parts_.memory + memory_.lists) + row_lists_ * select.capacity;
    select.counts = reinterpret_cast<int32_t*>(parts_.memory + memory_.counts) + row_lists_;
    select.scratch = parts_.memory + memory_.scratch;
    row_lists_ += select.row_blocks() * heads.heads;
    const Board::RowStates states = parts_.board.TakeRowStates(entry.entry, heads);
    AttendBlocksItem attend = AttendTo(select);
    attend.o = states.o;
    attend.o_stride = states.o_stride;
    attend.lse = states.lse;
    attend.lse_stride = states.lse_stride;
    Run({&select, 1}, {&attend, 1});
  }
}

void DemotedPath::Run(std::span<const SelectItem> selects,
                      std::span<const AttendBlocksItem> attends) {
  const int group = context_.shape.group();
  const float scale = parts_.board.Params(0).scale;
  if (!selects.empty()) {
    context_.kernels.SelectBlocks(context_.compute, context_.format, kSummary, group, scale,
                                  selects);
  }
  if (!attends.empty()) {
    context_.kernels.AttendBlocks(context_.compute, context_.format, kSummary, group, scale,
                                  attends);
  }
}

void DemotedPath::BeginLayer(int layer) {
  if (entries_.empty()) return;
  places_.clear();
  places_.reserve(entries_.size() * static_cast<size_t>(context_.shape.kv_heads));  // items see it
  selects_.clear();
  attends_.clear();
  row_lists_ = 0;
  for (const Entry& entry : entries_) {
    if (RowsOf(entry).decode) {
      AddDecode(layer, entry);
    } else {
      RunRows(layer, entry);
    }
  }
  Run(selects_, attends_);
}

void DemotedPath::EndStep() {
  for (const Entry& entry : entries_) {
    demoted_.Stepped(RowsOf(entry), entry.chooses, entry.held);
  }
}

// Some of its lists may be there.
void DemotedPath::Abort() {
  for (const Entry& entry : entries_) entry.held->made = -1;
}

int64_t PathBytes(const ModelShape& shape, const ExecutorLimits& limits) {
  return limits.demotion.demotes() ? DemotedMemory(shape, limits).bytes : 0;
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
