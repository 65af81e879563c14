// Options of an engine on ranks, for tests of the public API.
#ifndef HEADWAY_TESTS_SUPPORT_RANK_OPTIONS_H_
#define HEADWAY_TESTS_SUPPORT_RANK_OPTIONS_H_

#include "headway/options.h"
#include "support/rank_gpus.h"

namespace headway {

// HEADWAY_TEST_DEVICE and HEADWAY_TEST_GPUS run them on GPUs (rank_gpus.h).
inline EngineOptions OnRanks(int ranks) {
  EngineOptions options;
  options.tensor_parallel = ranks;
  options.threads = 2;
  options.device = testing::DeviceOfRanks(ranks);
  return options;
}

}  // namespace headway

#endif  // HEADWAY_TESTS_SUPPORT_RANK_OPTIONS_H_
