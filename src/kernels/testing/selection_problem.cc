#include "kernels/testing/selection_problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/half.h"
#include "kernels/page_codec.h"
#include "kernels/selection_scratch.h"

namespace headway {
namespace {

constexpr int64_t kAlignment = 16;       // of rows, pages and what strides add up to
constexpr int64_t kLongAlignment = 256;  // of scratch

template <typename T>
T* At(std::byte* memory, int64_t offset) {
  return reinterpret_cast<T*>(memory + offset);
}

}  // namespace

class SelectionProblem::Arena {
 public:
  explicit Arena(Random& places) : places_(places) {}
  int64_t Take(int64_t bytes, int64_t alignment = kAlignment) {
    const int64_t at = RoundUp(end_ + kAlignment * places_.Below(9) + 1, alignment);
    end_ = at + bytes;
    return at;
  }
  std::vector<std::byte> Poisoned() const {
    return std::vector<std::byte>(static_cast<size_t>(end_ + kLongAlignment), std::byte{0xFF});
  }

 private:
  Random& places_;
  int64_t end_ = 0;
};

SelectionProblem::SelectionProblem(const SelectionCase& c, Random& random, Random& places)
    : spec(c), plain_format_(c.format) {
  HEADWAY_CHECK(SelectionFits(c.format, c.summary, c.group));
  plain_format_.encoding = Encoding::kNone;
  capacity_ = std::max(c.budget.Capacity(c.blocks(), c.heads),
                       EarlierBudget().Capacity(c.blocks(), c.heads)) +
              places.Below(3);
  if (c.rows == 1 && c.budget.looks_twice()) {
    const SelectionBudget earlier = EarlierBudget();
    const int run = search_run();
    candidate_capacity_ = (run == 1 ? earlier.OfCandidates() : earlier.OfCoarse(run))
                              .Capacity(c.blocks() / run, c.heads) +
                          places.Below(3);
  }
  if (c.rows == 1) {
    parts_ =
        static_cast<int>(CeilDiv(capacity_ * c.summary.block_slots, c.split) + places.Below(2));
  }
  LayOut(places);
  FillKeys(random);
  if (c.bad_numbers) SpoilKeys(random);
  if (encoded()) Encode();
  FillQueries(random);
  FillTurns(random);
  if (c.merge) FillStates(random);
}

SelectionProblem::SlabLayout SelectionProblem::LayoutOf(const PageFormat& format,
                                                        Random& places) const {
  const auto stride = [&](int64_t bytes) {
    return RoundUp(bytes + kAlignment * places.Below(5), kAlignment);
  };
  SlabLayout layout;
  layout.page_stride = stride(static_cast<int64_t>(format.closed_bytes()));
  layout.head_stride = stride(spec.segment_pages * layout.page_stride);
  layout.v_offset = stride(spec.group_heads * layout.head_stride);
  layout.bytes = 2 * layout.v_offset;
  if (format.encoding != Encoding::kNone) {
    layout.params_offset = layout.bytes;
    layout.params_head_stride = stride(ParamBytes(format));
    layout.params_page_stride = stride(spec.group_heads * layout.params_head_stride);
    layout.bytes += spec.segment_pages * layout.params_page_stride;
  }
  return layout;
}

void SelectionProblem::LayOut(Random& places) {
  plain_ = LayoutOf(plain_format_, places);
  closed_ = encoded() ? LayoutOf(spec.format, places) : plain_;
  const auto segments = static_cast<size_t>(head_groups() * group_segments());
  const int64_t code_bytes = spec.summary.code_bytes(spec.format.head_dim);
  const int64_t segment_blocks = spec.segment_pages * spec.page_blocks();
  codes_head_stride_ = segment_blocks * code_bytes + kAlignment * places.Below(4);
  scales_offset_ = spec.group_heads * codes_head_stride_ + kAlignment * places.Below(4);
  scales_head_stride_ = 2 * (segment_blocks + places.Below(3));
  const int64_t sketch_bytes = spec.summary.sketch_bytes(spec.format.head_dim);
  sketch_head_stride_ = segment_blocks * sketch_bytes + kAlignment * places.Below(4);
  page_codes_offset_ =
      RoundUp(scales_offset_ + spec.group_heads * scales_head_stride_ * int64_t{sizeof(float)},
              kAlignment) +
      kAlignment * places.Below(4);
  page_codes_head_stride_ =
      spec.by_pages ? spec.segment_pages * code_bytes + kAlignment * places.Below(4) : 0;
  page_scales_offset_ = page_codes_offset_ + spec.group_heads * page_codes_head_stride_;
  page_scales_head_stride_ = spec.by_pages ? 2 * (spec.segment_pages + places.Below(3)) : 0;
  cut_ = places.Below(segment_blocks + 1) * spec.summary.block_slots;

  Arena in_pages(places), in_working(places);
  std::vector<size_t> order(segments);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t i = segments; i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<size_t>(places.Below(static_cast<int64_t>(i)))]);
  }
  plain_slabs_.resize(segments);
  closed_slabs_.resize(segments);
  summaries_.resize(segments);
  sketches_.resize(segments);
  for (const size_t i : order) {
    sketches_[i] = in_working.Take(spec.group_heads * sketch_head_stride_);
  }
  sketches_end_ = in_working.Take(0);
  for (const size_t i : order) {
    plain_slabs_[i] = in_pages.Take(plain_.bytes);
    if (encoded()) closed_slabs_[i] = in_pages.Take(closed_.bytes);
    summaries_[i] = in_working.Take(
        page_scales_offset_ + spec.group_heads * page_scales_head_stride_ * int64_t{sizeof(float)});
  }
  pages = in_pages.Poisoned();

  const auto floats = [&](int64_t count) {
    return in_working.Take(count * int64_t{sizeof(float)});
  };
  o_stride_ = query_heads() * spec.format.head_dim + 4 * places.Below(3);
  lse_stride_ = query_heads() + places.Below(3);
  q_stride_ = query_heads() * spec.format.head_dim + 8 * places.Below(3);
  const int64_t query_rows = spec.rows + (has_earlier_query() ? 1 : 0);
  q_ = floats(query_rows * q_stride_);
  floats_ = floats(query_rows * q_stride_);
  slot_cos_ = floats(group_segments() * segment_slots() * spec.turn_dim / 2);
  slot_sin_ = floats(group_segments() * segment_slots() * spec.turn_dim / 2);
  row_cos_ = floats(spec.rows * spec.turn_dim / 2);
  row_sin_ = floats(spec.rows * spec.turn_dim / 2);
  inv_freq_ = floats(spec.move_dim / 2);
  turn_freq_ = floats(spec.turn_dim / 2);
  candidates_ = in_working.Take(spec.heads * candidate_capacity_ * int64_t{sizeof(int32_t)});
  candidate_counts_ = in_working.Take(spec.heads * int64_t{sizeof(int32_t)});
  for (size_t i = 0; i < survivors_.size(); ++i) {
    survivor_capacity_[i] = spec.budget.Survivors(spec.budget.stages[i]) + places.Below(3);
    survivors_[i] = in_working.Take(spec.heads * survivor_capacity_[i] * int64_t{sizeof(int32_t)});
    survivor_counts_[i] = in_working.Take(spec.heads * int64_t{sizeof(int32_t)});
  }
  lists_ = in_working.Take(row_blocks() * spec.heads * capacity_ * int64_t{sizeof(int32_t)});
  counts_ = in_working.Take(row_blocks() * spec.heads * int64_t{sizeof(int32_t)});
  listed_ = in_working.Take(sizeof(uint64_t));
  o_ = floats(states() * o_stride_);
  lse_ = floats(states() * lse_stride_);
  scratch_bytes_ = ScratchBytes();
  scratch_ = in_working.Take(scratch_bytes_, kLongAlignment);
  working = in_working.Poisoned();
}

