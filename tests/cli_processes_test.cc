// Ranks in processes: the built program, started by mpirun.
#include <signal.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "support/mpirun.h"
#include "support/rank_gpus.h"

namespace headway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Clock = Mpirun::Clock;

// The bytes of a safetensors file, one of a tensor changed.
std::string WithAnother(const char* tensor, std::string bytes) {
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const Json tensors = Json::parse(bytes.substr(8, header));
  const size_t at = tensors[tensor]["data_offsets"][0];
  bytes[8 + header + at] ^= 1;
  return bytes;
}

// On GPUs, if the environment says so, where two ranks add up as they do in one process.
const std::string kDevice = testing::RanksHaveGpus() ? "cuda" : "cpu";
const Args kRun = {"run", kModel, "-p", "Once upon a time", "-n",   "24", "--tp",
                   "2",   "-t",   "2",  "--device",         kDevice};

TEST_F(Mpirun, TextIsThatOfRanksInOneProcess) {
  program_ = kProgram;
  const Json threads = RunJson(kRun);
  program_ = HEADWAY_MPIRUN;
  const Json processes = RunJson(OnRanks(2, kRun));
  EXPECT_EQ(processes["tokens"], threads["tokens"]);
  EXPECT_EQ(processes["text"], threads["text"]);
  EXPECT_EQ(processes["kv_bytes"], threads["kv_bytes"]);
  // Rank 0 alone reads standard input, and streams its text.
  Args piped = kRun;
  piped.erase(piped.begin() + 2, piped.begin() + 4);
  const Outcome shown = Run(OnRanks(2, piped), "Once upon a time");
  EXPECT_EQ(shown.status, 0) << shown.err;
  EXPECT_EQ(shown.out, threads["text"].get<std::string>() + "\n");
  EXPECT_THAT(shown.err, HasSubstr("ended by: length"));
  // Sampling, streamed from disk, and two contexts of two engines.
  Args sampled = kRun;
  sampled.insert(sampled.end(), {"--temp", "0.9", "--seed", "7", "--placement", "disk-only",
                                 "--disk-memory", "64MiB", "--compare-resident"});
  const Json compared = RunJson(OnRanks(2, sampled));
  EXPECT_EQ(compared["equals_resident"], true);
  program_ = kProgram;
  EXPECT_EQ(RunJson(sampled)["tokens"], compared["tokens"]);
}

TEST_F(Mpirun, EvaluationsAndManyPromptsRunOnRanks) {
  WriteFile(dir_.File("prompts"), "\"Once upon a time\"\n\"The old man\"\n\"She said\"\n");
  WriteFile(dir_.File("text"),
            ReadFile(HEADWAY_SOURCE_DIR "/examples/document.txt").substr(0, 3000));
  const Args prompts = {"run", kModel, "--prompts", dir_.File("prompts"), "--parallel", "2", "-n",
                        "8",   "--tp", "3"};
  const Args perplexity = {"eval",      "perplexity", kModel, "--file", dir_.File("text"),
                           "--context", "256",        "--tp", "3",      "--json"};
  const Outcome shared = Run(OnRanks(3, prompts));
  EXPECT_EQ(shared.status, 0) << shared.err;
  const Json score = Run(OnRanks(3, perplexity)).json();
  program_ = kProgram;
  EXPECT_EQ(Run(prompts).out, shared.out);
  EXPECT_EQ(Run(perplexity).json()["perplexity"], score["perplexity"]);
}

// The first process alone has a model that drafts, and its clock says how many drafts there are.
TEST_F(Mpirun, DraftsAreThoseOfTheFirstRank) {
  WriteFile(dir_.File("text"),
            ReadFile(HEADWAY_SOURCE_DIR "/examples/document.txt").substr(0, 3000));
  Args run = {"run", kModel, "-f", dir_.File("text"), "-n",   "40", "--temperature",
              "0",   "--tp", "2",  "--device",        kDevice};
  program_ = kProgram;
  const Json plain = RunJson(run);
  program_ = HEADWAY_MPIRUN;
  run.push_back("--draft");
  for (const auto& by : {std::string("lookup"), kModel}) {
    run.push_back(by);
    const Json drafted = RunJson(OnRanks(2, run));
    EXPECT_EQ(drafted["tokens"], plain["tokens"]) << by;
    EXPECT_GT(drafted["timings"]["drafted_tokens"], 0) << by;
    run.pop_back();
  }
}

