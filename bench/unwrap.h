// How a benchmark ends where something fails: with its message.
#ifndef HEADWAY_BENCH_UNWRAP_H_
#define HEADWAY_BENCH_UNWRAP_H_

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "headway/status.h"

namespace headway::bench {

inline void Require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

template <typename T>
T Unwrap(Result<T> result) {
  Require(result.status());
  return std::move(*result);
}

}  // namespace headway::bench

#endif  // HEADWAY_BENCH_UNWRAP_H_