int64_t SelectionProblem::PlainAt(int64_t head, int64_t slot) const {
  const int64_t segment = head / spec.group_heads * group_segments() + slot / segment_slots();
  const int64_t page = slot % segment_slots() / spec.format.page_slots;
  return plain_slabs_[static_cast<size_t>(segment)] + head % spec.group_heads * plain_.head_stride +
         page * plain_.page_stride +
         slot % spec.format.page_slots * static_cast<int64_t>(plain_format_.bytes()) /
             spec.format.page_slots;
}

// Keys as caches hold them: channels with large offsets, and neighbours that are like each other.
// Some blocks are zero, and some the same in every head, so that worths are equal.
std::vector<float> SelectionProblem::BlockOfKeys(int64_t block, const std::vector<float>& offsets,
                                                 const std::vector<float>& center,
                                                 Random& random) const {
  const auto dim = static_cast<size_t>(spec.format.head_dim);
  std::vector<float> keys(static_cast<size_t>(spec.summary.block_slots) * dim, 0.0f);
  const int64_t kind = random.Below(10);
  if (kind == 0) return keys;
  // A zero among other numbers escapes.
  const float least = spec.format.encoding == Encoding::kLossless ? 1.0f : -1.0f;
  for (size_t i = 0; i < keys.size(); ++i) {
    const float shared = least + static_cast<float>((block + static_cast<int64_t>(i)) % 3);
    keys[i] = kind == 1 ? shared : offsets[i % dim] + center[i % dim] + 0.5f * random.Normal();
    keys[i] *= spec.key_size;
  }
  return keys;
}

