// What groups of ranks say of errors, however their ranks are connected.
#ifndef HEADWAY_PARALLEL_GROUP_ERRORS_H_
#define HEADWAY_PARALLEL_GROUP_ERRORS_H_

#include <string>

#include "headway/refusal.h"
#include "headway/status.h"

namespace headway {

inline Status UnequalSizes() {
  return Status(StatusCode::kInternal, "ranks took part in one operation with unequal sizes");
}

inline Status WaitsInVain() {
  return Status(StatusCode::kInternal, "it waits for a rank that has ended");
}

// A rank's error as the group's.
inline Status OfRank(int rank, int ranks, const Status& error) {
  return error.Within({"rank " + std::to_string(rank) + " of " + std::to_string(ranks) + ": "});
}

}  // namespace headway

#endif  // HEADWAY_PARALLEL_GROUP_ERRORS_H_
