// Sessions of runs that evict, and of runs with HGCA, whose processes are killed at any moment:
// what the file held stays, and runs go on behind it.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>

#include "base/random.h"
#include "support/cli.h"

namespace headway {
namespace {

struct Kind {
  const char* name;
  Args flags;
};

class CliEvictKilled : public Cli, public ::testing::WithParamInterface<Kind> {
 protected:
  // The first words of a text that says the same again and again, which the model continues with
  // margins that do not depend on where a run began. At least so many characters.
  static std::string Text(size_t from, size_t length) {
    const std::string all = ReadFile(HEADWAY_SOURCE_DIR "/examples/document.txt");
    const size_t begin = all.find(' ', from);
    const std::string once = all.substr(begin, all.find(' ', from + 600) - begin);
    std::string text;
    while (text.size() < length + 600) text += once;
    return text.substr(1, text.find(' ', length) - 1);
  }
  Args ArgsOf(const std::string& text, const std::string& session, int tokens) {
    WriteFile(dir_.File("text"), text);
    Args args = {"run",         kModel,  "-f",           dir_.File("text"),
                 "--chunk",     "64",    "--save-every", "0",
                 "--session",   session, "-n",           std::to_string(tokens),
                 "--ignore-eos"};
    args.insert(args.end(), GetParam().flags.begin(), GetParam().flags.end());
    return args;
  }
  void Copy(const std::string& from, const std::string& to) {
    std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing);
  }
  static int64_t MillisSince(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                                 begin)
        .count();
  }
};

// Each run reads more of a text than the one before, and most are killed; what one of them had
// saved none of the later ones loses.
TEST_P(CliEvictKilled, ATextThatGrowsLosesNothing) {
  const int seed = static_cast<int>(getpid());
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(static_cast<uint64_t>(seed));
  constexpr size_t kFirst = 1600, kMore = 700;
  constexpr size_t kRuns = 6;
  const std::string whole = dir_.File("whole"), session = dir_.File("session");
  RunJson(ArgsOf(Text(900, kFirst), whole, 1));
  Copy(whole, session);
  int64_t saved = SavedIn(session);
  EXPECT_GT(saved, 300);
  const std::string all = Text(900, kFirst + kRuns * kMore);
  const auto begin = std::chrono::steady_clock::now();
  const Json uninterrupted = RunJson(ArgsOf(all, whole, 12));
  EXPECT_EQ(uninterrupted["reused_tokens"], saved);
  int64_t within_ms = MillisSince(begin) / 2;
  int killed = 0;
  for (size_t i = 1; i < kRuns; ++i) {
    if (KillWithin(ArgsOf(Text(900, kFirst + i * kMore), session, 1), within_ms, &random)) {
      ++killed;
    } else {
      within_ms = std::max<int64_t>(within_ms / 2, 1);
    }
    const int64_t now = SavedIn(session);
    EXPECT_GE(now, saved) << "run " << i;
    saved = now;
  }
  EXPECT_GT(killed, 0);
  const Json continued = RunJson(ArgsOf(all, session, 12));
  EXPECT_EQ(continued["reused_tokens"], saved);
  EXPECT_EQ(continued["session_saved"], true);
  EXPECT_EQ(continued["tokens"], uninterrupted["tokens"]);
}

// Sessions of what is kept of one prompt.
class CliKeptPromptKilled : public CliEvictKilled {};

// A run reads another prompt, of which heads keep what they need, and is killed meanwhile: the
// session holds all of the one or all of the other.
TEST_P(CliKeptPromptKilled, APromptStaysUntilAnotherTakesItsPlace) {
  const int seed = static_cast<int>(getpid());
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(static_cast<uint64_t>(seed));
  const std::string session = dir_.File("session");
  struct Told {
    int64_t saved = 0;
    Json behind;
  } told[2];
  constexpr size_t kFrom[] = {900, 3000}, kLength[] = {1600, 2600};
  int64_t within_ms = 0;
  const auto go_on = [&](size_t which, const std::string& file) {
    return RunJson(ArgsOf(Text(kFrom[which], kLength[which] + 300), file, 8));
  };
  for (size_t which = 0; which < 2; ++which) {
    const std::string file = dir_.File("prompt" + std::to_string(which));
    const auto begin = std::chrono::steady_clock::now();
    RunJson(ArgsOf(Text(kFrom[which], kLength[which]), file, 1));
    within_ms = MillisSince(begin);
    told[which].saved = SavedIn(file);
    Copy(file, session);
    told[which].behind = go_on(which, session);
  }
  ASSERT_NE(told[0].saved, told[1].saved);
  int killed = 0;
  for (int round = 0; round < 5; ++round) {
    Copy(dir_.File("prompt0"), session);
    const Args args = ArgsOf(Text(kFrom[1], kLength[1]), session, 1);
    killed += KillWithin(args, within_ms, &random) ? 1 : 0;
    const int64_t saved = SavedIn(session);
    const size_t which = saved == told[0].saved ? 0 : 1;
    EXPECT_EQ(saved, told[which].saved);
    const Json behind = go_on(which, session);
    EXPECT_EQ(behind["reused_tokens"], saved);
    EXPECT_EQ(behind["tokens"], told[which].behind["tokens"]);
  }
  EXPECT_GT(killed, 0);
}

const Kind kEvicting = {"evict", {"--evict", "ada-snapkv", "--evict-budget", "192"}};

INSTANTIATE_TEST_SUITE_P(Kinds, CliKeptPromptKilled, ::testing::Values(kEvicting),
                         [](const auto& kind) { return kind.param.name; });
INSTANTIATE_TEST_SUITE_P(Kinds, CliEvictKilled,
                         ::testing::Values(kEvicting,
                                           Kind{"hgca", {"--hgca", "1", "--hgca-window", "192"}}),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace headway
