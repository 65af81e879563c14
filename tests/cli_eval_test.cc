// The commands eval, inspect and bench on the demo model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "support/cli.h"

namespace headway {
namespace {

using ::testing::HasSubstr;

TEST_F(Cli, InspectDescribesAModel) {
  const Outcome outcome = Run({"inspect", kModel});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, HasSubstr("LlamaForCausalLM"));
  const Json json = RunJson({"inspect", kModel});
  EXPECT_EQ(json["kind"], "model folder");
  EXPECT_EQ(json["fields"]["architecture"], "LlamaForCausalLM");
  EXPECT_EQ(json["fields"]["tokenizer"], "8192 tokens");
  EXPECT_EQ(json["fields"]["chat template"], "yes");
}

TEST_F(Cli, PerplexityCountsEveryPrediction) {
  WriteFile(dir_.File("text"), Document(700)["context"]);
  const Args args = {"eval", "perplexity", kModel, "--file", dir_.File("text"), "--context", "200"};
  const Json json = RunJson(args);
  EXPECT_GT(json["perplexity"], 5.0);
  EXPECT_LT(json["perplexity"], 500.0);
  EXPECT_GT(json["tokens"], 600);
  EXPECT_EQ(json["windows"], 4);
  Args limited = args;
  limited.insert(limited.end(), {"--kv-memory", "1MiB", "--windows", "2", "--chunk", "64"});
  const Json two = RunJson(limited);
  EXPECT_EQ(two["tokens"], 2 * 199);
  EXPECT_EQ(two["windows"], 2);
  Args encoded = args;
  encoded.insert(encoded.end(),
                 {"--windows", "2", "--chunk", "64", "--kv-encoding", "int4", "--compare"});
  const Json compared = RunJson(encoded);
  EXPECT_NEAR(compared["exact_perplexity"].get<double>(), two["perplexity"].get<double>(), 1e-3);
  EXPECT_NE(compared["perplexity"], two["perplexity"]);
  EXPECT_GT(compared["kl_divergence"], 0.0);
  EXPECT_LT(compared["kl_divergence"], 0.1);
  EXPECT_GT(compared["same_top"], 0.8);
  EXPECT_LT(compared["same_top"], 1.0);
  ExpectFailure({"eval", "perplexity", kModel, "--context", "9"}, 2, "--file is missing");
  ExpectFailure({"eval", "perplexity", kModel, "--file", "x", "--context", "9", "--compare"}, 2,
                "--compare needs --kv-encoding or --head-pattern");
  ExpectFailure({"eval", "perplexity", kModel, "--file", "x", "--context", "9", "--sparse"}, 2,
                "headway eval divergence compares token by token");
  ExpectFailure({"eval", "perplexity", kModel, "--file", "x", "--context", "9", "--evict=snapkv"},
                2, "which --evict reads exactly; headway eval divergence");
}

TEST_F(Cli, DivergenceIsThatOfDecodeStepsFromExactOnes) {
  WriteFile(dir_.File("text"), Document(900)["context"]);
  // Every other KV head.
  const std::string pattern = dir_.File("heads.tsv");
  std::string scores;
  for (int layer = 0; layer < 8; ++layer) scores += layer % 2 == 0 ? "0 1 0 1\n" : "1 0 1 0\n";
  WriteFile(pattern, scores);
  const auto measure = [&](const Args& more) {
    Args args = {"eval",      "divergence", kModel,     "--file", dir_.File("text"),
                 "--context", "400",        "--tokens", "40",     "--windows",
                 "3",         "--chunk",    "64"};
    args.insert(args.end(), more.begin(), more.end());
    return RunJson(args);
  };
  const Json exact = measure({});
  EXPECT_EQ(exact["kl_divergence"], 0.0);
  EXPECT_EQ(exact["kl_standard_error"], 0.0);
  EXPECT_EQ(exact["kl_max"], 0.0);
  EXPECT_EQ(exact["same_top"], 1.0);
  EXPECT_EQ(exact["perplexity"], exact["exact_perplexity"]);
  EXPECT_EQ(exact["tokens"], 120);
  EXPECT_EQ(exact["windows"], 3);
  EXPECT_EQ(exact["approximations"], Json::array());
  EXPECT_EQ(measure({"--kv-memory", "1MiB", "--host-attention", "1"})["kl_max"], 0.0);

  const Json int8 = measure({"--kv-encoding", "int8"});
  EXPECT_EQ(int8["exact_perplexity"], exact["exact_perplexity"]);
  EXPECT_GT(int8["kl_divergence"], 0.0);
  EXPECT_LT(int8["kl_divergence"], 1e-2);
  EXPECT_GT(int8["kl_standard_error"], 0.0);
  EXPECT_GE(int8["kl_p95"], int8["kl_divergence"]);
  EXPECT_GE(int8["kl_max"], int8["kl_p95"]);
  EXPECT_GT(int8["same_top"], 0.9);
  const Json named = {{"name", "kv-encoding"}, {"encoding", "int8"}};
  EXPECT_EQ(int8["approximations"], Json::array({named}));
  EXPECT_GT(int8["exact_kv_bytes"]["device"], int8["kv_bytes"]["device"]);

  // Parameters of streaming heads are no options of the exact run.
  const Json heads =
      measure({"--head-pattern", pattern, "--sink-tokens", "4", "--recent-tokens", "32"});
  EXPECT_GT(heads["kl_divergence"], int8["kl_divergence"]);
  EXPECT_LT(heads["same_top"], 1.0);
  EXPECT_EQ(heads["approximations"][0]["name"], "streaming-heads");
  EXPECT_EQ(heads["approximations"][0]["recent_tokens"], 32);

  // Fewer keys differ more; where the budget holds all of them, nothing does.
  const auto select = [&](const char* keys, const char* selector) {
    return measure({"--selector", selector, "--sparse-keys", keys, "--sparse-sink", "16",
                    "--sparse-recent", "32"});
  };
  const Json half = select("160", "pages"), few = select("32", "pages");
  EXPECT_EQ(half["exact_perplexity"], exact["exact_perplexity"]);
  EXPECT_GT(half["kl_divergence"], 0.0);
  EXPECT_LT(half["kl_divergence"], few["kl_divergence"]);
  EXPECT_LT(few["kl_divergence"], heads["kl_divergence"]);
  EXPECT_LT(few["kl_divergence"], select("32", "quest")["kl_divergence"]);
  EXPECT_LT(select("32", "oracle")["kl_divergence"], few["kl_divergence"]);
  for (const char* other : {"infinitehip", "infllm", "oracle-heads"}) {
    const Json result = select("32", other);
    EXPECT_GT(result["kl_divergence"], 0.0) << other;
    EXPECT_LT(result["kl_divergence"], heads["kl_divergence"]) << other;
  }
  EXPECT_EQ(few["approximations"][0]["selector"], "pages");
  EXPECT_EQ(select("400", "pages")["kl_max"], 0.0);
}

TEST_F(Cli, DivergenceSaysInWordsAndRefusesByName) {
  WriteFile(dir_.File("text"), Document(300)["context"]);
  const Args args = {"eval", "divergence", kModel, "--file", dir_.File("text"), "--context"};
  const auto with = [&](const Args& more) {
    Args all = args;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const Outcome outcome = Run(with({"100", "--tokens", "8", "--kv-encoding", "int4"}));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("over 8 decode steps in 1 window of 100"));
  EXPECT_THAT(outcome.out, HasSubstr("approximation: kv-encoding (encoding int4)\n"));
  ExpectFailure(with({"100", "--tokens", "0"}), 2, "--tokens");
  ExpectFailure(with({"100", "--tokens", "100"}), 2,
                "--tokens 100 leaves nothing of a --context of 100");
  ExpectFailure(with({"100"}), 2, "--tokens 128 leaves nothing");
  ExpectFailure(with({"100", "--tokens", "8", "--windows", "0"}), 2, "--windows");
  ExpectFailure(with({"4096"}), 1, "1 window of 4096 tokens, of which 128 are compared, needs");
  ExpectFailure(with({"100", "--tokens", "8", "--windows", "1073741824"}), 1,
                dir_.File("text") + ": the text has");
  ExpectFailure(with({"100", "--tokens", "8", "--head-pattern", dir_.File("absent")}), 1,
                "--head-pattern: ");
  ExpectFailure({"eval", "divergence", kModel, "--context", "9"}, 2, "--file is missing");
}

TEST_F(Cli, RetrievalScoresGeneratedAndGivenLines) {
  const Args generate = {
      "eval",   "retrieval", kModel,    "--generate",          "3", "--context", "400",
      "--seed", "3",         "--kinds", "needle,passkey,place"};
  const Json made = RunJson(generate);
  EXPECT_GE(made["score"], 0.6);
  ASSERT_EQ(made["results"].size(), 3u);
  EXPECT_EQ(made["results"][1]["id"], "passkey-1");
  EXPECT_LE(made["results"][0]["prompt_tokens"], 400);
  EXPECT_GE(made["results"][0]["prompt_tokens"], 350);

  Args write = generate;
  write.insert(write.end(), {"--write", dir_.File("lines")});
  EXPECT_EQ(Run(write).status, 0);
  const Json read = RunJson({"eval", "retrieval", kModel, "--jsonl", dir_.File("lines")});
  EXPECT_EQ(read["results"], made["results"]);
  EXPECT_EQ(read["score"], made["score"]);

  ExpectFailure({"eval", "retrieval", kModel}, 2, "either --jsonl");
  ExpectFailure({"eval", "retrieval", kModel, "--generate", "1", "--context", "100"}, 1,
                "a --context of 100 tokens; 256 to 16777216 are possible");
  Args hidden = generate;
  hidden.insert(hidden.end(), {"--haystack", "-"});
  ExpectFailure(hidden, 1, "take a shorter --context or a longer --haystack", "Too short.");
  ExpectFailure({"eval", "retrieval", kModel, "--jsonl", "-"}, 1, "standard input, line 1", "{}\n");
}

TEST_F(Cli, ProfiledHeadsStreamAndRetrieve) {
  const std::string tsv = dir_.File("heads.tsv"), json = dir_.File("heads.json");
  const Json profile = RunJson({"profile-heads", kModel, "-o", tsv, "--context", "1024",
                                "--prompts", "3", "--kinds", "passkey,needle"});
  EXPECT_GT(profile["answered"].get<int>(), 0);
  EXPECT_EQ(profile["scores"].size(), 32u);
  for (const Json& score : profile["scores"]) {
    EXPECT_GE(score.get<double>(), 0.0);
    EXPECT_LE(score.get<double>(), 1.0);
  }
  const std::string text = ReadFile(tsv);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 9) << text;
  const Outcome again = Run({"profile-heads", kModel, "-o", json, "--context", "1024", "--prompts",
                             "1", "--kinds", "passkey", "--sink-tokens", "4"});
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("wrote " + json));
  EXPECT_EQ(Json::parse(ReadFile(json), nullptr, false)["sink"], 4);

  const Args retrieval = {"eval", "retrieval", kModel, "--generate", "3",      "--context",
                          "1024", "--seed",    "9",    "--kinds",    "passkey"};
  Args with = retrieval;
  with.insert(with.end(), {"--head-pattern", tsv, "--sparsity", "0.25"});
  EXPECT_EQ(RunJson(with)["score"], RunJson(retrieval)["score"]);

  // Half of the heads, and half of the cache.
  const Json exact = RunJson({"plan", kModel, "-c", "16384"});
  const Json half =
      RunJson({"plan", kModel, "-c", "16384", "--head-pattern", json, "--sparsity", "0.5"});
  EXPECT_LT(half["kv_bytes"].get<double>(), 0.55 * exact["kv_bytes"].get<double>());
  EXPECT_THAT(half.dump(), HasSubstr("KV: streaming heads"));

  // The exact model has no part of the pattern.
  WriteFile(dir_.File("text"), Document(300)["context"]);
  const Json compared =
      RunJson({"eval", "perplexity", kModel, "--file", dir_.File("text"), "--context", "128",
               "--chunk", "32", "--head-pattern", json, "--sparsity", "0.5", "--compare"});
  EXPECT_GT(compared["kl_divergence"], 0.0);

  const Args run = {"run", kModel, "-p", "Once", "-n", "2"};
  const auto refused = [&](const Args& more, int status, const std::string& message) {
    Args args = run;
    args.insert(args.end(), more.begin(), more.end());
    ExpectFailure(args, status, message);
  };
  refused({"--sparsity", "0.5"}, 1, "give a --head-pattern file");
  refused({"--head-pattern", tsv, "--sparsity", "1.5"}, 2, "--sparsity");
  refused({"--head-pattern", dir_.File("absent")}, 1, "--head-pattern: ");
  refused({"--head-pattern", tsv, "--sparsity", "0.5", "--session", dir_.File("s")}, 1,
          "leave out --session or --head-pattern");
  WriteFile(tsv, "1 1 1 1\n1 x 1 1\n");
  refused({"--head-pattern", tsv}, 1, tsv + ", line 2: 'x' is not a number");
  ExpectFailure({"profile-heads", kModel, "-o", json, "--head-pattern", json}, 2,
                "the exact model is profiled");
}