void SelectionProblem::FillKeys(Random& random) {
  const int64_t dim = spec.format.head_dim;
  const int64_t slots = spec.summary.block_slots;
  const bool lossless = spec.format.encoding == Encoding::kLossless;
  for (int64_t head = 0; head < spec.heads; ++head) {
    std::vector<float> offsets(static_cast<size_t>(dim)), center(static_cast<size_t>(dim));
    for (float& offset : offsets) offset = random.Below(16) == 0 ? 6 * random.Normal() : 0.0f;
    std::vector<float> keys;
    for (int64_t block = 0; block < spec.blocks(); ++block) {
      if (block % 6 == 0)
        std::generate(center.begin(), center.end(), [&] { return random.Normal(); });
      // Now and then the block before once more.
      if (keys.empty() || random.Below(8) != 0) keys = BlockOfKeys(block, offsets, center, random);
      for (int64_t slot = 0; slot < slots; ++slot) {
        std::byte* k = pages.data() + PlainAt(head, block * slots + slot);
        // Some numbers do not lie among the others' exponents.
        const auto size = [&] { return lossless && random.Below(1000) == 0 ? 0x1p-20f : 1.0f; };
        for (int64_t i = 0; i < dim; ++i) {
          StoreFloat(k, i, spec.format.dtype, size() * keys[static_cast<size_t>(slot * dim + i)]);
          StoreFloat(k + plain_.v_offset, i, spec.format.dtype, size() * random.Normal());
        }
      }
    }
  }
}

void SelectionProblem::SpoilKeys(Random& random) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int64_t left = spec.heads * spec.blocks() / 20; left > 0; --left) {
    std::byte* k = pages.data() + PlainAt(random.Below(spec.heads),
                                          random.Below(spec.pages * spec.format.page_slots));
    StoreFloat(k, random.Below(spec.format.head_dim), spec.format.dtype,
               Pick(random, {kPoison, kInfinity, -kInfinity}));
  }
}

void SelectionProblem::FillQueries(Random& random) {
  const int64_t dim = spec.format.head_dim;
  const int64_t rows = spec.rows + (has_earlier_query() ? 1 : 0);
  for (int64_t at = 0; at < rows * query_heads(); ++at) {
    const int64_t row = at / query_heads() * q_stride_ + at % query_heads() * dim;
    const bool zero = random.Below(12) == 0;
    const bool spoiled = spec.bad_numbers && random.Below(spec.rows == 1 ? 6 : 200) == 0;
    const int64_t bad = spoiled ? random.Below(dim) : dim;
    for (int64_t i = 0; i < dim; ++i) {
      const float value = i == bad ? kPoison : zero ? 0.0f : random.Normal();
      StoreFloat(working.data() + q_, row + i, spec.activation, value);
      StoreFloat(working.data() + floats_, row + i, DType::kF32,
                 LoadAsFloat(working.data() + q_, row + i, spec.activation));
    }
  }
}

