// Sessions of ranks in processes by the public API. Run by mpirun, as two processes, each in a
// folder of its own, of which the first one makes the tests and the other one obeys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/fault_env.h"
#include "engine/open.h"
#include "headway/processes.h"
#include "support/api.h"
#include "support/rank_options.h"

namespace headway {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;

constexpr int64_t kLength = 500;

// Of the other rank, seen from the first one's.
const fs::path kOthers = "../1";

class ProcessSessions : public ::testing::Test {
 protected:
  ~ProcessSessions() override {
    for (const fs::path& folder : {fs::path("."), kOthers}) {
      for (const auto& entry : fs::directory_iterator(folder)) fs::remove_all(entry.path());
    }
  }
  static EngineOptions Options() {
    EngineOptions options = OnRanks(2);
    options.segment = 128;
    options.session = "s";
    return options;
  }
  static Status Refusal(Engine& engine) { return engine.NewContext({{kLength}}).status(); }
  // Generates, saves, and ends with what is saved.
  static void ExpectOfUse(Engine& engine) {
    Result<std::unique_ptr<Context>> context = engine.NewContext({{kLength}});
    ASSERT_TRUE(context.ok()) << context.status().message();
    const Result<Generation> made =
        GenerateOne(**context, RequestOf(Quoting(engine, kLength - 20, 0), 8));
    EXPECT_TRUE(made.ok()) << made.status().message();
    const Status saved = (*context)->SaveSession();
    EXPECT_TRUE(saved.ok()) << saved.message();
    EXPECT_TRUE(fs::exists("s"));
  }
};

// All know that there is no context, so that the next call finds them at one point.
TEST_F(ProcessSessions, AnotherContextIsMadeBehindOneThatFailed) {
  EngineOptions options = Options();
  options.trace = "traces/t";
  std::unique_ptr<Engine> engine = Open(kDemo, options);
  ASSERT_NE(engine, nullptr);
  fs::create_symlink("../0/s", kOthers / "s");
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(Refusal(*engine).message(), HasSubstr("cannot open traces/t")) << "the first one's";
  }
  fs::create_directory("traces");
  fs::remove(kOthers / "s");
  std::ofstream(kOthers / "s") << std::string(9000, 'x');
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(Refusal(*engine).message(), StartsWith("rank 1 of 2: s is not a Headway session"));
  }
  fs::remove(kOthers / "s");
  EXPECT_THAT(Refusal(*engine).message(), StartsWith("rank 1 of 2: cannot open s: No such file"));
  fs::create_symlink("../0/s", kOthers / "s");
  ExpectOfUse(*engine);
  ExpectOfUse(*engine);
}

// Has no memory at the n-th time that it is asked.
class ThrowingEnv : public FaultEnv {
 public:
  ThrowingEnv() : FaultEnv(Env::Default()) {}
  void ThrowAt(int64_t n) { left_ = n; }
  bool thrown() const { return left_ == 0; }
  Result<std::byte*> AllocateMemory(size_t bytes) override {
    if (left_ > 0 && --left_ == 0) throw std::bad_alloc();
    return FaultEnv::AllocateMemory(bytes);
  }

 private:
  std::atomic<int64_t> left_ = 0;
};

// On the first rank, at any point of a save within a call: the save fails, and the call goes on.
// The least budget has room for a save behind any number of them.
TEST_F(ProcessSessions, ASaveWithoutMemoryFailsAlone) {
  EngineOptions options = Options();
  options.placement = "disk-only";
  options.disk_memory = int64_t{1} << 33;
  options.disk_memory = Open(kDemo, options)->Plan({{kLength}})->smallest_disk_memory;
  ThrowingEnv env;
  Result<std::unique_ptr<Engine>> engine = EngineOpener::Open(&env, kDemo, options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  fs::create_symlink("../0/s", kOthers / "s");
  Result<std::unique_ptr<Context>> context = (*engine)->NewContext({{kLength}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  const Request request = RequestOf(Quoting(**engine, kLength - 20, 0), 8);
  // Whether it was saved; memory ends at that point of it.
  const auto save = [&](int64_t n) {
    (*context)->Reset();
    bool saves = true;
    Status saved;
    Hooks hooks;
    hooks.on_progress = [&](const Progress& progress) {
      if (progress.phase != Progress::Phase::kDecode || !std::exchange(saves, false)) return;
      env.ThrowAt(n);
      saved = (*context)->SaveSession();
      EXPECT_EQ(saved.ok(), !env.thrown()) << saved.message();
      env.ThrowAt(-1);
    };
    const Result<std::vector<Generation>> made = (*context)->Generate({&request, 1}, hooks);
    EXPECT_TRUE(made.ok()) << made.status().message();
    EXPECT_FALSE(saves);
    return saved.ok();
  };
  for (int i = 0; i < 6; ++i) EXPECT_FALSE(save(1 + i % 2));
  int64_t points = 0;
  while (!save(points + 1) && !HasFailure()) ++points;
  EXPECT_GE(points, 2);
  EXPECT_TRUE(fs::exists("s"));
}

}  // namespace
}  // namespace headway

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  using headway::Processes;
  headway::Result<std::unique_ptr<Processes>> processes =
      Processes::Join("the same", "other words");
  if (!processes.ok() || *processes == nullptr) return 1;
  const headway::fs::path folder =
      headway::fs::temp_directory_path() / ("headway_processes_" + std::to_string(getppid()));
  const headway::fs::path own = folder / std::to_string((*processes)->rank());
  headway::fs::create_directories(own);
  headway::fs::current_path(own);
  if ((*processes)->rank() > 0) return (*processes)->Serve().ok() ? 0 : 1;
  const int failed = RUN_ALL_TESTS();
  processes->reset();
  headway::fs::remove_all(folder);
  return failed;
}