TEST_F(Cli, BudgetsOfHeadsAreProfiledAndGivenBack) {
  const std::string file = dir_.File("heads.json");
  WriteFile(dir_.File("a"), Document(400)["context"]);
  WriteFile(dir_.File("b"), ReadFile(HEADWAY_SOURCE_DIR "/examples/document.txt").substr(0, 9000));
  const Args profile = {
      "profile-heads", kModel, "-o",           file,        "--evict", "ada-snapkv",     "--file",
      dir_.File("a"),  "-f",   dir_.File("b"), "--context", "768",     "--evict-budget", "128"};
  const Json json = RunJson(profile);
  ASSERT_EQ(json["layers"].size(), 8u);
  for (const Json& layer : json["layers"]) {
    EXPECT_EQ(layer["mean"], 128.0);
    EXPECT_LT(layer["least"], 128.0);
    EXPECT_EQ(layer["imbalance"].get<double>(), layer["most"].get<double>() / 128.0);
  }
  EXPECT_NEAR(json["similarity"][0][0].get<double>(), 1.0, 1e-9);
  EXPECT_LT(json["similarity"][0][1].get<double>(), 1.0);
  EXPECT_EQ(json["texts"][1]["tokens"], 768);
  const Outcome table = Run(profile);
  EXPECT_THAT(table.out, HasSubstr("Ada-SnapKV, budget 128"));
  EXPECT_THAT(table.out, HasSubstr("cosine similarity"));
  EXPECT_EQ(Json::parse(ReadFile(file), nullptr, false)["texts"].size(), 2u);

  const Args fixed = {"--evict", "snapkv", "--evict-budget", "128", "--evict-profile", file};
  const auto with = [&fixed](Args args) {
    args.insert(args.end(), fixed.begin(), fixed.end());
    return args;
  };
  const Json run = RunJson(with({"run", kModel, "--file", dir_.File("a"), "-n", "2"}));
  EXPECT_EQ(run["plan"]["eviction"]["profiled"], true);
  EXPECT_EQ(run["plan"]["eviction"]["room"], 2) << "as many as are generated";
  const Args more = {"run", kModel, "--file", dir_.File("a"), "-n", "2"};
  const auto room = [&](const Args& and_these) {
    Args args = with(more);
    args.insert(args.end(), and_these.begin(), and_these.end());
    return RunJson(args)["plan"]["eviction"]["room"];
  };
  EXPECT_EQ(room({"--evict-room", "64"}), 64);
  EXPECT_EQ(room({"--session", dir_.File("session")}), 4096) << "it may go on";
  const Json plan =
      RunJson(with({"plan", kModel, "-c", "4096", "--kv-memory", "64MiB", "--evict-room", "64"}));
  EXPECT_GT(plan["eviction"]["sequences"], 1);

  ExpectFailure({"profile-heads", kModel, "-o", file, "--evict", "snapkv"}, 2, "--file");
  ExpectFailure({"profile-heads", kModel, "-o", file, "--file", file}, 2, "--file needs --evict");
  ExpectFailure({"profile-heads", kModel, "-o", file, "--evict", "snapkv", "--importance",
                 "retrieval", "--file", file},
                2, "--importance");
  ExpectFailure({"profile-heads", kModel, "-o", dir_.File("x"), "--evict", "snapkv", "--file",
                 dir_.File("b"), "--context", "512"},
                1, "has 512 tokens, no more than --evict-budget 1024");
  const std::string text = ReadFile(file);
  WriteFile(file, text.substr(0, text.size() / 2));
  ExpectFailure(with({"run", kModel, "-p", "Once", "-n", "2"}), 1,
                "--evict-profile: head profile " + file + ": is not a JSON object");
}

