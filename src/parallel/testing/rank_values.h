// What ranks of a test give, and what comes of it.
#ifndef HEADWAY_PARALLEL_TESTING_RANK_VALUES_H_
#define HEADWAY_PARALLEL_TESTING_RANK_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/random.h"

namespace headway {

inline std::vector<float> ValuesOfRank(int rank, size_t count) {
  Random random(static_cast<uint64_t>(rank) + 1);
  std::vector<float> values;
  for (size_t i = 0; i < count; ++i) values.push_back(random.Normal());
  return values;
}

// Their sums, in the order of the ranks.
inline std::vector<float> SumsOfRanks(int ranks, size_t count) {
  std::vector<float> sums = ValuesOfRank(0, count);
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<float> more = ValuesOfRank(rank, count);
    for (size_t i = 0; i < count; ++i) sums[i] += more[i];
  }
  return sums;
}

}  // namespace headway

#endif  // HEADWAY_PARALLEL_TESTING_RANK_VALUES_H_
