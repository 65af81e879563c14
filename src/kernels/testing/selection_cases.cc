// Random cases of selection.
#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "kernels/testing/selection_problem.h"

namespace headway {
namespace {

const char* KindName(SummaryKind kind) {
  switch (kind) {
    case SummaryKind::kMoments:
      return " moments";
    case SummaryKind::kBoxes:
      return " boxes";
    case SummaryKind::kPairs:
      return " pairs";
    case SummaryKind::kMasses:
      return " masses";
    case SummaryKind::kStages:
      return " stages";
  }
  return "?";
}

// Any stages that hold what is chosen, some of an earlier query.
void Stage(Random& random, SelectionCase& c) {
  c.budget.share = BudgetShare::kHead;
  c.budget.top_p = 0;
  c.budget.least_blocks = 0;
  int64_t blocks = 1;
  for (auto stage = c.budget.stages.rbegin(); stage != c.budget.stages.rend(); ++stage) {
    if (random.Below(4) == 0) continue;
    blocks *= 2 + random.Below(4);
    *stage = {blocks, CeilDiv(c.budget.far_blocks, blocks) + random.Below(3)};
  }
  c.first_stage = static_cast<int>(random.Below(kChunkStages + 1));
}

int64_t SomeRows(Random& random) { return 2 + random.Below(random.Below(3) == 0 ? 200 : 70); }

}  // namespace

std::string SelectionCase::Name() const {
  std::string name = std::string(DTypeName(format.dtype)) + " " + EncodingName(format.encoding) +
                     KindName(summary.kind) + (summary.sketched() ? " sketched" : "") +
                     (budget.share == BudgetShare::kHead ? " by head" : " by layer");
  const auto add = [&](const char* what, auto value) {
    name += std::string(" ") + what + " " + std::to_string(value);
  };
  add("dim", format.head_dim);
  add("page", format.page_slots);
  add("block", summary.block_slots);
  add("heads", heads);
  add("of groups", group_heads);
  add("group", group);
  add("segment", segment_pages);
  add("pages", pages);
  add("far from", budget.far_begin);
  add("to", budget.far_end);
  if (budget.far_step > 0) add("by", budget.far_step);
  if (budget.looks_twice()) add("candidates", budget.candidates);
  if (candidates_from >= 0) add("listed before by", candidates_from);
  if (by_pages) add("by pages of", page_blocks());
  add("choose", budget.far_blocks);
  if (budget.takes_top_p()) add("top p", budget.top_p), add("at least", budget.least_blocks);
  if (budget.is_bounded()) add("bound", budget.bound.epsilon), add("by", budget.bound.deviations);
  add("split", split);
  add("scale", scale);
  name += " keys " + std::to_string(std::log2(key_size));
  add("rows", rows);
  add("turn", turn_dim);
  add("move", move_dim);
  if (together) name += " together";
  if (merge) name += " merge";
  for (const ChunkStage& stage : budget.stages) {
    if (stage.blocks > 0) add("stage of", stage.blocks), add("keeps", stage.kept);
  }
  if (first_stage > 0) add("from stage", first_stage);
  if (positions == KeyPositions::kChunks) name += " positions of chunks";
  if (positions == KeyPositions::kBranches) name += " positions of branches";
  if (of_codes) name += " of codes";
  if (bad_numbers) name += " bad numbers";
  return name;
}

void SelectionCase::MayLookTwice(Random& random) {
  summary.sketch = Pick(random, {SketchKind::kNone, SketchKind::kTwoBits});
  if (!SelectionFits(format, summary, group)) summary.sketch = SketchKind::kNone;
  budget.candidates = budget.far_blocks * Pick<int64_t>(random, {0, 1, 2, 4, 4}) + random.Below(3);
  if (!HasSummaries(summary.kind)) budget.candidates = 0;
  candidates_from = -1;
  by_pages = budget.looks_twice() && page_blocks() > 1 && random.Below(2) == 0;
  if (!budget.looks_twice() || random.Below(2) == 0) return;
  const int64_t left_out = budget.far_end - budget.far_begin - budget.far_blocks;
  candidates_from = random.Below(std::min<int64_t>(left_out, 4));
}

void SelectionCase::MayTakeTopP(Random& random) {
  constexpr uint32_t kAll = 1u << kTopPBits;
  budget.top_p = Pick<uint32_t>(random, {0, 0, 1, kAll / 2, kAll - kAll / 10, kAll});
  if (budget.top_p == 0) return;
  budget.least_blocks = 1 + random.Below(std::max<int64_t>(1, budget.far_blocks / 2));
  // So that the share decides as often as the cap.
  const int64_t far = budget.far_end - budget.far_begin;
  budget.far_blocks = Pick<int64_t>(random, {budget.far_blocks, far - 1, far});
  budget.far_blocks = std::max<int64_t>(0, budget.far_blocks);
}

SelectionCase RandomSelectionCase(Random& random) {
  SelectionCase c;
  c.format.dtype = Pick(random, {DType::kF32, DType::kF16, DType::kBF16});
  c.format.page_slots = Pick(random, {16, 32, 64, 64});
  c.format.head_dim = Pick(random, {8, 16, 24, 32, 64, 64, 80, 96, 128, 128, 192, 256});
  c.format.encoding = Pick(random, {Encoding::kNone, Encoding::kNone, Encoding::kInt8,
                                    Encoding::kFp8E4M3, Encoding::kInt4, Encoding::kLossless});
  if (c.format.encoding == Encoding::kLossless) c.format.dtype = DType::kBF16;
  c.summary.kind = Pick(random, {SummaryKind::kMoments, SummaryKind::kBoxes});
  c.summary.block_slots = Pick(random, {8, 16, 16, 16});
  if (random.Below(8) == 0) c.summary.block_slots = c.format.page_slots;
  c.heads = 1 + static_cast<int>(random.Below(5));
  c.group_heads = 1 + static_cast<int>(random.Below(c.heads));
  c.group = 1 + static_cast<int>(random.Below(8));
  c.segment_pages = 1 + static_cast<int>(random.Below(5));
  c.pages = random.Below(random.Below(3) == 0 ? 40 : 12);
  const int64_t blocks = c.blocks();
  c.budget.far_begin = random.Below(std::min<int64_t>(blocks, 4) + 1);
  c.budget.far_end = std::max(c.budget.far_begin, blocks - random.Below(6));
  const int64_t far = c.budget.far_end - c.budget.far_begin;
  c.budget.far_blocks = Pick<int64_t>(random, {0, far, far / 2, far / 4, random.Below(far + 1)});
  c.budget.share = Pick(random, {BudgetShare::kHead, BudgetShare::kLayer});
  c.MayTakeTopP(random);
  c.MayLookTwice(random);
  c.split = c.summary.block_slots * Pick<int64_t>(random, {1, 3, 8, 32});
  c.scale = Pick(random, {1.0f, 1.0f, 4.0f}) / std::sqrt(static_cast<float>(c.format.head_dim));
  c.key_size = Pick(random, {1.0f, 1.0f, 0.1f, 4.0f, 0.0f, 1e-17f});
  // Beside channels of another size small ones do not fit, and are NaN.
  if (c.format.encoding == Encoding::kLossless && c.key_size < 0.1f) c.key_size = 1.0f;
  c.bad_numbers = random.Below(4) == 0;
  c.of_codes = c.format.encoding != Encoding::kNone && random.Below(2) == 0;
  return c;
}

SelectionCase RandomBoundedCase(Random& random) {
  SelectionCase c = RandomSelectionCase(random);
  c.summary = {.kind = Pick(random, {SummaryKind::kMoments, SummaryKind::kMoments,
                                     SummaryKind::kBoxes, SummaryKind::kPairs}),
               .block_slots = c.summary.block_slots};
  c.candidates_from = -1;
  c.by_pages = false;
  // Often more than a sample has.
  c.pages = random.Below(random.Below(2) == 0 ? 50 : 12);
  const int64_t far_begin = std::min<int64_t>(c.blocks(), random.Below(4));
  const int64_t far_end = std::max(far_begin, c.blocks() - random.Below(6));
  const int64_t far = far_end - far_begin;
  c.budget = {.far_begin = far_begin,
              .far_end = far_end,
              .far_blocks = Pick<int64_t>(random, {1, 1, far / 16, far / 4, random.Below(far + 1)}),
              .share = BudgetShare::kHead,
              .bound = {.epsilon = Pick(random, {1e-12, 0.01, 0.1, 0.3, 0.5, 0.9}),
                        .deviations = Pick(random, {0.0, 1.0, 1.7, 2.4}),
                        .seed = random.Next()}};
  c.budget.far_blocks = std::min(c.budget.far_blocks, far);
  return c;
}

SelectionCase RandomMovedCase(Random& random) {
  SelectionCase c = RandomSelectionCase(random);
  const auto dim = [&] { return 2 * (1 + static_cast<int>(random.Below(c.format.head_dim / 2))); };
  const auto all = [&] { return Pick(random, {c.format.head_dim, c.format.head_dim, dim()}); };
  if (random.Below(4) != 0) c.turn_dim = all();
  if (random.Below(4) != 0) c.move_dim = all();
  c.together = random.Below(4) == 0;
  return c;
}

SelectionCase RandomOtherCase(Random& random) {
  SelectionCase c = RandomSelectionCase(random);
  c.summary = {
      .kind = Pick(random, {SummaryKind::kPairs, SummaryKind::kMasses, SummaryKind::kStages}),
      .block_slots = c.summary.block_slots};
  c.MayLookTwice(random);
  if (c.summary.kind == SummaryKind::kStages) Stage(random, c);
  return c;
}

SelectionCase RandomStagedCase(Random& random) {
  SelectionCase c = RandomMovedCase(random);
  c.summary = {.kind = SummaryKind::kStages, .block_slots = c.summary.block_slots};
  c.MayLookTwice(random);
  Stage(random, c);
  c.positions = Pick(random, {KeyPositions::kOne, KeyPositions::kChunks, KeyPositions::kBranches});
  if (random.Below(3) == 0) return c;
  c.rows = SomeRows(random);
  c.first_stage = 0;
  c.split = 0;
  c.merge = random.Below(2) == 0;
  return c;
}

SelectionCase RandomPrefillCase(Random& random) {
  SelectionCase c = random.Below(2) == 0 ? RandomSelectionCase(random) : RandomMovedCase(random);
  c.rows = SomeRows(random);
  c.budget.far_step = Pick<int64_t>(random, {0, 0, 1, random.Below(9)});
  c.candidates_from = -1;
  c.by_pages = false;
  // Two looks, where not most far blocks are candidates.
  const int64_t far = c.budget.far_end - c.budget.far_begin;
  if (random.Below(2) == 0 && far >= 4) {
    c.budget.candidates = 1 + random.Below(far / 2);
    c.budget.far_blocks = random.Below(c.budget.candidates);
    c.budget.least_blocks =
        std::min(c.budget.least_blocks, std::max<int64_t>(1, c.budget.far_blocks));
  }
  c.split = 0;
  c.merge = random.Below(2) == 0;
  return c;
}

}  // namespace headway
