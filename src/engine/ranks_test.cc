#include "engine/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Settings EightRanks(int machines) {
  Settings settings;
  settings.ranks = 8;
  settings.nodes = machines;
  settings.target.threads = 14;
  settings.memory.kv = 800;
  settings.memory.host = 8000;
  settings.memory.disk = 80000;
  return settings;
}

TEST(Ranks, BudgetsAndThreadsAreThoseOfAMachine) {
  for (const int machines : {1, 2, 4}) {
    const int here = 8 / machines;
    const Settings settings = EightRanks(machines);
    for (int machine = 0; machine < machines; ++machine) {
      int threads = 0;
      for (int i = 0; i < here; ++i) {
        const Settings own = SettingsOfRank(settings, machine * here + i);
        EXPECT_EQ(own.memory.kv, 800 / here);
        EXPECT_EQ(own.memory.host, 8000 / here);
        EXPECT_EQ(own.memory.disk, 80000 / here);
        threads += *own.target.threads;
      }
      EXPECT_EQ(threads, 14) << machine << " of " << machines;
    }
  }
}

TEST(Ranks, EachGpuOfAProcessMapsWhatAnyPins) {
  Settings settings = EightRanks(1);
  const auto mapped = [&](const char* device, int rank) {
    settings.target.device = device;
    return SettingsOfRank(settings, rank).mapped_ranks;
  };
  EXPECT_EQ(mapped("cuda", 0), 8);
  EXPECT_EQ(mapped("cuda", 7), 8);
  EXPECT_EQ(mapped("cuda:0,0,0,0,1,1,1,1", 7), 2);
  EXPECT_EQ(mapped("cuda:0,0,0,0,0,0,0,1", 0), 2);  // 8 / 7
  EXPECT_EQ(mapped("cuda:0,0,0,0,0,0,0,1", 7), 8);
  EXPECT_EQ(mapped("cpu", 7), 1);
  settings.nodes = 2;
  EXPECT_EQ(mapped("cuda", 0), 1);
}

TEST(Ranks, ASessionIsOneFileOfAllMachines) {
  Settings settings = EightRanks(2);
  settings.session.emplace();
  const Settings own = SettingsOfRank(settings, 0);
  EXPECT_EQ(own.memory.disk, 80000 / 8);
  EXPECT_EQ(own.memory.host, 8000 / 4);
}

TEST(Ranks, RefusalsSayWhatARankHas) {
  const Status error(StatusCode::kOutOfBudget, "no room");
  Settings settings = EightRanks(2);
  EXPECT_THAT(OfRanks(settings, error).message(),
              HasSubstr("1/4 of what is given, by tensor_parallel"));
  settings.session.emplace();
  EXPECT_THAT(OfRanks(settings, error).message(),
              HasSubstr("1/4 of what is given, of disk_memory 1/8, by tensor_parallel"));
  settings.nodes = 1;
  EXPECT_THAT(OfRanks(settings, error).message(), Not(HasSubstr("disk_memory")));
}

}  // namespace
}  // namespace headway