TEST_F(Cli, ImportanceOfHeadsIsMeasuredForHeadKv) {
  const std::string file = dir_.File("importance.json");
  const Json profile = RunJson({"profile-heads", kModel, "-o", file, "--importance", "retrieval",
                                "--context", "1024", "--prompts", "2", "--tasks", "passkey"});
  ASSERT_GT(profile["answered"].get<int>(), 0);
  double most = 0.0;
  for (const Json& score : profile["scores"]) most = std::max(most, score.get<double>());
  // Some head looks at the passkey while it is written, and most heads do not.
  EXPECT_GT(most, 0.1);
  EXPECT_LE(most, 1.0);
  const Args headkv = {"eval",   "retrieval",      kModel, "--generate", "2",       "--context",
                       "1024",   "--seed",         "9",    "--tasks",    "passkey", "--evict",
                       "headkv", "--evict-budget", "256"};
  ExpectFailure(headkv, 1, "--evict headkv needs --evict-profile");
  Args with = headkv;
  with.insert(with.end(), {"--evict-profile", file, "--evict-safeguard", "0.5"});
  EXPECT_GE(RunJson(with)["score"].get<double>(), 0.0);
}

TEST_F(Cli, BenchMeasures) {
  const Json prefill =
      RunJson({"bench", "prefill", kModel, "-c", "64,64+32", "--repetitions", "2"});
  ASSERT_EQ(prefill["results"].size(), 2u);
  EXPECT_EQ(prefill["results"][1]["tokens"], 96);
  EXPECT_EQ(prefill["results"][1]["seconds"].size(), 2u);
  EXPECT_GT(prefill["results"][0]["tokens_per_second"], 0.0);
  EXPECT_GT(prefill["peaks"]["read_bytes_per_second"], 1e9);

  const std::string config = kModel + "/config.json";
  const Json decode = RunJson({"bench", "decode", "--random-weights", config, "-c", "256", "-n",
                               "4", "-r", "1", "--synthetic-kv"});
  EXPECT_EQ(decode["results"][0]["tokens"], 4);
  const Json last = RunJson({"bench", "prefill", "--random-weights", config, "-c", "256", "-r", "1",
                             "--synthetic-kv", "--last", "128"});
  EXPECT_EQ(last["results"][0]["tokens"], 128);
  // A chunk that is all of the prompt has no prefix.
  const Json whole = RunJson({"bench", "prefill", "--random-weights", config, "-c", "256", "-r",
                              "1", "--synthetic-kv", "--last", "256"});
  EXPECT_EQ(whole["results"][0]["tokens"], 256);
  EXPECT_GT(decode["results"][0]["roofline_share"], 0.0);
  const Json& steps = decode["results"][0]["step_seconds"];
  EXPECT_GT(steps["p50"], 0.0);
  EXPECT_LE(steps["p50"], steps["p99"]);
  EXPECT_LE(steps["p99"], steps["max"]);
  ExpectFailure({"bench", "decode", "-c", "64"}, 2, "either MODEL");
  const std::string opt = HEADWAY_SOURCE_DIR "/tests/golden/models/opt/config.json";
  const Args args = {"bench", "decode", "--random-weights", opt, "-n", "4", "-r", "1"};
  const auto with_context = [&args](const char* context) {
    Args all = args;
    all.insert(all.end(), {"-c", context});
    return all;
  };
  EXPECT_EQ(RunJson(with_context("100+90"))["results"][0]["tokens"], 8);
  ExpectFailure(with_context("198"), 1, "has learned 200 positions");
}

}  // namespace
}  // namespace headway