// Heads that share a budget choose over processes, and lie where a profile has them balanced.
TEST_F(Mpirun, EvictionIsThatOfRanksInOneProcess) {
  WriteFile(dir_.File("text"),
            ReadFile(HEADWAY_SOURCE_DIR "/examples/document.txt").substr(0, 3000));
  program_ = kProgram;
  const Outcome profiled =
      Run({"profile-heads", kModel, "--evict", "ada-snapkv", "--evict-budget", "96", "--file",
           dir_.File("text"), "--context", "256", "-o", dir_.File("heads.json")});
  ASSERT_EQ(profiled.status, 0) << profiled.err;
  const auto expect_equal = [&](const Args& run, const char* what) {
    program_ = kProgram;
    const Json threads = RunJson(run);
    program_ = HEADWAY_MPIRUN;
    EXPECT_EQ(RunJson(OnRanks(3, run))["tokens"], threads["tokens"]) << what;
  };
  for (const char* method : {"ada-snapkv", "defensivekv", "kvzip"}) {
    const Args run = {"run",
                      kModel,
                      "-f",
                      dir_.File("text"),
                      "--evict-budget",
                      "96",
                      "-n",
                      "8",
                      "--tp",
                      "3",
                      "--evict",
                      method,
                      "--assignment-profile",
                      dir_.File("heads.json")};
    expect_equal(run, method);
  }
  // Parts of heads that several hold lie alike, too.
  for (const char* parts : {"--assignment=tokens", "--assignment-copies=2"}) {
    const Args run = {"run",
                      kModel,
                      "-f",
                      dir_.File("text"),
                      "--evict=ada-snapkv",
                      "--evict-budget=96",
                      "-n",
                      "8",
                      "--tp",
                      "3",
                      parts,
                      "--assignment-profile",
                      dir_.File("heads.json")};
    expect_equal(run, parts);
  }
  // How long each of them attends is known to the first.
  const Outcome bench = Run(OnRanks(2, {"bench", "prefill", kModel, "--ctx-size", "256", "--tp",
                                        "2", "--repetitions", "1", "--json"}));
  ASSERT_EQ(bench.status, 0) << bench.err;
  const Json seconds = bench.json()["results"][0]["attend_seconds"];
  ASSERT_EQ(seconds.size(), 2u);
  for (const Json& of_rank : seconds) {
    ASSERT_EQ(of_rank.size(), 8u);
    for (const Json& of_layer : of_rank) EXPECT_GT(of_layer, 0.0);
  }
}

TEST_F(Mpirun, RanksThatDoNotFitTogetherAreRefused) {
  ExpectOneError(OnRanks(3, kRun), "--tp 2: each process is one rank, and the launcher started 3");
  ExpectOneError(OnRanks(1, kRun), "the launcher started 1");
  Args more = {kProgram}, less = {kProgram};
  for (Args* args : {&more, &less}) args->insert(args->end(), kRun.begin(), kRun.end());
  more.push_back("--ignore-eos");
  ExpectOneError(Apart(less, more), "rank 1 of 2: it has another command line or version");

  // The same name, but another model in the second folder, and none in the third.
  namespace fs = std::filesystem;
  const auto copy = [&](const std::string& model, const std::string& folder) {
    fs::create_directory(dir_.File(folder));
    fs::copy(model, dir_.File(folder) + "/model", fs::copy_options::recursive);
  };
  copy(kModel, "first");
  copy(kModel, "norm");
  copy(kModel, "matrix");
  copy(HEADWAY_SOURCE_DIR "/tests/golden/models/llama31", "small");
  fs::create_directory(dir_.File("none"));
  const auto change = [&](const char* folder, const char* tensor) {
    const std::string weights = dir_.File(folder) + "/model/model.safetensors";
    WriteFile(weights, WithAnother(tensor, ReadFile(weights)));
  };
  change("norm", "model.norm.weight");
  change("matrix", "model.layers.7.mlp.down_proj.weight");
  const Args run = {kProgram, "run", "model", "-p", "Once", "-n", "2", "--tp", "2"};
  const auto in = [&](const std::string& folder) {
    Args args = {"--wdir", dir_.File(folder)};
    args.insert(args.end(), run.begin(), run.end());
    return args;
  };
  for (const char* other : {"norm", "matrix", "small"}) {
    ExpectOneError(Apart(in("first"), in(other)), "rank 1 of 2: model holds another model");
  }
  ExpectOneError(Apart(in("first"), in("none")), "rank 1 of 2: model: no such folder");
}

// A rank that fails in the middle ends all: rank 1 may not write as much to its disk.
TEST_F(Mpirun, OneErrorEndsAll) {
  Args run = {kProgram, "run", kModel, "--file", HEADWAY_SOURCE_DIR "/examples/document.txt", "-n"};
  run.insert(run.end(), {"4", "--tp", "2", "--placement", "disk-only", "--disk-memory", "1GiB"});
  run.insert(run.end(), {"--device", kDevice});
  Args limited = {"/bin/sh", "-c", "ulimit -f 40000; exec \"$@\"", "sh"};
  limited.insert(limited.end(), run.begin(), run.end());
  ExpectOneError(Apart(run, limited), "headway: error: rank 1 of 2: ");
  ExpectOneError(Apart(limited, run), "headway: error: ");
}

TEST_F(Mpirun, ARankThatIsKilledEndsAll) {
  Args run = kRun;
  run[5] = "15000";
  run.push_back("--ignore-eos");
  for (const int rank : {0, 1}) {
    WriteFile(dir_.File("out"), "");
    const pid_t launcher = Start(OnRanks(2, run), "");
    while (ReadFile(dir_.File("out")).size() < 20) {
      ASSERT_TRUE(IsThere(launcher)) << ReadFile(dir_.File("err"));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    const pid_t process = ProcessOf(launcher, rank);
    ASSERT_GT(process, 0);
    const pid_t other = ProcessOf(launcher, 1 - rank);
    kill(process, SIGKILL);
    const Clock::time_point begin = Clock::now();
    Clock::time_point ended;
    const Outcome outcome = WaitFor(launcher, &ended);
    EXPECT_LT(ended - begin, std::chrono::seconds(10));
    EXPECT_NE(outcome.status, 0);
    EXPECT_THAT(outcome.err, HasSubstr("exited on signal 9"));
    EXPECT_THAT(outcome.err, Not(HasSubstr("headway: ")));
    // It is gone, too.
    while (IsThere(other) && Clock::now() - begin < std::chrono::seconds(10)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_FALSE(IsThere(other));
  }
}

}  // namespace
}  // namespace headway
