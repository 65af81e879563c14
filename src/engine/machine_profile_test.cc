#include "engine/machine_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/env_posix.h"
#include "base/test_dir.h"
#include "engine/user_cache.h"

namespace headway {
namespace {

using ::testing::HasSubstr;

class MachineProfile : public ::testing::Test {
 protected:
  void SetUp() override { setenv("XDG_CACHE_HOME", dir_.path().c_str(), 1); }
  void TearDown() override { unsetenv("XDG_CACHE_HOME"); }

  plan::Machine Kept(const std::string& hardware) {
    plan::Machine machine = LoadMachine(env_, "h200")->machine;
    machine.hardware = hardware;
    machine.program = HEADWAY_VERSION;
    return machine;
  }

  Env& env_ = *Env::Default();
  TestDir dir_;
};

TEST_F(MachineProfile, EveryShippedOneIsPartOfTheProgram) {
  size_t files = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(std::string(HEADWAY_SOURCE_DIR) + "/machines")) {
    ++files;
    const Result<ChosenMachine> machine = LoadMachine(env_, file.path().stem().string());
    ASSERT_TRUE(machine.ok()) << machine.status().message();
    EXPECT_EQ(machine->origin, "shipped profile " + file.path().stem().string());
  }
  EXPECT_EQ(files, ShippedMachines().size());
}

TEST_F(MachineProfile, TheGpusNameChoosesAShippedOne) {
  BackendInfo backend;
  backend.own_memory = true;
  backend.name = "NVIDIA H200";
  Result<std::optional<ChosenMachine>> chosen = ChooseMachine(env_, {}, backend, 2);
  ASSERT_TRUE(chosen.ok() && chosen->has_value());
  EXPECT_EQ((*chosen)->origin, "shipped profile h200");
  backend.name = "a GPU of next year";
  EXPECT_FALSE(ChooseMachine(env_, {}, backend, 2)->has_value());
  EXPECT_FALSE(ChooseMachine(env_, {}, BackendInfo{}, 2)->has_value());
  // A probe of this machine goes before, and what the user names before both.
  backend.name = "NVIDIA H200";
  ASSERT_TRUE(WriteMachineCache(env_, Kept(HardwareKey(backend, 2))).ok());
  EXPECT_EQ((*ChooseMachine(env_, {}, backend, 2))->origin, "headway probe");
  EXPECT_EQ((*ChooseMachine(env_, {}, backend, 3))->origin, "shipped profile h200");
  EngineOptions options;
  options.machine = "l40s";
  EXPECT_EQ((*ChooseMachine(env_, options, backend, 2))->origin, "shipped profile l40s");
}

TEST_F(MachineProfile, StaleAndDamagedCachesAreSaidAndNotUsed) {
  std::string note;
  EXPECT_FALSE(ReadMachineCache(env_, "a", &note).has_value());
  EXPECT_EQ(note, "");
  ASSERT_TRUE(WriteMachineCache(env_, Kept("a")).ok());
  EXPECT_TRUE(ReadMachineCache(env_, "a", &note).has_value());
  EXPECT_EQ(note, "");
  plan::Machine old = Kept("a");
  old.program = "0.0.1";
  ASSERT_TRUE(WriteMachineCache(env_, old).ok());
  EXPECT_FALSE(ReadMachineCache(env_, "a", &note).has_value());
  EXPECT_THAT(note, HasSubstr("version 0.0.1 made it"));
  // Another machine's file under this one's name.
  ASSERT_TRUE(WriteMachineCache(env_, Kept("b")).ok());
  std::filesystem::copy_file(MachineCachePath("b"), MachineCachePath("a"),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_FALSE(ReadMachineCache(env_, "a", &note).has_value());
  EXPECT_THAT(note, HasSubstr("of other hardware, b"));
  ASSERT_TRUE(WriteTextFile(env_, MachineCachePath("a"), "{").ok());
  EXPECT_FALSE(ReadMachineCache(env_, "a", &note).has_value());
  EXPECT_THAT(note, HasSubstr("is not JSON"));
  // Nothing is left beside the files themselves.
  size_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator(
           std::filesystem::path(MachineCachePath("a")).parent_path())) {
    EXPECT_EQ(file.path().extension(), ".json");
    ++files;
  }
  EXPECT_EQ(files, 2u);
}

TEST_F(MachineProfile, AFolderThatTakesNoFilesIsAnErrorThatCanBeSaid) {
  setenv("XDG_CACHE_HOME", "/proc/nothing", 1);
  EXPECT_FALSE(WriteMachineCache(env_, Kept("a")).ok());
  std::string note;
  EXPECT_FALSE(ReadMachineCache(env_, "a", &note).has_value());
  EXPECT_EQ(note, "");
}

TEST_F(MachineProfile, AFileThatCannotBeReplacedLeavesNoOther) {
  const std::filesystem::path path = MachineCachePath("a");
  std::filesystem::create_directories(path / "in the way");
  EXPECT_FALSE(WriteMachineCache(env_, Kept("a")).ok());
  for (const auto& file : std::filesystem::directory_iterator(path.parent_path())) {
    EXPECT_EQ(file.path(), path);
  }
}

TEST_F(MachineProfile, AQuickProbeIsAProfile) {
  EngineOptions options;
  options.threads = 2;
  const Result<plan::Machine> machine = ProbeHardware(env_, options, /*quick=*/true);
  ASSERT_TRUE(machine.ok()) << machine.status().message();
  const Result<plan::Machine> read = plan::ParseMachine(plan::WriteMachine(*machine), "quick");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_FALSE(read->own_memory);
  EXPECT_GT(read->gemm.Peak(), 1e9);
  EXPECT_GT(read->host_read.Peak(), 1e8);
}

}  // namespace
}  // namespace headway
