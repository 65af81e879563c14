#include "hardware/profiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/env_posix.h"
#include "base/test_dir.h"
#include "base/user_cache.h"
#include "engine/metered_host_attention.h"
#include "hardware/probe.h"
#include "hardware/profile_json.h"

namespace headway::hardware {
namespace {

using ::testing::HasSubstr;

class Profiles : public ::testing::Test {
 protected:
  void SetUp() override { setenv("XDG_CACHE_HOME", dir_.path().c_str(), 1); }
  void TearDown() override { unsetenv("XDG_CACHE_HOME"); }

  MachineProfile Kept(const std::string& hardware) {
    MachineProfile machine = LoadProfile(env_, "h200")->machine;
    machine.hardware = hardware;
    machine.program = HEADWAY_VERSION;
    return machine;
  }

  Env& env_ = *Env::Default();
  TestDir dir_;
};

TEST_F(Profiles, EveryShippedOneIsPartOfTheProgram) {
  size_t files = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(std::string(HEADWAY_SOURCE_DIR) + "/machines")) {
    ++files;
    const Result<ChosenProfile> machine = LoadProfile(env_, file.path().stem().string());
    ASSERT_TRUE(machine.ok()) << machine.status().message();
    EXPECT_EQ(machine->origin, "shipped profile " + file.path().stem().string());
  }
  EXPECT_EQ(files, ShippedProfiles().size());
}

TEST_F(Profiles, TheGpusNameChoosesAShippedOne) {
  BackendInfo backend;
  backend.own_memory = true;
  backend.name = "NVIDIA H200";
  Result<std::optional<ChosenProfile>> chosen = ChooseProfile(env_, std::nullopt, backend, 2);
  ASSERT_TRUE(chosen.ok() && chosen->has_value());
  EXPECT_EQ((*chosen)->origin, "shipped profile h200");
  backend.name = "a GPU of next year";
  EXPECT_FALSE(ChooseProfile(env_, std::nullopt, backend, 2)->has_value());
  EXPECT_FALSE(ChooseProfile(env_, std::nullopt, BackendInfo{}, 2)->has_value());
  // A probe of this machine goes before, and what the user names before both.
  backend.name = "NVIDIA H200";
  ASSERT_TRUE(KeepProfile(env_, Kept(HardwareKey(backend, 2))).ok());
  EXPECT_EQ((*ChooseProfile(env_, std::nullopt, backend, 2))->origin, "headway probe");
  EXPECT_EQ((*ChooseProfile(env_, std::nullopt, backend, 3))->origin, "shipped profile h200");
  EXPECT_EQ((*ChooseProfile(env_, "l40s", backend, 2))->origin, "shipped profile l40s");
}

TEST_F(Profiles, StaleAndDamagedCachesAreSaidAndNotUsed) {
  std::string note;
  EXPECT_FALSE(ReadKeptProfile(env_, "a", &note).has_value());
  EXPECT_EQ(note, "");
  MachineProfile small = Kept("a");
  small.host_memory = 2e9;  // as the machine was then
  ASSERT_TRUE(KeepProfile(env_, small).ok());
  const std::optional<MachineProfile> kept = ReadKeptProfile(env_, "a", &note);
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(kept->host_memory, HostMemory(env_));
  EXPECT_EQ(note, "");
  MachineProfile old = Kept("a");
  old.program = "0.0.1";
  ASSERT_TRUE(KeepProfile(env_, old).ok());
  EXPECT_FALSE(ReadKeptProfile(env_, "a", &note).has_value());
  EXPECT_THAT(note, HasSubstr("version 0.0.1 made it"));
  // Another machine's file under this one's name.
  ASSERT_TRUE(KeepProfile(env_, Kept("b")).ok());
  std::filesystem::copy_file(KeptProfilePath("b"), KeptProfilePath("a"),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_FALSE(ReadKeptProfile(env_, "a", &note).has_value());
  EXPECT_THAT(note, HasSubstr("of other hardware, b"));
  ASSERT_TRUE(WriteTextFile(env_, KeptProfilePath("a"), "{").ok());
  EXPECT_FALSE(ReadKeptProfile(env_, "a", &note).has_value());
  EXPECT_THAT(note, HasSubstr("is not JSON"));
  // Nothing is left beside the files themselves.
  size_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator(
           std::filesystem::path(KeptProfilePath("a")).parent_path())) {
    EXPECT_EQ(file.path().extension(), ".json");
    ++files;
  }
  EXPECT_EQ(files, 2u);
}

TEST_F(Profiles, AFolderThatTakesNoFilesIsAnErrorThatCanBeSaid) {
  setenv("XDG_CACHE_HOME", "/proc/nothing", 1);
  EXPECT_FALSE(KeepProfile(env_, Kept("a")).ok());
  std::string note;
  EXPECT_FALSE(ReadKeptProfile(env_, "a", &note).has_value());
  EXPECT_EQ(note, "");
}

TEST_F(Profiles, AFileThatCannotBeReplacedLeavesNoOther) {
  const std::filesystem::path path = KeptProfilePath("a");
  std::filesystem::create_directories(path / "in the way");
  EXPECT_FALSE(KeepProfile(env_, Kept("a")).ok());
  for (const auto& file : std::filesystem::directory_iterator(path.parent_path())) {
    EXPECT_EQ(file.path(), path);
  }
}

TEST_F(Profiles, AQuickProbeIsAProfile) {
  ProbeOptions options;
  options.target.threads = 2;
  options.host_attention = MeteredHostAttention;
  options.depth = Depth::kQuick;
  const Result<MachineProfile> machine = MeasureProfile(env_, options);
  ASSERT_TRUE(machine.ok()) << machine.status().message();
  const Result<MachineProfile> read = ParseProfile(WriteProfile(*machine), "quick");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_FALSE(read->own_memory);
  EXPECT_GT(read->gemm.Peak(), 1e9);
  EXPECT_GT(read->host_read.Peak(), 1e8);
  EXPECT_GT(read->selection.Peak(), 1e7);
  EXPECT_GT(read->second_look.Peak(), 1e6);
  EXPECT_GT(read->key_choice.Rate(1.0), 1e7);
  EXPECT_GT(read->key_choice.Rate(64.0), 1e6);
  EXPECT_GT(read->turned_key_choice.Rate(1.0), 1e6);
  EXPECT_GT(read->turned_key_choice.Rate(64.0), 1e5);
  EXPECT_GT(read->prompt_scores, 1e5);
  EXPECT_GT(read->listed_attention, 1e8);
  EXPECT_GT(read->moved_attention, 1e8);
  EXPECT_GT(read->coded_listed_attention, 1e8);
  EXPECT_GT(read->coded_moved_attention, 1e8);
  EXPECT_EQ(read->read_in_place, 0.0);  // without a bus
}

}  // namespace
}  // namespace headway::hardware
