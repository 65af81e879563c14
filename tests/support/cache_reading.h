// Caches as bytes: what heads of a store hold, the queries that were observed, and logits of tokens
// that attend to listed keys by attention's definition.
#ifndef HEADWAY_TESTS_SUPPORT_CACHE_READING_H_
#define HEADWAY_TESTS_SUPPORT_CACHE_READING_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/pages.h"
#include "model/model.h"
#include "support/plain_eviction.h"
#include "support/step_harness.h"

namespace headway::testing {

// The keys and values of runs of one head, copied off the device; of encoded pages the numbers that
// codes stand for.
Cached ReadRuns(StepHarness& h, const PageFormat& page, std::span<const KeyRun> runs);
// Those of a sequence in a store.
Cached ReadHead(StepHarness& h, kv::Store& store, kv::SequenceId sequence, int layer, int head);
// The observed queries of a layer.
Queries ReadQueries(StepHarness& h, const ModelShape& shape, int layer);
// The positions of tokens in `all`, told by K and V; ascending. Empty after a failure.
std::vector<int64_t> PositionsOf(const Cached& some, const Cached& all);

using Lists = std::vector<std::vector<std::vector<int64_t>>>;  // [layers][kv_heads][keys]

// The logits behind each of the last lists.size() of these tokens, whose queries attend to the keys
// that their lists have, in double precision and by the reference's other kernels. Of each layer
// `queries` gets those of all tokens but the last.
LogitRows ListedLogits(Model& model, std::span<const TokenId> tokens, std::span<const Lists> lists,
                       std::vector<std::vector<float>>* queries);

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_CACHE_READING_H_