void SelectionProblem::FillTurns(Random& random) {
  const auto angles = [&](int64_t count, int64_t cos, int64_t sin) {
    for (int64_t i = 0; i < count; ++i) {
      const double angle = 10.0 * double{random.Normal()};
      At<float>(working.data(), cos)[i] = static_cast<float>(std::cos(angle));
      At<float>(working.data(), sin)[i] = static_cast<float>(std::sin(angle));
    }
  };
  angles(group_segments() * segment_slots() * spec.turn_dim / 2, slot_cos_, slot_sin_);
  angles(spec.rows * spec.turn_dim / 2, row_cos_, row_sin_);
  for (const auto& [to, dim] : {std::pair{inv_freq_, spec.move_dim}, {turn_freq_, spec.turn_dim}}) {
    for (int i = 0; i < dim / 2; ++i) {
      At<float>(working.data(), to)[i] = static_cast<float>(std::pow(5e5, -2.0 * i / dim));
    }
  }
  // Segments between these are not given.
  for (int64_t i = 0; i < group_segments(); ++i) {
    if (random.Below(3) == 0) end_ += random.Below(random.Below(2) == 0 ? 100 : 2'000'000);
    positions_.push_back(end_);
    end_ += std::min(segment_slots(), spec.pages * spec.format.page_slots - i * segment_slots());
  }
}

// States to merge into, some of no keys.
void SelectionProblem::FillStates(Random& random) {
  for (int64_t at = 0; at < states() * query_heads(); ++at) {
    const int64_t state = at / query_heads(), head = at % query_heads();
    const bool none = random.Below(6) == 0;
    At<float>(working.data(), lse_)[state * lse_stride_ + head] =
        none ? -std::numeric_limits<float>::infinity() : 3.0f * random.Normal();
    float* o = At<float>(working.data(), o_) + state * o_stride_ + head * spec.format.head_dim;
    std::generate_n(o, spec.format.head_dim, [&] { return none ? kPoison : random.Normal(); });
  }
}

void SelectionProblem::Encode() {
  for (int64_t head = 0; head < spec.heads; ++head) {
    for (int64_t page = 0; page < spec.pages; ++page) {
      const auto segment = static_cast<size_t>(head / spec.group_heads * group_segments() +
                                               page / spec.segment_pages);
      EncodePagesItem item;
      item.from = RunOf(plain_, pages.data() + plain_slabs_[segment], 0, 0);
      item.to = RunOf(closed_, pages.data() + closed_slabs_[segment], 0, 0);
      EncodePageOf(spec.format, item, head % spec.group_heads, page % spec.segment_pages);
    }
  }
}

PageRun SelectionProblem::RunOf(const SlabLayout& layout, std::byte* slab, int64_t slot,
                                int64_t count) const {
  const int64_t page = slot / spec.format.page_slots;
  PageRun run;
  run.k = slab + page * layout.page_stride;
  run.v = run.k + layout.v_offset;
  run.page_stride = layout.page_stride;
  run.head_stride = layout.head_stride;
  run.first_slot = slot % spec.format.page_slots;
  run.count = count;
  if (layout.params_page_stride > 0) {
    run.params = slab + layout.params_offset + page * layout.params_page_stride;
    run.params_page_stride = layout.params_page_stride;
    run.params_head_stride = layout.params_head_stride;
  }
  return run;
}

SummarizeItem SelectionProblem::SummaryOf(const SummaryFormat& summary,
                                          const SelectionMemory& memory, size_t segment,
                                          int64_t slot) const {
  std::byte* const at = memory.working + summaries_[segment];
  const int64_t block = slot / summary.block_slots;
  const int64_t codes = block * summary.code_bytes(spec.format.head_dim);
  if (summary.block_slots != spec.summary.block_slots) {
    return {.keys = {},
            .codes = at + page_codes_offset_ + codes,
            .scales = At<float>(at, page_scales_offset_) + 2 * block,
            .codes_head_stride = page_codes_head_stride_,
            .scales_head_stride = page_scales_head_stride_};
  }
  return {.keys = {},
          .codes = at + codes,
          .scales = At<float>(at, scales_offset_) + 2 * block,
          .sketch = memory.sketches + sketches_[segment] +
                    block * summary.sketch_bytes(spec.format.head_dim),
          .codes_head_stride = codes_head_stride_,
          .scales_head_stride = scales_head_stride_,
          .sketch_head_stride = sketch_head_stride_};
}

