// Which GPU each rank of a test has where HEADWAY_TEST_DEVICE=cuda: the first one, or with
// HEADWAY_TEST_GPUS=N the first N by turns, so that up to N ranks have one of their own.
#ifndef HEADWAY_TESTS_SUPPORT_RANK_GPUS_H_
#define HEADWAY_TESTS_SUPPORT_RANK_GPUS_H_

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

namespace headway::testing {

inline bool RanksHaveGpus() {
  const char* const device = std::getenv("HEADWAY_TEST_DEVICE");
  return device != nullptr && std::string(device) != "cpu";
}

// Empty where ranks compute on the CPU.
inline std::vector<int> GpusOfRanks(int ranks) {
  std::vector<int> gpus;
  if (!RanksHaveGpus()) return gpus;
  const char* const given = std::getenv("HEADWAY_TEST_GPUS");
  const int count = std::max(given == nullptr ? 1 : std::atoi(given), 1);
  for (int rank = 0; rank < ranks; ++rank) gpus.push_back(rank % count);
  return gpus;
}

// As EngineOptions::device has it: "cuda:0,1,0".
inline std::string DeviceOfRanks(int ranks) {
  if (!RanksHaveGpus()) return "cpu";
  std::string device = "cuda:";
  for (const int gpu : GpusOfRanks(ranks)) {
    if (device.back() != ':') device += ",";
    device += std::to_string(gpu);
  }
  return device;
}

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_RANK_GPUS_H_
