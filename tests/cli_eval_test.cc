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
  EXPECT_GT(decode["results"][0]["roofline_share"], 0.0);
  EXPECT_LT(decode["results"][0]["roofline_share"], 1.5);
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
