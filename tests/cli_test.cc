// The program as its users run it: the built binary on the demo model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "support/cli.h"

namespace headway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
TEST_F(Cli, RunPrintsTheTextAndASummary) {
  const Outcome outcome = Run({"run", kModel, "-p", "The old man looked at", "-n", "12"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_GT(outcome.out.size(), 12u);
  EXPECT_THAT(outcome.err, HasSubstr("prefill"));
  EXPECT_THAT(outcome.err, HasSubstr("tok/s"));
  EXPECT_THAT(outcome.err, HasSubstr("limit unlimited"));
  EXPECT_THAT(outcome.err, HasSubstr("ended by: length"));

  const Json json = RunJson({"run", kModel, "-p", "The old man looked at", "-n", "12"});
  EXPECT_EQ(json["text"].get<std::string>() + "\n", outcome.out);
  EXPECT_EQ(json["tokens"].size(), 12u);
  EXPECT_EQ(json["finish"], "length");
  EXPECT_EQ(json["timings"]["decode_tokens"], 11);
  EXPECT_GT(json["prompt_tokens"], 4);
  EXPECT_GT(json["kv_bytes"]["device"], 0);  // of the open page
  EXPECT_TRUE(json["plan"]["memory"].is_array());

  // The same prompt by other ways.
  for (const Args& args : {Args{"run", kModel, "-n", "12"},
                           Args{"run", "--model", kModel, "--file", "-", "--max-tokens", "12"}}) {
    EXPECT_EQ(RunJson(args, "The old man looked at\n")["tokens"], json["tokens"]);
  }
}

TEST_F(Cli, ManyPromptsGiveTheirTextsInOrder) {
  WriteFile(
      dir_.File("prompts"),
      "\"Once upon a time\"\n{\"prompt\": \"The old man looked at the sea and\", \"id\": \"x\", "
      "\"max_tokens\": 3}\n\n\"She said\"\n");
  const Outcome outcome =
      Run({"run", kModel, "--prompts", dir_.File("prompts"), "--parallel", "2", "-n", "8"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("3, 2 at a time"));
  std::vector<Json> lines;
  std::istringstream in(outcome.out);
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  ASSERT_EQ(lines.size(), 3u);
  const std::vector<std::string> prompts = {"Once upon a time", "The old man looked at the sea and",
                                            "She said"};
  for (size_t i = 0; i < 3; ++i) {
    const Json alone = RunJson({"run", kModel, "-p", prompts[i], "-n", i == 1 ? "3" : "8"});
    EXPECT_EQ(lines[i]["index"], i);
    EXPECT_EQ(lines[i]["tokens"], alone["tokens"]) << i;
    EXPECT_EQ(lines[i]["text"], alone["text"]) << i;
    EXPECT_EQ(lines[i]["finish"], alone["finish"]) << i;
  }
  EXPECT_EQ(lines[1]["id"], "x");
  // Without --parallel all that the budget holds.
  Args args = {"run", kModel, "--prompts", dir_.File("prompts"), "-n", "8", "-c", "1000"};
  const Outcome together = Run(args);
  EXPECT_THAT(together.err, HasSubstr("3, 3 at a time"));
  EXPECT_EQ(together.out, outcome.out);
  args.insert(args.end(), {"--kv-memory", "20MiB", "--host-memory", "0"});
  const Outcome fewer = Run(args);
  EXPECT_THAT(fewer.err, HasSubstr("3, 2 at a time"));
  EXPECT_EQ(fewer.out, outcome.out);
  ExpectFailure({"run", kModel, "--prompts", "-"}, 1, "standard input, line 2", "\"a\"\n{}\n");
  ExpectFailure({"run", kModel, "--prompts", "-", "-p", "a"}, 2, "--prompt and --prompts");
}

TEST_F(Cli, RanksShareAModel) {
  const Args run = {"run", kModel, "-p", "Once upon a time", "-n", "8"};
  const Json one = RunJson(run);
  Args shared = run;
  shared.insert(shared.end(), {"--tp", "3", "--gpu-layers", "2", "--trace", dir_.File("trace")});
  EXPECT_EQ(RunJson(shared)["tokens"], one["tokens"]);
  EXPECT_THAT(ReadFile(dir_.File("trace")), HasSubstr("all-reduce"));
  const Outcome plan = Run({"plan", kModel, "-c", "4096", "--tp", "2"});
  EXPECT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("2 ranks share the model"));
  EXPECT_THAT(plan.out, HasSubstr("ranks     heads balanced\nrank  heads"));
  const Json planned = Run({"plan", kModel, "-c", "4096", "--tp", "3", "--json"}).json();
  EXPECT_EQ(planned["ranks"]["heads"][7], Json({{0, 1}, {2}, {3}}));
  EXPECT_EQ(planned["ranks"]["keys"], Json({16.0, 8.0, 8.0}));
  EXPECT_EQ(planned["ranks"]["profiled"], false);
  ExpectFailure({"run", kModel, "-p", "a", "--tp", "0"}, 2, "--tp");
}

TEST_F(Cli, WeightsStreamWhereLayersDoNotStay) {
  const Args run = {"run", kModel, "-p", "Once upon a time", "-n", "8"};
  const Json all = RunJson(run);
  Args some = run;
  some.insert(some.end(), {"--gpu-layers", "2"});
  const Json streamed = RunJson(some);
  EXPECT_EQ(streamed["tokens"], all["tokens"]);
  EXPECT_EQ(streamed["plan"]["weight_layers"], 2);
  EXPECT_GT(streamed["plan"]["streamed_weight_bytes"], 0);
  EXPECT_EQ(streamed["plan"]["disk_layers"], Json::array());
  // What host memory does not hold either is read from the model's file.
  Args on_disk = some;
  on_disk.insert(on_disk.end(), {"--host-memory", "16MiB"});
  const Json read = RunJson(on_disk);
  EXPECT_EQ(read["tokens"], all["tokens"]);
  EXPECT_EQ(read["plan"]["disk_layers"], (Json{2, 3, 6, 7}));
  EXPECT_EQ(read["plan"]["streamed_weight_bytes"], streamed["plan"]["streamed_weight_bytes"]);
  some.insert(some.end(), {"--host-memory", "1MiB"});
  ExpectFailure(some, 1, "--host-memory");
  ExpectFailure({"run", kModel, "-p", "a", "--gpu-layers", "few"}, 2, "--gpu-layers: 'few'");
  // A GPU that is not here: what does not fit it streams.
  const Json plan = RunJson({"plan", "--random-weights",
                             std::string(HEADWAY_SOURCE_DIR) + "/bench/shapes/opt-30b.json",
                             "--machine", "rtx-4090", "-c", "1024"});
  EXPECT_LT(plan["weight_layers"], 48);
  EXPECT_GT(plan["weight_layers"], 0);
  EXPECT_LT(plan["smallest"]["gpu_memory"], int64_t{8} << 30);
}

TEST_F(Cli, BenchSaysHowLongRanksAttendInEachLayer) {
  Args bench = {"bench", "decode", kModel, "-c", "256", "-n", "4", "-r", "1", "--rank-shares"};
  ExpectFailure(bench, 2, "--rank-shares is for --tp 2 or more");
  bench.insert(bench.end(), {"--tp", "2", "--no-progress"});
  const Outcome table = Run(bench);
  ASSERT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("ranks attend "));
  EXPECT_THAT(table.out, HasSubstr("  layer   all   rank 0   rank 1\n      0 "));
  EXPECT_THAT(table.out, HasSubstr("\n      7 "));
}

TEST_F(Cli, TakesTheMemoryThatThePlanPrints) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers take memory of their own";
#endif
  const Args disk = {"--kv-memory", "8MiB", "--host-memory", "16MiB", "--disk-memory", "1GiB"};
  Args lru = disk;
  lru.insert(lru.end(), {"--placement", "lru"});
  for (const int tokens : {1500, 6000, 12'000}) {
    const Json line = Document(tokens);
    WriteFile(dir_.File("document"), line["context"]);
    for (const Args& limits : {Args{}, Args{"--kv-memory", "8MiB"}, disk, lru}) {
      if (tokens != 6000 && limits != lru) continue;
      Args args = {"run", kModel, "--file", dir_.File("document"), "--ask",     line["question"],
                   "-n",  "4",    "--json", "--no-progress",       "--threads", "2"};
      args.insert(args.end(), limits.begin(), limits.end());
      const Outcome outcome = Run(args);
      ASSERT_EQ(outcome.status, 0) << outcome.err;
      const auto planned = outcome.json()["plan"]["memory_bytes"].get<double>();
      const auto peak = static_cast<double>(outcome.peak_bytes);
      EXPECT_GE(peak, 0.9 * planned) << tokens << " tokens";
      EXPECT_LE(peak, planned) << tokens << " tokens, " << limits.size() << " arguments of limits";
    }
  }
}

TEST_F(Cli, SamplingFollowsTheSeed) {
  const Args args = {"run", kModel, "-p", "She", "-n", "16", "--temp", "1.5", "--seed"};
  const auto tokens = [&](const char* seed) {
    Args seeded = args;
    seeded.push_back(seed);
    return RunJson(seeded)["tokens"];
  };
  EXPECT_EQ(tokens("1"), tokens("1"));
  EXPECT_NE(tokens("1"), tokens("2"));
}

TEST_F(Cli, StopsAtText) {
  const Json all = RunJson({"run", kModel, "-p", "Once upon a time", "-n", "40"});
  const std::string text = all["text"];
  const size_t blank = text.find(' ', text.size() / 2);
  ASSERT_NE(blank, std::string::npos);
  const std::string stop = text.substr(blank, 6);
  const Json stopped =
      RunJson({"run", kModel, "-p", "Once upon a time", "-n", "40", "--stop", stop});
  EXPECT_EQ(stopped["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped["finish"], "stop");
}

TEST_F(Cli, AnswersAboutADocumentUnderAnyBudget) {
  const Json line = Document(1400);
  WriteFile(dir_.File("doc.txt"), line["context"].get<std::string>() + "\n");
  const Args ask = {"run",   kModel,           "--file", dir_.File("doc.txt"),
                    "--ask", line["question"], "-n",     "24"};
  const Json resident = RunJson(ask);
  EXPECT_THAT(resident["text"].get<std::string>(), HasSubstr(line["answer"][0].get<std::string>()));
  EXPECT_EQ(resident["finish"], "eos");

  Args limited = ask;
  for (const char* arg :
       {"--kv-memory", "2MiB", "--host-memory", "4MiB", "--disk-memory", "64MiB", "--disk-path"}) {
    limited.push_back(arg);
  }
  limited.push_back(dir_.path());
  limited.push_back("--compare-resident");
  const Json streamed = RunJson(limited);
  EXPECT_EQ(streamed["tokens"], resident["tokens"]);
  EXPECT_EQ(streamed["equals_resident"], true);
  EXPECT_LE(streamed["kv_bytes"]["device"], 2 << 20);
  EXPECT_LE(streamed["kv_bytes"]["host"], 4 << 20);
  EXPECT_GT(streamed["kv_bytes"]["disk"], 0);

  const Outcome text = Run(limited);
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_THAT(text.err, HasSubstr("tokens are equal"));
  EXPECT_THAT(text.err, HasSubstr("chunk 256 and segment 1024 as before"));
  // That is not how an all-resident run is cut, which the run says, and with what it would be.
  EXPECT_EQ(resident["plan"]["cut_notice"], "");
  EXPECT_THAT(text.err, HasSubstr("headway: note: under these limits the cache is cut into chunks "
                                  "of 256 tokens instead of 1024"));
  const std::string notice = streamed["plan"]["cut_notice"];
  const size_t offer = notice.find("--kv-memory ");
  ASSERT_NE(offer, std::string::npos) << notice;
  const size_t value = offer + 12;
  Args same = ask;
  same.insert(same.end(),
              {"--kv-memory", notice.substr(value, notice.find(' ', value) - value),
               "--host-memory", "4MiB", "--disk-memory", "64MiB", "--disk-path", dir_.path()});
  const Json kept = RunJson(same);
  EXPECT_EQ(kept["plan"]["cut_notice"], "");
  EXPECT_EQ(kept["plan"]["chunk"], 1024);
  EXPECT_EQ(kept["tokens"], resident["tokens"]);

  // And with no tier between the device and the disk.
  limited[static_cast<size_t>(std::find(limited.begin(), limited.end(), "4MiB") -
                              limited.begin())] = "0";
  const Json from_disk = RunJson(limited);
  EXPECT_EQ(from_disk["equals_resident"], true);
  EXPECT_EQ(from_disk["kv_bytes"]["host"], 0);
  EXPECT_GT(from_disk["kv_bytes"]["disk"], 0);
}

TEST_F(Cli, BadInputIsOneLineAndNeverACrash) {
  const std::string prompt = "-pHello";
  ExpectFailure({"run", kModel, prompt, "--no-such-flag"}, 2, "--no-such-flag");
  ExpectFailure({"run", prompt}, 2, "MODEL is missing");
  ExpectFailure({"run", kModel, prompt, "-n", "many"}, 2, "--n-predict: 'many'");
  ExpectFailure({"run", kModel, prompt, "--kv-memory", "8 bananas"}, 2, "--kv-memory: '8 bananas'");
  ExpectFailure({"fly"}, 2, "no command 'fly'");
  ExpectFailure({"run", dir_.File("nowhere"), prompt}, 1, "nowhere");
  ExpectFailure({"run", kModel, "-p", ""}, 1, "the prompt is empty");
  ExpectFailure({"run", kModel}, 1, "standard input is empty");
  ExpectFailure({"run", kModel}, 1, "byte 0xe9 at offset 3", "caf\xe9");
  ExpectFailure({"run", kModel, "-f", dir_.File("none.txt")}, 1, "none.txt");
  ExpectFailure({"run", kModel, prompt, "-c", "1"}, 1, "--ctx-size");
  ExpectFailure({"run", kModel, prompt, "--kv-memory", "1KiB"}, 1, "--kv-memory");
  ExpectFailure({"run", kModel, prompt, "--device", "abacus"}, 1, "abacus");
  ExpectFailure({"run", kModel, prompt, "--placement", "disk-only", "--disk-memory", "1GiB",
                 "--disk-path", dir_.File("no/such/dir"), "-c", "4096"},
                1, "give another --disk-path");
  ExpectFailure({"run", kModel, prompt, "--trace", dir_.File("no/such/dir")}, 1, "--trace: ");
  ExpectFailure({"plan", kModel, "-c", "16384", "--kv-memory", "1MiB", "--host-memory", "1MiB"}, 1,
                "memory");
  ExpectFailure({"run", kModel, "-c", "16000", "--kv-memory", "2MiB", "--host-memory", "2MiB",
                 "--disk-memory", "2MiB", prompt},
                1, "does not fit; one of these would do: --disk-memory ");
  ExpectFailure({"inspect", dir_.File("nothing")}, 1, "nothing");
  ExpectFailure({"inspect", kModel + "/config.json"}, 1, "is not a Headway session; a model is");
}

TEST_F(Cli, WarnsOfContextsBeyondTheTrainedLength) {
  const Outcome outcome = Run({"run", kModel, "-p", "Hello", "-n", "1", "-c", "20000"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, StartsWith("headway: warning: a context of 20000 tokens"));
  EXPECT_THAT(outcome.err, HasSubstr("16384"));
}

TEST_F(Cli, WarnsOfABudgetForAGpuThatIsNotAskedFor) {
  const Outcome outcome = Run({"run", kModel, "-p", "Hello", "-n", "1", "--gpu-memory", "17GiB"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("--device cuda computes on a GPU"));
}

TEST_F(Cli, WarnsOfMoreMemoryThanThereIs) {
  const Outcome unlimited = Run({"plan", kModel, "-c", "1000000000"});
  EXPECT_EQ(unlimited.status, 0) << unlimited.err;
  EXPECT_THAT(unlimited.err, HasSubstr("of RAM, and the system shows "));
  const Outcome limited = Run({"plan", kModel, "-c", "4096"});
  EXPECT_THAT(limited.err, Not(HasSubstr("of RAM")));
}

TEST_F(Cli, SaysThatTheContextIsFull) {
  const Outcome outcome = Run({"run", kModel, "-p", "Hello there", "-n", "50", "-c", "16"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.err, HasSubstr("the context is full"));
}

TEST_F(Cli, FailsWhereNobodyReads) {
  const Outcome outcome = Wait(Start({"run", kModel, "-p", "Hello", "-n", "8"}, "", "/dev/full"));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("cannot write to standard output"));
}

}  // namespace
}  // namespace headway
