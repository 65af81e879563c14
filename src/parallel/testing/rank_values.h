// What ranks of a test give, and what comes of it.
#ifndef HEADWAY_PARALLEL_TESTING_RANK_VALUES_H_
#define HEADWAY_PARALLEL_TESTING_RANK_VALUES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"
#include "headway/status.h"
#include "parallel/communicator.h"

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

// Whether each rank's numbers come to this one.
inline Status HostsGather(Communicator& communicator) {
  constexpr size_t kNumbers = 1000;
  const auto ranks = static_cast<size_t>(communicator.ranks());
  std::vector<float> own = ValuesOfRank(communicator.rank(), kNumbers), all(ranks * kNumbers);
  Status status = communicator.GatherOnHost(std::as_bytes(std::span(own)),
                                            std::as_writable_bytes(std::span(all)));
  for (size_t rank = 0; rank < ranks && status.ok(); ++rank) {
    const std::vector<float> given = ValuesOfRank(static_cast<int>(rank), kNumbers);
    if (std::equal(given.begin(), given.end(),
                   all.begin() + static_cast<std::ptrdiff_t>(rank * kNumbers))) {
      continue;
    }
    status = Status(StatusCode::kInternal, "other numbers than a rank gave");
  }
  return status;
}

}  // namespace headway

#endif  // HEADWAY_PARALLEL_TESTING_RANK_VALUES_H_
