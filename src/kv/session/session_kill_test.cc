// A process that saves is killed at random moments, many times over.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/random.h"
#include "base/test_dir.h"
#include "kv/session/slab_file.h"
#include "kv/testing/session_model.h"
#include "kv/testing/slab_test_util.h"

namespace headway::kv {
namespace {

struct Child {
  pid_t pid = -1;
  int output = -1;
};

Child Start(const std::string& path, uint64_t seed, bool kept) {
  std::array<int, 2> ends = {-1, -1};
  if (pipe(ends.data()) != 0) return {};
  const std::string text = std::to_string(seed);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    execl(HEADWAY_SESSION_WRITER, HEADWAY_SESSION_WRITER, path.c_str(), text.c_str(),
          kept ? "kept" : nullptr, nullptr);
    _exit(127);
  }
  close(ends[1]);
  return {pid, ends[0]};
}

// The number of the last commit that a child reported, 0 for none.
uint64_t LastCommit(int output) {
  uint64_t last = 0;
  uint64_t count = 0;
  while (read(output, &count, sizeof(count)) == sizeof(count)) last = count;
  return last;
}

// Of whole prompts, or of what heads keep.
class SessionKillTest : public testing::TestWithParam<bool> {};

TEST_P(SessionKillTest, AKilledProcessLeavesAWholeSession) {
  TestDir dir;
  const std::string path = dir.File("session");
  Env* const env = Env::Default();
  Random random(5);
  uint64_t committed = 0;
  int kills = 0;
  const int64_t deadline = env->NowNanos() + 2'500'000'000;
  while (env->NowNanos() < deadline) {
    SCOPED_TRACE(kills);
    const Child child = Start(path, random.Next(), GetParam());
    ASSERT_GT(child.pid, 0);
    usleep(static_cast<useconds_t>(random.Below(60'000)));
    ASSERT_EQ(kill(child.pid, SIGKILL), 0);
    int exit = 0;
    ASSERT_EQ(waitpid(child.pid, &exit, 0), child.pid);
    ASSERT_TRUE(WIFSIGNALED(exit)) << "the writer ended by itself";
    committed = std::max(committed, LastCommit(child.output));
    close(child.output);
    ++kills;

    Budget budget("disk-memory", kUnlimited);
    Result<std::unique_ptr<SlabFile>> file = OpenSessionAt(env, path, &budget);
    if (!file.ok()) {
      ASSERT_EQ(file.status().code(), StatusCode::kNotFound) << file.status().message();
      ASSERT_EQ(committed, 0u);
      continue;
    }
    const Manifest& manifest = (*file)->manifest();
    ASSERT_TRUE(manifest.weights_hash == committed || manifest.weights_hash == committed + 1)
        << manifest.weights_hash << " was found after commit " << committed;
    committed = manifest.weights_hash;
    EXPECT_EQ(manifest.kept.has_value(), GetParam());
    const Status status = VerifySession(env, file->get(), manifest);
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<std::string> names = *env->List(dir.path());
    for (const std::string& name : names) {
      EXPECT_TRUE(name == "session" || dir.File(name) == TemporarySessionName(path)) << name;
    }
  }
  EXPECT_GT(kills, 10);
  EXPECT_GT(committed, 4u);
}

INSTANTIATE_TEST_SUITE_P(Of, SessionKillTest, testing::Bool());

}  // namespace
}  // namespace headway::kv
