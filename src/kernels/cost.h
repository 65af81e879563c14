// What kernels must move and compute at least, for the trace.
#ifndef HEADWAY_KERNELS_COST_H_
#define HEADWAY_KERNELS_COST_H_

#include <cstdint>
#include <span>

#include "kernels/attention.h"
#include "kernels/cache.h"
#include "kernels/elementwise.h"
#include "kernels/eviction.h"
#include "kernels/linear.h"
#include "kernels/logits.h"
#include "kernels/selection.h"

namespace headway {

// `activation_bytes` is the size of an activation.

// Weights and rows once; results once, those that are added to twice.
WorkCost LinearCost(int64_t rows, std::span<const LinearOp> ops, int64_t activation_bytes);
// `elements` of the residual stream once, and as many `result_bytes` each.
WorkCost NormCost(const NormView& norm, int64_t elements, int64_t result_bytes);
// Two products over the pairs of query and key that are seen; K, V, queries and states once.
WorkCost AttendCost(const PageFormat& format, int group, const AttentionParams& params,
                    std::span<const AttentionItem> items, int64_t activation_bytes);
WorkCost StoreKvCost(const PageFormat& format, std::span<const StoreKvItem> items,
                     int64_t activation_bytes);
WorkCost TurnKeysCost(const PageFormat& format, const TurnKeysItem& item);
WorkCost EncodePagesCost(const PageFormat& format, std::span<const EncodePagesItem> items);
// A code is read, and what it stands for written.
WorkCost ExpandWeightsCost(int64_t bytes);
WorkCost MergeCost(int head_dim, std::span<const MergeItem> items, int64_t activation_bytes);
WorkCost ScaleHeldCost(int head_dim, int group, std::span<const ScaleHeldItem> items,
                       int64_t activation_bytes);
// Logits once, compared with the largest.
WorkCost SampleCost(std::span<const SampleItem> items);
// Logits once, compared, and their exponentials, about 20 operations each.
WorkCost ScoreCost(std::span<const ScoreItem> items);

// Keys once, and their summaries.
WorkCost SummarizeCost(const PageFormat& format, const SummaryFormat& summary,
                       std::span<const SummarizeItem> items);
// Summaries once for all queries of a group, those of a second look's candidates again with their
// sketches, and the lists; two products for each query or pooled query, and about 40 operations
// that make shares of a score.
WorkCost SelectCost(const PageFormat& format, const SummaryFormat& summary, int group,
                    std::span<const SelectItem> items, int64_t activation_bytes);
// K and V of `listed` blocks, those of all heads and items added up, once, and of open pages;
// queries and states.
WorkCost AttendBlocksCost(const PageFormat& format, const SummaryFormat& summary, int group,
                          std::span<const AttendBlocksItem> items, int64_t listed,
                          int64_t activation_bytes);

// Keys once, queries and logits; a product for each logit.
WorkCost KeyLogitsCost(const PageFormat& format, int group, std::span<const KeyLogitsItem> items,
                       int64_t activation_bytes);
// Logits twice, once for the sums of rows, and their exponentials, about 20 operations each.
WorkCost KeyWeightsCost(std::span<const KeyWeightsItem> items);
// K and V of the slots, read and written.
WorkCost GatherSlotsCost(const PageFormat& format, std::span<const GatherSlotsItem> items);
// Queries are read, and sums read and written.
WorkCost QueryMomentsCost(const PageFormat& format, int heads,
                          std::span<const QueryMomentsItem> items, int64_t activation_bytes);
WorkCost ExpectedLogitsCost(const PageFormat& format, int group,
                            std::span<const ExpectedLogitsItem> items);
WorkCost ValueNormsCost(const PageFormat& format, std::span<const ValueNormsItem> items);
WorkCost ProjectedNormsCost(const PageFormat& format, int group,
                            std::span<const ProjectedNormsItem> items);

}  // namespace headway

#endif  // HEADWAY_KERNELS_COST_H_
