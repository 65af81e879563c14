// What blocks of keys are worth to the queries of a head, by the moments of their keys, in double
// precision, and how far a choice by summaries may be from it.
#ifndef HEADWAY_TESTS_SUPPORT_PLAIN_BLOCKS_H_
#define HEADWAY_TESTS_SUPPORT_PLAIN_BLOCKS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/pages.h"
#include "support/plain_eviction.h"

namespace headway::testing {

// What a block may be worth.
struct Worth {
  double low = 0.0, high = 0.0;
};

// The sum over a head's queries [group, head_dim] of the share of each of its first blocks of
// `block_slots` keys, among these.
std::vector<Worth> WorthOf(const PageFormat& page, int block_slots, const Cached& keys,
                           const float* q, int group, int64_t blocks);

// Which blocks a list of the best `listed` ones has for sure.
std::vector<bool> SurelyListed(const std::vector<Worth>& worth, int64_t listed);

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_PLAIN_BLOCKS_H_
