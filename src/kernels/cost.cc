#include "kernels/cost.h"

#include <algorithm>
#include <bit>

#include "kernels/items.h"
#include "kernels/page_codec.h"
#include "kernels/weight_code.h"

namespace headway {
namespace {

constexpr int64_t kFloat = sizeof(float);

// Pairs of a token and a key that it sees, of one head.
int64_t SeenPairs(const AttentionParams& params, const AttentionItem& item) {
  const int64_t keys = item.keys.pages.count;
  if (item.keys.positions != nullptr) return item.tokens * keys;
  // Token t sees the first `first + t` keys, less those before its window.
  const int64_t first = item.q_position + 1 - item.keys.position;
  int64_t seen = 0;
  for (int64_t t = 0; t < item.tokens; ++t) {
    const int64_t upto = std::clamp<int64_t>(first + t, 0, keys);
    const int64_t from =
        params.window > 0 ? std::clamp<int64_t>(first + t - params.window, 0, keys) : 0;
    seen += upto - from;
  }
  return seen;
}

// K and V of a run of one head; of an encoded run with its share of the pages' parameters.
int64_t KeyBytes(const PageFormat& format, const PageRun& run) {
  const int64_t numbers = run.count * format.head_dim;
  if (run.params == nullptr) return 2 * numbers * static_cast<int64_t>(DTypeBytes(format.dtype));
  return 2 * EncodedBytes(format.encoding, format.dtype, numbers) +
         run.count * ParamBytes(format) / format.page_slots;
}

// Keys that are read to choose without summaries: all, or two for each halving of a chunk of the
// stages that are not of an earlier call.
int64_t ScoredKeys(const SummaryFormat& summary, const SelectItem& item) {
  const int64_t slots = summary.block_slots;
  if (summary.kind == SummaryKind::kMasses) return item.keys.heads * item.keys.blocks * slots;
  int64_t keys = 0;
  int64_t survivors = item.budget.far_end - item.budget.far_begin;  // blocks
  const auto add = [&](int64_t chunk) {
    const auto halvings = std::bit_width(static_cast<uint64_t>(chunk * slots)) - 1;
    keys += CeilDiv(survivors, chunk) * std::max<int64_t>(1, 2 * halvings);
  };
  for (size_t i = 0; i < item.budget.stages.size(); ++i) {
    const ChunkStage& stage = item.budget.stages[i];
    if (stage.blocks == 0) continue;
    if (static_cast<int>(i) >= item.first_stage) add(stage.blocks);
    survivors = std::min(survivors, stage.kept * stage.blocks);
  }
  add(1);
  return item.keys.heads * keys;
}

// Queries of all blocks of rows, each pooled of so many; the last block may have fewer.
int64_t PooledQueries(const SelectItem& item, int64_t pool_rows) {
  const int64_t full = item.rows / kSelectRows;
  const int64_t rest = item.rows % kSelectRows;
  return full * PoolsOf(kSelectRows, pool_rows) + (rest > 0 ? PoolsOf(rest, pool_rows) : 0);
}

}  // namespace

WorkCost LinearCost(int64_t rows, std::span<const LinearOp> ops, int64_t activation_bytes) {
  WorkCost cost = {.name = "linear"};
  for (const LinearOp& op : ops) {
    const int64_t y = IsActivation(op.result)             ? activation_bytes
                      : op.result == LinearResult::kFloat ? kFloat
                                                          : 2 * kFloat;
    cost.bytes += op.weight.out * op.weight.in * static_cast<int64_t>(DTypeBytes(op.weight.dtype)) +
                  rows * op.weight.out * y;
    cost.flops += 2 * rows * op.weight.out * op.weight.in;
  }
  if (!ops.empty()) cost.bytes += rows * ops.front().weight.in * activation_bytes;
  return cost;
}

WorkCost NormCost(const NormView& norm, int64_t elements, int64_t result_bytes) {
  const int64_t flops = norm.kind == NormKind::kNone ? 0 : norm.kind == NormKind::kRms ? 4 : 6;
  return {.name = "norm", .bytes = elements * (kFloat + result_bytes), .flops = flops * elements};
}

WorkCost AttendCost(const PageFormat& format, int group, const AttentionParams& params,
                    std::span<const AttentionItem> items, int64_t activation_bytes) {
  WorkCost cost = {.name = "attend"};
  for (const AttentionItem& item : items) {
    const int64_t queries = item.heads * item.tokens * group;
    const int64_t states = queries * PartsOf(item);
    cost.flops += item.heads * 4 * SeenPairs(params, item) * group * format.head_dim;
    cost.bytes += item.heads * KeyBytes(format, item.keys.pages) +
                  queries * format.head_dim * activation_bytes +
                  states * (format.head_dim + 1) * kFloat;
  }
  return cost;
}

WorkCost StoreKvCost(const PageFormat& format, std::span<const StoreKvItem> items,
                     int64_t activation_bytes) {
  WorkCost cost = {.name = "store kv"};
  for (const StoreKvItem& item : items) {
    cost.bytes += 2 * item.heads * item.to.count * format.head_dim *
                  (activation_bytes + static_cast<int64_t>(DTypeBytes(format.dtype)));
  }
  return cost;
}

WorkCost TurnKeysCost(const PageFormat& format, const TurnKeysItem& item) {
  const int64_t rows = item.heads * item.from.count;
  return {"turn keys", rows * 2 * format.head_dim * static_cast<int64_t>(DTypeBytes(format.dtype)),
          rows * 3 * item.table.rotary_dim};
}

WorkCost EncodePagesCost(const PageFormat& format, std::span<const EncodePagesItem> items) {
  WorkCost cost = {.name = "encode pages"};
  for (const EncodePagesItem& item : items) {
    const int64_t pages = item.heads * (item.from.count / format.page_slots);
    cost.bytes += pages * (2 * static_cast<int64_t>(format.bytes() + format.closed_bytes()) +
                           ParamBytes(format));
    // The least and the greatest, then a difference and a product, of each number.
    cost.flops += pages * 2 * 4 * format.page_slots * format.head_dim;
  }
  return cost;
}

WorkCost ExpandWeightsCost(int64_t bytes) {
  return {.name = "expand weights", .bytes = WeightCode(bytes).bytes() + bytes};
}

WorkCost MergeCost(int head_dim, std::span<const MergeItem> items, int64_t activation_bytes) {
  WorkCost cost = {.name = "merge"};
  for (const MergeItem& item : items) {
    cost.bytes +=
        item.rows * (item.AllParts() * (head_dim + 1) * kFloat + head_dim * activation_bytes);
    cost.flops += 2 * item.rows * (item.AllParts() + 1) * head_dim;
  }
  return cost;
}

WorkCost ScaleHeldCost(int head_dim, int group, std::span<const ScaleHeldItem> items,
                       int64_t activation_bytes) {
  WorkCost cost = {.name = "scale held"};
  for (const ScaleHeldItem& item : items) {
    const int64_t from_bytes = item.from == nullptr ? activation_bytes : kFloat;
    cost.bytes += item.rows * group *
                  (head_dim * (from_bytes + activation_bytes) + int64_t{item.holders} * kFloat);
    cost.flops += item.rows * group * head_dim;
  }
  return cost;
}

WorkCost SampleCost(std::span<const SampleItem> items) {
  WorkCost cost{.name = "sample"};
  for (const SampleItem& item : items) {
    cost.bytes += item.vocab * static_cast<int64_t>(sizeof(float));
    cost.flops += item.vocab;
  }
  return cost;
}

WorkCost ScoreCost(std::span<const ScoreItem> items) {
  WorkCost cost{.name = "score"};
  for (const ScoreItem& item : items) {
    cost.bytes += item.vocab * kFloat;
    cost.flops += 21 * item.vocab;
  }
  return cost;
}

WorkCost SummarizeCost(const PageFormat& format, const SummaryFormat& summary,
                       std::span<const SummarizeItem> items) {
  WorkCost cost{.name = "summarize"};
  for (const SummarizeItem& item : items) {
    const int64_t numbers = item.heads * item.keys.count * format.head_dim;
    const int64_t blocks = item.heads * item.keys.count / summary.block_slots;
    const Encoding encoding = item.keys.params == nullptr ? Encoding::kNone : format.encoding;
    cost.bytes +=
        EncodedBytes(encoding, format.dtype, numbers) + blocks * summary.bytes(format.head_dim);
    // The sum, then a difference, a product and a sum; or two comparisons.
    cost.flops += (summary.kind == SummaryKind::kMoments ? 4 : 2) * numbers;
  }
  return cost;
}

WorkCost SelectCost(const PageFormat& format, const SummaryFormat& summary, int group,
                    std::span<const SelectItem> items, int64_t activation_bytes) {
  WorkCost cost{.name = "select blocks"};
  for (const SelectItem& item : items) {
    const int64_t blocks = item.keys.heads * item.keys.blocks;
    const int64_t listed = item.keys.heads * item.ListedBy(item.budget);
    cost.bytes += item.rows * item.keys.heads * group * format.head_dim * activation_bytes +
                  listed * static_cast<int64_t>(sizeof(int32_t));
    const bool first_look = !item.looks_twice() || !item.candidates_listed;
    const bool search = item.looks_twice() && item.rows > 1;
    const int64_t score_flops = group * (4 * int64_t{format.head_dim} + 40);
    if (summary.kept() && first_look) {
      cost.bytes += blocks * (summary.code_bytes(format.head_dim) + SummaryFormat::scale_bytes());
      cost.flops += PooledQueries(item, search ? kSearchRows : kPoolRows) * blocks * score_flops;
    } else if (!summary.kept()) {
      const int64_t keys = ScoredKeys(summary, item);
      cost.bytes += keys * static_cast<int64_t>(format.closed_bytes()) / format.page_slots;
      cost.flops += keys * group * 2 * format.head_dim;
    }
    if (!item.looks_twice()) continue;
    // Summaries of the candidates, and their sketches.
    const SelectionBudget first = item.budget.OfCandidates();
    const int64_t candidates = item.keys.heads * item.ListedBy(first) / item.row_blocks();
    if (search) {  // of summaries that the first look has read
      cost.flops += PooledQueries(item, kPoolRows) * candidates * score_flops;
      continue;
    }
    cost.bytes += candidates * summary.bytes(format.head_dim);
    cost.flops += candidates * group * 2 * int64_t{format.head_dim} *
                  (summary.sketched() ? summary.block_slots + 1 : 2);
  }
  return cost;
}

WorkCost AttendBlocksCost(const PageFormat& format, const SummaryFormat& summary, int group,
                          std::span<const AttendBlocksItem> items, int64_t listed,
                          int64_t activation_bytes) {
  int64_t blocks = 0;  // that there are
  int64_t rows = 0, row_blocks = 0;
  WorkCost cost{.name = "attend blocks"};
  for (const AttendBlocksItem& item : items) {
    const int64_t states = item.rows == 1 ? item.parts : item.rows;
    cost.bytes +=
        item.keys.heads * int64_t{group} *
        (item.rows * format.head_dim * activation_bytes + states * (format.head_dim + 1) * kFloat);
    if (item.rest.result != nullptr) {
      const int64_t of_head = int64_t{group} * format.head_dim;
      PageRun open;
      open.count = item.keys.heads * item.rest.count;
      cost.bytes += KeyBytes(format, open) + item.keys.heads * of_head * activation_bytes;
      cost.flops += 4 * open.count * of_head;
    }
    blocks += item.keys.heads * item.keys.blocks;
    rows += item.rows;
    row_blocks += CeilDiv(item.rows, kSelectRows);
  }
  // Blocks of rows that list the same block need it once.
  PageRun run;
  run.count = std::min(listed, blocks) * summary.block_slots;
  std::byte closed{};
  if (format.encoding != Encoding::kNone) run.params = &closed;
  cost.bytes += KeyBytes(format, run);
  // Every row of a block attends to its list; lists are taken to be as long as one another.
  if (row_blocks > 0) {
    cost.flops +=
        4 * rows * listed / row_blocks * summary.block_slots * group * int64_t{format.head_dim};
  }
  return cost;
}

WorkCost KeyLogitsCost(const PageFormat& format, int group, std::span<const KeyLogitsItem> items,
                       int64_t activation_bytes) {
  WorkCost cost{.name = "key logits"};
  for (const KeyLogitsItem& item : items) {
    const int64_t rows = item.rows * group;
    const int64_t keys = item.keys.pages.count;
    cost.bytes += keys * format.head_dim * static_cast<int64_t>(DTypeBytes(format.dtype)) +
                  rows * format.head_dim * activation_bytes + rows * keys * kFloat;
    cost.flops += 2 * rows * keys * format.head_dim;
  }
  return cost;
}

WorkCost KeyWeightsCost(std::span<const KeyWeightsItem> items) {
  WorkCost cost{.name = "key weights"};
  for (const KeyWeightsItem& item : items) {
    cost.bytes += (2 * item.rows + (item.max == nullptr ? 1 : 2)) * item.columns * kFloat;
    cost.flops += 2 * 21 * item.rows * item.columns;
  }
  return cost;
}

WorkCost GatherSlotsCost(const PageFormat& format, std::span<const GatherSlotsItem> items) {
  WorkCost cost{.name = "gather slots"};
  for (const GatherSlotsItem& item : items) {
    PageRun from = item.from, to = item.to;
    from.count = to.count = item.count;
    const int64_t both = KeyBytes(format, from) + KeyBytes(format, to);
    cost.bytes += (item.to.v == nullptr ? both / 2 : both) +
                  item.count * static_cast<int64_t>(sizeof(int32_t));
  }
  return cost;
}

WorkCost QueryMomentsCost(const PageFormat& format, int heads,
                          std::span<const QueryMomentsItem> items, int64_t activation_bytes) {
  WorkCost cost{.name = "query moments"};
  const int64_t width = int64_t{heads} * format.head_dim;
  for (const QueryMomentsItem& item : items) {
    cost.bytes += item.rows * width * activation_bytes + 2 * width * (format.head_dim + 1) * kFloat;
    cost.flops += 2 * item.rows * width * format.head_dim;
  }
  return cost;
}

WorkCost ExpectedLogitsCost(const PageFormat& format, int group,
                            std::span<const ExpectedLogitsItem> items) {
  WorkCost cost{.name = "expected logits"};
  const int64_t dim = format.head_dim;
  for (const ExpectedLogitsItem& item : items) {
    const int64_t keys = item.keys.pages.count;
    cost.bytes += keys * dim * static_cast<int64_t>(DTypeBytes(format.dtype)) +
                  group * (dim * (dim + 1) + keys) * kFloat;
    cost.flops += 2 * group * keys * dim * (dim + 1);
  }
  return cost;
}

WorkCost ValueNormsCost(const PageFormat& format, std::span<const ValueNormsItem> items) {
  WorkCost cost{.name = "value norms"};
  for (const ValueNormsItem& item : items) {
    cost.bytes += item.values.count *
                  (format.head_dim * static_cast<int64_t>(DTypeBytes(format.dtype)) + kFloat);
    cost.flops += 2 * item.values.count * format.head_dim;
  }
  return cost;
}

WorkCost ProjectedNormsCost(const PageFormat& format, int group,
                            std::span<const ProjectedNormsItem> items) {
  WorkCost cost{.name = "projected norms"};
  for (const ProjectedNormsItem& item : items) {
    const int64_t of_weight = item.weight.out * group * format.head_dim;
    cost.bytes += item.values.count *
                      (format.head_dim * static_cast<int64_t>(DTypeBytes(format.dtype)) + kFloat) +
                  of_weight * static_cast<int64_t>(DTypeBytes(item.weight.dtype));
    cost.flops += 2 * item.values.count * of_weight;
  }
  return cost;
}

}  // namespace headway