std::vector<SelectionProblem::SummaryCall> SelectionProblem::Summaries(
    const SelectionMemory& memory) const {
  if (!spec.summary.kept()) return {};
  std::vector<SummaryCall> calls = {{spec.summary, {}}};
  if (spec.by_pages) calls.push_back({page_summary(), {}});
  const SlabLayout& layout = spec.of_codes ? closed_ : plain_;
  const std::vector<int64_t>& slabs = spec.of_codes ? closed_slabs_ : plain_slabs_;
  for (int64_t i = 0; i < std::ssize(summaries_); ++i) {
    const int64_t group = i / group_segments();
    const int64_t slots = std::min(segment_slots(), spec.pages * spec.format.page_slots -
                                                        i % group_segments() * segment_slots());
    for (SummaryCall& call : calls) {
      const int64_t cut =
          std::min(cut_, slots) / call.summary.block_slots * call.summary.block_slots;
      for (const auto& [slot, count] : {std::pair{int64_t{0}, cut}, std::pair{cut, slots - cut}}) {
        const int64_t angles = (i % group_segments() * segment_slots() + slot) * spec.turn_dim / 2;
        SummarizeItem item = SummaryOf(call.summary, memory, static_cast<size_t>(i), slot);
        item.keys = RunOf(layout, memory.pages + slabs[static_cast<size_t>(i)], slot, count);
        item.heads = static_cast<int>(
            std::min<int64_t>(spec.group_heads, spec.heads - group * spec.group_heads));
        item.rotated = {At<float>(memory.working, slot_cos_) + angles,
                        At<float>(memory.working, slot_sin_) + angles, spec.turn_dim};
        call.items.push_back(item);
      }
    }
  }
  return calls;
}

std::vector<SegmentPlace> SelectionProblem::Segments(const SelectionMemory& memory) const {
  std::vector<SegmentPlace> segments;
  for (size_t i = 0; i < summaries_.size(); ++i) {
    segments.push_back({memory.pages + slabs()[i],
                        spec.summary.kept() ? memory.working + summaries_[i] : nullptr,
                        spec.summary.sketched() ? memory.sketches + sketches_[i] : nullptr,
                        positions_[i % static_cast<size_t>(group_segments())]});
  }
  return segments;
}

BlockedKeys SelectionProblem::Keys(std::span<const SegmentPlace> segments) const {
  return {.segments = segments,
          .heads = spec.heads,
          .group_heads = spec.group_heads,
          .blocks = spec.blocks(),
          .segment_blocks = spec.segment_pages * spec.page_blocks(),
          .page_stride = closed_.page_stride,
          .head_stride = closed_.head_stride,
          .v_offset = closed_.v_offset,
          .params_offset = closed_.params_offset,
          .params_page_stride = closed_.params_page_stride,
          .params_head_stride = closed_.params_head_stride,
          .codes_head_stride = codes_head_stride_,
          .scales_offset = scales_offset_,
          .scales_head_stride = scales_head_stride_,
          .sketch_head_stride = sketch_head_stride_};
}

int64_t SelectionProblem::ScratchBytes() const {
  const auto segments = std::ssize(summaries_);
  if (spec.summary.kind == SummaryKind::kStages && spec.rows > 1) {
    return SelectStagesBytes(spec.heads, spec.group, spec.blocks(), segments, spec.rows,
                             spec.budget.StageEntries());
  }
  SelectItem item;
  item.rows = spec.rows;
  item.budget = spec.budget;
  int64_t candidates = spec.summary.sketched() ? candidate_capacity_ * search_run() : 0;
  if (spec.rows > 1) {
    candidates = item.looks_twice() ? item.OfCandidates().Capacity(spec.blocks(), spec.heads) : 0;
  }
  return SelectScratchBytes(spec.heads, spec.group, spec.blocks(), segments, spec.rows, candidates);
}

SelectionBudget SelectionProblem::EarlierBudget() const {
  SelectionBudget budget = spec.budget;
  if (spec.candidates_from >= 0) budget.far_end -= spec.candidates_from;
  return budget;
}

