// The commands plan and probe on the demo model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "support/cli.h"

namespace headway {
namespace {

using ::testing::HasSubstr;

TEST_F(Cli, PlanPrintsMemoryAndTheSmallestBudgets) {
  const Args args = {"plan", kModel, "-c", "16384", "--kv-memory", "8MiB"};
  const Outcome outcome = Run(args);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* text : {"weights", "RAM in all", "--kv-memory", "smallest budgets"}) {
    EXPECT_THAT(outcome.out, HasSubstr(text));
  }
  const Json json = RunJson(args);
  int64_t ram = 0, kv = 0;
  for (const Json& row : json["memory"]) {
    if (row["tier"] != "disk") ram += row["bytes"].get<int64_t>();
    if (row["tier"] == "device" && row["what"].get<std::string>().starts_with("KV")) {
      kv += row["bytes"].get<int64_t>();
    }
  }
  EXPECT_EQ(json["memory_bytes"], ram);
  EXPECT_LE(kv, 8 << 20);
  // The smallest budget does, and one byte less does not.
  const int64_t smallest = json["smallest"]["kv_memory"];
  EXPECT_EQ(Run({"plan", kModel, "-c", "16384", "--kv-memory", std::to_string(smallest)}).status,
            0);
  ExpectFailure({"plan", kModel, "-c", "16384", "--kv-memory", std::to_string(smallest - 1)}, 1,
                "--kv-memory");
  const Json batch = RunJson({"plan", kModel, "-c", "1024+512", "--batch", "2"});
  EXPECT_EQ(batch["lengths"], (std::vector<int64_t>{1024, 512, 1024, 512}));
}

TEST_F(Cli, PlansBeforeTheModelIsHere) {
  const std::string config = ReadFile(kModel + "/config.json");
  WriteFile(dir_.File("config.json"), config);
  const Json here = RunJson({"plan", kModel, "-c", "16384", "--kv-memory", "8MiB"});
  for (const std::string& model : {dir_.path(), dir_.File("config.json")}) {
    const Args args = {"plan", model, "-c", "16384", "--kv-memory", "8MiB"};
    const Json absent = RunJson(args);
    for (const char* same : {"memory", "memory_bytes", "slabs", "kv_bytes", "smallest"}) {
      EXPECT_EQ(absent[same], here[same]) << model;
    }
    const Outcome outcome = Run(args);
    EXPECT_THAT(outcome.err, HasSubstr(model + ": no weights here; sizes are computed from"));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
  ExpectFailure({"run", dir_.path(), "-pHello"}, 1, "no model.safetensors");
  ExpectFailure({"run", dir_.File("config.json"), "-pHello"}, 1, "a file; a model is the folder");
  WriteFile(dir_.File("config.json"), config.substr(0, 60));
  ExpectFailure({"plan", dir_.File("config.json")}, 1, "config.json: not valid JSON: it ends too");
}

const Args kLlama = {"--random-weights",
                     std::string(HEADWAY_SOURCE_DIR) + "/bench/shapes/llama-3-8b.json"};

Args PlanFor(const Args& more) {
  Args args = {"plan", "--context", "131072", "--gpu-memory", "18GiB"};
  args.insert(args.end(), kLlama.begin(), kLlama.end());
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST_F(Cli, PlansTakeLosslessPagesAndSayWhatDraftsBring) {
  const Args on = {"--machine", "h200", "--draft", "lookup"};
  Args plain = on;
  plain.insert(plain.end(), {"--kv-encoding", "none"});
  const Json json = RunJson(PlanFor(on)), without = RunJson(PlanFor(plain));
  EXPECT_EQ(json["kv_encoding"], "lossless");
  EXPECT_EQ(without["kv_encoding"], "none");
  const auto decode = [](const Json& of) {
    return of["prediction"]["decode"]["tokens_per_second"].get<double>();
  };
  EXPECT_GT(decode(json), 1.15 * decode(without));
  double last = decode(json);
  ASSERT_EQ(json["prediction"]["drafts"].size(), 3u);
  for (const Json& with : json["prediction"]["drafts"]) {
    EXPECT_GT(with["tokens_per_second"], last);
    last = with["tokens_per_second"];
  }
  EXPECT_TRUE(RunJson(PlanFor({"--machine", "h200"}))["prediction"]["drafts"].empty());
  const Outcome outcome = Run(PlanFor(on));
  EXPECT_THAT(outcome.out, HasSubstr("full pages are lossless, the same numbers"));
  EXPECT_THAT(outcome.out, HasSubstr("tokens/s where 90 % are right"));
}

TEST_F(Cli, PlansForAGpuThatIsNotHere) {
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = Run(PlanFor({"--machine", "h200", "--explain"}));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* text : {"driver and libraries", "in host memory", "predicted for NVIDIA H200",
                           "shipped profile h200", "decode: host to device",
                           "1 GiB more on the GPU", "a bus twice as fast"}) {
    EXPECT_THAT(outcome.out, HasSubstr(text));
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(took.count(), 1.0);
#endif
  // As docs/BENCHMARKS.md has them.
  const auto streamed = [&](const std::string& machine) {
    return RunJson(PlanFor({"--machine", machine, "--placement", "host-only", "--host-attention",
                            "off", "--kv-encoding", "none"}));
  };
  const Json json = streamed("h200");
  EXPECT_NEAR(json["prediction"]["decode"]["tokens_per_second"].get<double>(), 3.22, 0.1);
  EXPECT_NEAR(json["prediction"]["prefill"]["tokens_per_second"].get<double>(), 12093, 900);
  EXPECT_EQ(json["prediction"]["decode"]["limit"], "host to device");
  // The same by a file, and slower on a slower bus.
  const std::string file = std::string(HEADWAY_SOURCE_DIR) + "/machines/h200.json";
  EXPECT_EQ(streamed(file)["slabs"], json["slabs"]);
  const Json slow = streamed("rtx-4090");
  EXPECT_LT(slow["prediction"]["decode"]["tokens_per_second"].get<double>(), 1.6);
}

// Two GPUs that have half of the layers each hold what one of this budget does not.
TEST_F(Cli, PlansLayersOverGpus) {
  const Args on = {"--machine", "h200", "--kv-encoding", "none", "--layers-over"};
  const auto planned = [&](const char* ranks) {
    Args args = on;
    args.emplace_back(ranks);
    return RunJson(PlanFor(args));
  };
  const Json one = planned("1"), two = planned("2");
  EXPECT_FALSE(one.contains("layers_of_ranks"));
  EXPECT_EQ(two["layers_of_ranks"], (Json{16, 16}));
  EXPECT_EQ(two["kv_bytes"], one["kv_bytes"]);
  EXPECT_GT(one["slabs"]["host"], 0);
  EXPECT_EQ(two["slabs"]["host"], 0);
  const auto rate = [](const Json& plan, const char* phase) {
    return plan["prediction"][phase]["tokens_per_second"].get<double>();
  };
  EXPECT_GT(rate(two, "decode"), 3.0 * rate(one, "decode"));
  EXPECT_GT(rate(two, "prefill"), 1.5 * rate(one, "prefill"));
  ExpectFailure(PlanFor({"--machine", "h200", "--layers-over", "33"}), 1,
                "--layers-over 33: this model has layers for 32 ranks at most");
  ExpectFailure(PlanFor({"--machine", "h200", "--layers-over", "2", "--tp", "2"}), 1,
                "--layers-over and --tp do not go together yet");
}

TEST_F(Cli, PlansSayWhereKeysCountThatAreScored) {
  const auto planned = [&](const Args& more) {
    Args args = {"--machine", "h200", "--policy", "infinitehip", "--reach", "on"};
    args.insert(args.end(), more.begin(), more.end());
    return RunJson(PlanFor(args));
  };
  const auto reason = [](const Json& json) { return json["reasons"].dump(); };
  const Json published = planned({});
  EXPECT_EQ(published["selection"]["hip_positions"], "published");
  EXPECT_THAT(reason(published), HasSubstr("positions of their chunks in the first three layers"));
  const Json one = planned({"--hip-positions", "one"});
  EXPECT_EQ(one["selection"]["hip_positions"], "one");
  EXPECT_THAT(reason(one), HasSubstr("chosen at one distance"));
  ExpectFailure(PlanFor({"--sparse", "--hip-positions", "chunk"}), 1,
                "--hip-positions: only infinitehip reads it");
}

// A selector that chooses in decode alone does not reach beyond the window of 16,384 tokens.
TEST_F(Cli, WarningsOfLongContextsSayWhatPlansDo) {
  const auto planned = [](const Args& more) {
    Args args = {"plan", kModel, "--context", "20000"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  EXPECT_THAT(Run(planned({"--sparse"})).err, HasSubstr("read chosen keys, moved together"));
  for (const char* selector : {"infllm", "oracle", "oracle-heads"}) {
    EXPECT_THAT(Run(planned({"--selector", selector})).err,
                HasSubstr("expect worse answers beyond token 16384"));
    ExpectFailure(
        planned({"--selector", selector, "--reach", "on"}), 1,
        std::string("--reach on: selector ") + selector + " chooses keys in decode alone");
  }
}

TEST_F(Cli, PlansRefuseWhatAModelHasNoUseOf) {
  const std::string windows = HEADWAY_SOURCE_DIR "/tests/golden/models/mistral-window";
  for (const Args& more : {Args{"--sparse"}, Args{"--policy", "infinitehip"}}) {
    Args args = {"plan", windows, "-c", "200"};
    args.insert(args.end(), more.begin(), more.end());
    ExpectFailure(args, 1, "--sparse: all layers of this model have sliding windows");
  }
  const std::string halves = HEADWAY_SOURCE_DIR "/bench/shapes/opt-6.7b.json";
  ExpectFailure({"plan", halves, "--gpu-layers", "0", "--weight-encoding", "lossless"}, 1,
                "--weight-encoding lossless takes matrices of bf16");
}

TEST_F(Cli, PlansReachBeyondNoWindowThatIsNotKnown) {
  Json config = Json::parse(ReadFile(HEADWAY_SOURCE_DIR "/bench/shapes/llama-3-8b.json"));
  config.erase("max_position_embeddings");
  const std::string file = dir_.File("config.json");
  WriteFile(file, config.dump());
  const Args plan = {"plan", file, "-c", "100000", "--sparse"};
  ExpectFailure(plan, 1, "--reach: this model's config.json does not say for how many tokens");
  Args off = plan;
  off.insert(off.end(), {"--reach", "off"});
  EXPECT_EQ(Run(off).status, 0);
}

TEST_F(Cli, PromptsThatCannotPassLayerByLayerAreNotAskedTo) {
  const auto refused = [&](Args more, const std::string& why) {
    more.insert(more.begin(), {"plan", kModel, "-c", "4096", "--prompt-order", "layers"});
    ExpectFailure(more, 1, "--prompt-order layers: " + why);
  };
  refused({"--tp", "2"}, "several ranks share the model");
  refused({"--evict", "snapkv"}, "tokens are let go of; leave out --evict");
  refused({"--hgca", "64"}, "salient tokens are chosen; leave out --hgca");
}

// Its stages before the last are for more tokens than a page has.
TEST_F(Cli, PlansSayThatAPageThatClosesRenewsChoices) {
  const Json flash = RunJson({"plan", kModel, "--policy", "infinitehip-flash"});
  EXPECT_EQ(flash["selection"]["candidates_refresh"], 64);
  EXPECT_THAT(flash["reasons"].dump(),
              HasSubstr("what is chosen for 96 tokens serves at most until a page of 64 closes"));
}

// Ranks wait for each other's sums, longer where these cross a network; each of four GPUs is faster
// than one, but not four times.
TEST_F(Cli, PlansForRanksOfSeveralMachines) {
  const auto decode = [&](const Args& more) {
    Args args = {"plan", "--context", "131072", "--machine", "h200"};
    args.insert(args.end(), kLlama.begin(), kLlama.end());
    args.insert(args.end(), more.begin(), more.end());
    const Json json = RunJson(args);
    return json["prediction"]["decode"]["tokens_per_second"].get<double>();
  };
  const double one = decode({}), four = decode({"--tp", "4"});
  const double apart = decode({"--tp", "4", "--nodes", "2"});
  EXPECT_GT(four, 1.5 * one);
  EXPECT_LT(four, 4.0 * one);
  EXPECT_LT(apart, four);
  ExpectFailure(PlanFor({"--machine", "h200", "--tp", "4", "--nodes", "3"}), 1,
                "--tp 4: 3 machines cannot have as many ranks each");
}

TEST_F(Cli, PlansSayWhatHeadsKeepOfPrompts) {
  const auto with = [](const Args& more) {
    Args args = {"plan", kModel, "-c", "16384"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  EXPECT_FALSE(RunJson(with({})).contains("eviction"));
  const Outcome outcome = Run(with({"--evict", "snapkv"}));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\neviction  snapkv: 1,024 of the prompt's tokens a head\n"
                                     "fit       sequences of 16,384 tokens: 4,096; with all"));
  const Json admitted = RunJson(with({"--evict", "snapkv", "--kv-memory", "512MiB"}))["eviction"];
  EXPECT_EQ(admitted["kept_bytes"], 8 << 20);
  EXPECT_EQ(admitted["sequence_bytes"], 48 << 20);
  EXPECT_EQ(admitted["whole_sequences"], 3);  // of 128 MiB, and buffers
  EXPECT_EQ(admitted["sequences"], 10);
  const Json json = RunJson(with({"--evict", "pyramidkv", "--evict-budget", "25%"}))["eviction"];
  EXPECT_EQ(json["method"], "pyramidkv");
  EXPECT_EQ(json["budget"], 0);
  EXPECT_EQ(json["share"], 0.25);
  EXPECT_EQ(json["window"], 32);
  EXPECT_EQ(json["pool"], 7);
  EXPECT_EQ(json["pooling"], "mean");
  EXPECT_EQ(json["steepness"], 20.0);
  EXPECT_EQ(json["room"], 4096);
  EXPECT_EQ(json["evicted"], "drop");
}

TEST_F(Cli, PlansSayWhatStaysInHostMemory) {
  const Args args = {"plan",   kModel,      "-c",     "16384",          "--evict",
                     "snapkv", "--evicted", "demote", "--evicted-keys", "512"};
  const Outcome outcome = Run(args);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("1,024 of the prompt's tokens a head; up to 512 of the others "
                                     "are read in a step, by summaries\n"));
  EXPECT_THAT(outcome.out, HasSubstr("KV: demoted tokens"));
  EXPECT_THAT(outcome.out, HasSubstr("120.0 MiB of host memory for"));
  const Json json = RunJson(args)["eviction"];
  EXPECT_EQ(json["evicted"], "demote");
  EXPECT_EQ(json["evicted_keys"], 512);
  EXPECT_EQ(json["evicted_refresh"], 1);
  // 15,360 tokens of 32 heads, 256 bytes each, and less than a line of each head more.
  EXPECT_GE(json["demoted_bytes"].get<int64_t>(), int64_t{15360} * 32 * 256);
  EXPECT_LE(json["demoted_bytes"].get<int64_t>(), int64_t{15360} * 32 * 256 + 33 * 256);
}

TEST_F(Cli, EvictionsAreRefusedByTheirFlags) {
  const auto refused = [this](const Args& more, const std::string& message) {
    Args args = {"run", kModel, "-pHello"};
    args.insert(args.end(), more.begin(), more.end());
    ExpectFailure(args, 1, message);
  };
  refused({"--evict-budget", "512"}, "--evict-budget needs --evict");
  refused({"--evict-room", "64"}, "--evict-room needs --evict");
  const auto evict = [&](Args more, const std::string& message) {
    more.insert(more.begin(), {"--evict", "snapkv"});
    refused(more, message);
  };
  evict({"--evict-budget", "many"}, "--evict-budget: 'many' is neither");
  evict({"--evict-budget", "64", "--evict-window", "64"},
        "--evict-budget 64 is not more than the 64 tokens of --evict-window");
  evict({"--evict-pool", "8"}, "--evict-pool: '8' is not an odd number");
  evict({"--evict-sink", "4"}, "--evict-sink: only streamingllm");
  evict({"--evict-safeguard", "0.5"}, "--evict-safeguard: only in ada-snapkv");
  evict({"--evict-steepness", "2"}, "--evict-steepness: only in pyramidkv");
  evict({"--sparse"}, "--evict and --sparse do not go together");
  evict({"--selector", "infinitehip"}, "--evict and --sparse do not go together");
  evict({"--head-pattern", "p"}, "--evict and --head-pattern do not go together");
  evict({"--policy", "kvpr"}, "--evict and --policy kvpr do not go together");
  evict({"--recompute", "0.5"}, "--evict and --recompute do not go together");
  ExpectFailure({"run", kModel, "-pHello", "--evict", "nokv"}, 2, "--evict: nokv not in {none,");
}

TEST_F(Cli, RefusesMachinesThatAreNone) {
  ExpectFailure(PlanFor({"--machine", "h2000"}), 1, "neither a file nor one of a100-40-pcie");
  WriteFile(dir_.File("bad.json"), "{\"format\": \"headway-machine\", \"version\": 0}");
  ExpectFailure(PlanFor({"--machine", dir_.File("bad.json")}), 1, "another version of the format");
  ExpectFailure({"run", kModel, "-pHello", "--machine", dir_.File("bad.json")}, 1, "bad.json");
  ExpectFailure({"run", kModel, "-pHello", "--machine", "h200"}, 1,
                "--machine: shipped profile h200 is of a GPU; give --device cuda");
  WriteFile(dir_.File("empty.json"), "");
  ExpectFailure({"bench", "prefill", kModel, "--machine", dir_.File("empty.json")}, 1,
                "is not JSON");
  ExpectFailure(PlanFor({"--machine", "rtx-4090", "--host-memory", "1GiB"}), 1,
                "or a context of at most");
  ExpectFailure({"plan"}, 2, "MODEL is missing");
}

TEST_F(Cli, ProbesOnceAndPlansByIt) {
  const std::string cache = dir_.File("cache");
  setenv("XDG_CACHE_HOME", cache.c_str(), 1);
  const Outcome probe =
      Run({"probe", "-t", "2", "--disk-path", dir_.path(), "-o", dir_.File("here.json")});
  EXPECT_EQ(probe.status, 0) << probe.err;
  for (const char* text : {"matrix product", "host memory read", "disk read", "kept in "}) {
    EXPECT_THAT(probe.out, HasSubstr(text));
  }
  const Args plan = {"plan", kModel, "-t", "2"};
  Json json = RunJson(plan);
  EXPECT_EQ(json["prediction"]["origin"], "headway probe");
  // Another number of threads is other hardware.
  EXPECT_EQ(RunJson({"plan", kModel, "-t", "1"})["prediction"]["origin"], "quick measurement");
  EXPECT_EQ(RunJson({"plan", kModel, "--machine", dir_.File("here.json")})["prediction"]["origin"],
            "profile " + dir_.File("here.json"));
  // A damaged cache is said and not used.
  const std::string kept = probe.out.substr(probe.out.find("kept in ") + 8);
  WriteFile(kept.substr(0, kept.find('\n')), "{\"format\": ");
  const Outcome damaged = Run(plan);
  EXPECT_EQ(damaged.status, 0);
  EXPECT_THAT(damaged.err, HasSubstr("is not JSON; headway probe measures anew"));
  EXPECT_THAT(damaged.out, HasSubstr("quick measurement"));
  // A place that takes no files is no error.
  setenv("XDG_CACHE_HOME", "/proc/nothing", 1);
  EXPECT_EQ(Run({"run", kModel, "-pHello", "-n", "1"}).status, 0);
  unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace headway