SelectItem SelectionProblem::SearchOf(SelectItem item) const {
  const int run = search_run();
  item.keys.blocks = spec.pages;
  item.keys.segment_blocks = spec.segment_pages;
  item.keys.codes_offset = page_codes_offset_;
  item.keys.codes_head_stride = page_codes_head_stride_;
  item.keys.scales_offset = page_scales_offset_;
  item.keys.scales_head_stride = page_scales_head_stride_;
  item.budget = item.budget.OfCoarse(run);
  item.blocks = item.candidates.blocks;
  item.capacity = item.candidates.capacity;
  item.counts = item.candidates.counts;
  item.candidates = {};
  return item;
}

std::vector<SelectionProblem::ChoiceCall> SelectionProblem::Choices(
    const SelectionMemory& memory, std::span<const SegmentPlace> segments, DType activation) const {
  SelectItem choice = {.q = memory.working + (activation == DType::kF32 ? floats_ : q_),
                       .q_stride = q_stride_,
                       .rows = spec.rows,
                       .turn = {At<float>(memory.working, row_cos_),
                                At<float>(memory.working, row_sin_), spec.turn_dim},
                       .keys = Keys(segments),
                       .budget = spec.budget,
                       .blocks = At<int32_t>(memory.working, lists_),
                       .capacity = capacity_,
                       .counts = At<int32_t>(memory.working, counts_),
                       .candidates = {At<int32_t>(memory.working, candidates_), candidate_capacity_,
                                      At<int32_t>(memory.working, candidate_counts_), search_run()},
                       .scratch = memory.working + scratch_};
  if (spec.summary.kind == SummaryKind::kStages) {
    choice.rotated = {At<float>(memory.working, turn_freq_), spec.turn_dim, spec.positions};
  }
  for (size_t i = 0; i < survivors_.size(); ++i) {
    choice.survivors[i] = {At<int32_t>(memory.working, survivors_[i]), survivor_capacity_[i],
                           At<int32_t>(memory.working, survivor_counts_[i])};
  }
  SelectItem earlier = choice;
  if (spec.budget.lists_by_worth()) {
    choice.listed = At<uint64_t>(memory.working, listed_);
  }
  if (!has_earlier_query()) {
    if (!spec.by_pages) return {{spec.summary, choice}};
    choice.candidates_listed = true;
    return {{page_summary(), SearchOf(earlier)}, {spec.summary, choice}};
  }
  earlier.q = static_cast<const std::byte*>(choice.q) +
              q_stride_ * static_cast<int64_t>(DTypeBytes(activation));
  earlier.budget = EarlierBudget();
  choice.candidates_listed = true;
  choice.first_stage = spec.first_stage;
  if (spec.by_pages) return {{page_summary(), SearchOf(earlier)}, {spec.summary, choice}};
  return {{spec.summary, earlier}, {spec.summary, choice}};
}

AttendBlocksItem SelectionProblem::Attend(const SelectionMemory& memory,
                                          std::span<const SegmentPlace> segments,
                                          DType activation) const {
  AttendBlocksItem item = {.q = memory.working + (activation == DType::kF32 ? floats_ : q_),
                           .q_stride = q_stride_,
                           .rows = spec.rows,
                           .keys = Keys(segments),
                           .blocks = At<int32_t>(memory.working, lists_),
                           .capacity = capacity_,
                           .counts = At<int32_t>(memory.working, counts_),
                           .split = spec.split,
                           .parts = parts_,
                           .o = At<float>(memory.working, o_),
                           .o_stride = o_stride_,
                           .o_part_stride = o_stride_,
                           .lse = At<float>(memory.working, lse_),
                           .lse_stride = lse_stride_,
                           .lse_part_stride = lse_stride_,
                           .merge = spec.merge,
                           .scratch = memory.working + scratch_};
  if (spec.move_dim > 0) {
    item.move = {At<float>(memory.working, inv_freq_), spec.move_dim, end_};
    if (spec.together) item.move.least = end_ - 2 * int64_t{spec.summary.block_slots};
  }
  return item;
}

}  // namespace headway
