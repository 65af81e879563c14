#include "engine/eviction_settings.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "engine/settings.h"

namespace headway {
namespace {

using kv::EvictionMethod;
using kv::EvictionPolicy;

constexpr const char* kNames[] = {"streamingllm",
                                  "snapkv",
                                  "pyramidkv",
                                  "ada-snapkv",
                                  "ada-pyramidkv",
                                  "critical-snapkv",
                                  "critical-ada-snapkv",
                                  "defensivekv",
                                  "expectedattention",
                                  "h2o",
                                  "headkv",
                                  "kvzip"};

EngineOptions For(const std::string& method) {
  EngineOptions options;
  options.evict = method;
  if (method == "headkv") options.evict_profile = "p.json";
  return options;
}

// What is wrong with the method once the other options are changed; empty: nothing.
std::string Wrong(
    const std::string& method,
    const std::function<void(EngineOptions&)>& change = [](EngineOptions&) {}) {
  EngineOptions options = For(method);
  change(options);
  const Result<Settings> settings = ReadSettings(options);
  if (settings.ok()) return "";
  EXPECT_EQ(settings.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(settings.status().message().find('\n'), std::string::npos);
  return settings.status().message();
}

EvictionPolicy Read(
    const std::string& method,
    const std::function<void(EngineOptions&)>& change = [](EngineOptions&) {}) {
  EngineOptions options = For(method);
  change(options);
  const Result<Settings> settings = ReadSettings(options);
  EXPECT_TRUE(settings.ok()) << settings.status().message();
  return settings.ok() ? settings->eviction : EvictionPolicy();
}

TEST(EvictionSettings, EveryMethodHasTheDefaultsOfItsPolicy) {
  EXPECT_FALSE(ReadSettings({})->eviction.evicts());
  for (const char* name : kNames) {
    const EvictionPolicy policy = Read(name);
    EXPECT_STREQ(kv::EvictionName(policy.method), name);
    EXPECT_EQ(policy.budget, 1024);
    EXPECT_EQ(policy.share, 0.0);
    EXPECT_EQ(policy.window, policy.observes() ? 32 : 1);
    EXPECT_EQ(policy.pool, policy.largest() ? 5 : policy.observes() ? 7 : 1);
    EXPECT_EQ(policy.pooling, EvictionPolicy::Pool::kMean);
    EXPECT_EQ(policy.sink, policy.adds_up() ? 0 : 4);
    EXPECT_EQ(policy.future, 512);
    EXPECT_DOUBLE_EQ(policy.safeguard, policy.profiled ? 1.0 / 6.0 : 0.2);
    EXPECT_EQ(policy.steepness, 20.0);
    EXPECT_EQ(policy.room, 4096);
    EXPECT_EQ(policy.profiled, policy.method == EvictionMethod::kHeadKv);
  }
}

TEST(EvictionSettings, WhatIsGivenIsThere) {
  const EvictionPolicy policy = Read("ada-pyramidkv", [](EngineOptions& o) {
    o.evict_budget = "12.5%";
    o.evict_window = 256;
    o.evict_pool = "5:max";
    o.evict_safeguard = 0.0;
    o.evict_steepness = 1.0;
    o.evict_room = 1;
  });
  EXPECT_EQ(policy.method, EvictionMethod::kAdaPyramid);
  EXPECT_EQ(policy.budget, 0);
  EXPECT_EQ(policy.share, 0.125);
  EXPECT_EQ(policy.window, 256);
  EXPECT_EQ(policy.pool, 5);
  EXPECT_EQ(policy.pooling, EvictionPolicy::Pool::kMax);
  EXPECT_EQ(policy.safeguard, 0.0);
  EXPECT_EQ(policy.steepness, 1.0);
  EXPECT_EQ(policy.room, 1);
  const EvictionPolicy streaming = Read("streamingllm", [](EngineOptions& o) {
    o.evict_budget = "8";
    o.evict_sink = 0;
  });
  EXPECT_EQ(streaming.budget, 8);
  EXPECT_EQ(streaming.sink, 0);
  const EvictionPolicy mean =
      Read("snapkv", [](EngineOptions& o) { o.evict_budget = "100%", o.evict_pool = "1"; });
  EXPECT_EQ(mean.share, 1.0);
  EXPECT_EQ(mean.pool, 1);
  EXPECT_EQ(mean.pooling, EvictionPolicy::Pool::kMean);
}

TEST(EvictionSettings, MethodsAreRefusedByName) {
  const std::string unknown = Wrong("snap");
  EXPECT_NE(unknown.find("evict: "), std::string::npos) << unknown;
  EXPECT_NE(unknown.find("'snap'"), std::string::npos) << unknown;
  for (const char* name : kNames) EXPECT_NE(unknown.find(name), std::string::npos) << unknown;
  EXPECT_NE(Wrong(""), "");
}

TEST(EvictionSettings, NumbersThatMakeNoSenseAreRefusedByName) {
  for (const char* budget : {"0", "-5", "1k", "1024 ", "0%", "101%", "-1%", "nan%", "%", "25 %",
                             "inf%", "0x10", "1.5", "2000000000", "99999999999999999999"}) {
    EXPECT_EQ(Wrong("snapkv", [&](EngineOptions& o) { o.evict_budget = budget; }),
              "evict_budget: '" + std::string(budget) +
                  "' is neither a number of tokens from 1 on nor a share of the prompt such as "
                  "25%");
  }
  for (const char* pool :
       {"0", "-1", "6", "257", "7:", "7:min", ":mean", "7:mean:max", "x", "7 "}) {
    EXPECT_EQ(Wrong("snapkv", [&](EngineOptions& o) { o.evict_pool = pool; }),
              "evict_pool: '" + std::string(pool) +
                  "' is not an odd number of neighbours up to 255, which :mean or :max may follow");
  }
  for (const int64_t window : {int64_t{0}, int64_t{-2}, int64_t{257}, kNoLimit}) {
    EXPECT_EQ(Wrong("snapkv", [&](EngineOptions& o) { o.evict_window = window; }),
              "evict_window is 1 to 256 tokens");
  }
  for (const int64_t sink : {int64_t{-2}, kNoLimit}) {
    EXPECT_EQ(Wrong("streamingllm", [&](EngineOptions& o) { o.evict_sink = sink; }),
              "evict_sink is 0 tokens or more, as many as a sequence may have");
  }
  for (const double safeguard : {-0.1, 1.1, std::nan("")}) {
    EXPECT_EQ(Wrong("ada-snapkv", [&](EngineOptions& o) { o.evict_safeguard = safeguard; }),
              "evict_safeguard is a share of a head's budget, between 0 and 1");
  }
  for (const double steepness : {0.0, 0.9, 1001.0, std::nan("")}) {
    EXPECT_EQ(Wrong("pyramidkv", [&](EngineOptions& o) { o.evict_steepness = steepness; }),
              "evict_steepness is between 1, for even budgets, and 1000");
  }
  for (const int64_t future : {int64_t{0}, int64_t{-2}, int64_t{65537}}) {
    EXPECT_EQ(Wrong("expectedattention", [&](EngineOptions& o) { o.evict_future = future; }),
              "evict_future is 1 to 65536 positions");
  }
  for (const int64_t room : {int64_t{0}, int64_t{-2}, kNoLimit}) {
    EXPECT_EQ(Wrong("snapkv", [&](EngineOptions& o) { o.evict_room = room; }),
              "evict_room is 1 token or more, as many as a sequence may have");
  }
}

TEST(EvictionSettings, ABudgetIsMoreThanWhatIsKeptAnyway) {
  EXPECT_EQ(Wrong("snapkv", [](EngineOptions& o) { o.evict_budget = "33"; }), "");
  EXPECT_EQ(Wrong("snapkv", [](EngineOptions& o) { o.evict_budget = "32"; }),
            "evict_budget 32 is not more than the 32 tokens of evict_window");
  EXPECT_EQ(
      Wrong("defensivekv", [](EngineOptions& o) { o.evict_budget = "64", o.evict_window = 128; }),
      "evict_budget 64 is not more than the 128 tokens of evict_window");
  EXPECT_EQ(Wrong("expectedattention", [](EngineOptions& o) { o.evict_budget = "4"; }),
            "evict_budget 4 is not more than the 4 tokens of evict_sink");
  EXPECT_EQ(Wrong("streamingllm", [](EngineOptions& o) { o.evict_budget = "4"; }),
            "evict_budget 4 is not more than the 4 tokens of evict_sink");
}

TEST(EvictionSettings, WhatAMethodDoesNotReadIsRefused) {
  const std::pair<const char*, std::function<void(EngineOptions&)>> all[] = {
      {"evict_budget", [](EngineOptions& o) { o.evict_budget = "1024"; }},
      {"evict_window", [](EngineOptions& o) { o.evict_window = 32; }},
      {"evict_pool", [](EngineOptions& o) { o.evict_pool = "7:mean"; }},
      {"evict_sink", [](EngineOptions& o) { o.evict_sink = 4; }},
      {"evict_safeguard", [](EngineOptions& o) { o.evict_safeguard = 0.2; }},
      {"evict_steepness", [](EngineOptions& o) { o.evict_steepness = 20.0; }},
      {"evict_future", [](EngineOptions& o) { o.evict_future = 512; }},
      {"evict_profile", [](EngineOptions& o) { o.evict_profile = "p.json"; }},
      {"evict_room", [](EngineOptions& o) { o.evict_room = 4096; }},
  };
  for (const auto& [name, give] : all) {
    EXPECT_EQ(Wrong("none", give), std::string(name) + " needs evict");
  }
  const auto refusals = [&all](const std::string& method) {
    std::string refused;
    for (const auto& [name, give] : all) {
      const std::string wrong = Wrong(method, give);
      EXPECT_TRUE(wrong.empty() || wrong.starts_with(name + std::string(": "))) << wrong;
      if (!wrong.empty()) refused += std::string(refused.empty() ? "" : " ") + name;
    }
    return refused;
  };
  const std::string shared = "evict_sink evict_safeguard evict_steepness evict_future";
  EXPECT_EQ(refusals("streamingllm"),
            "evict_window evict_pool evict_safeguard evict_steepness evict_future");
  EXPECT_EQ(refusals("expectedattention"),
            "evict_window evict_pool evict_safeguard evict_steepness");
  EXPECT_EQ(refusals("h2o"), "evict_window evict_pool " + shared);
  EXPECT_EQ(refusals("snapkv"), shared);
  EXPECT_EQ(refusals("critical-snapkv"), shared);
  EXPECT_EQ(refusals("defensivekv"), shared);
  EXPECT_EQ(refusals("pyramidkv"), "evict_sink evict_safeguard evict_future");
  EXPECT_EQ(refusals("ada-snapkv"), "evict_sink evict_steepness evict_future");
  EXPECT_EQ(refusals("critical-ada-snapkv"), "evict_sink evict_steepness evict_future");
  EXPECT_EQ(refusals("ada-pyramidkv"), "evict_sink evict_future");
  EXPECT_EQ(refusals("headkv"), "evict_sink evict_steepness evict_future");
  EXPECT_EQ(refusals("kvzip"),
            "evict_window evict_pool evict_safeguard evict_steepness evict_future");
}

TEST(EvictionSettings, AProfileTakesThePlaceOfAMethodsBudgets) {
  const auto profile = [](EngineOptions& o) { o.evict_profile = "p.json"; };
  EXPECT_TRUE(Read("ada-pyramidkv", profile).profiled);
  EXPECT_FALSE(Read("ada-pyramidkv", profile).uneven());
  EXPECT_FALSE(Read("ada-pyramidkv", profile).falls());
  EXPECT_EQ(Wrong("ada-snapkv",
                  [](EngineOptions& o) { o.evict_profile = "p.json", o.evict_safeguard = 0.5; }),
            "evict_safeguard: the profile says what heads have");
  EXPECT_EQ(Wrong("pyramidkv",
                  [](EngineOptions& o) { o.evict_profile = "p.json", o.evict_steepness = 5.0; }),
            "evict_steepness: the profile says what layers have");
  EXPECT_EQ(Wrong("headkv", [](EngineOptions& o) { o.evict_profile = ""; }),
            "evict headkv needs evict_profile");
}

TEST(EvictionSettings, WhatDoesNotGoTogetherIsRefused) {
  for (const char* selector : {"pages", "infinitehip", "oracle"}) {
    EXPECT_EQ(Wrong("snapkv", [&](EngineOptions& o) { o.selector = selector; }),
              "evict and selector do not go together");
  }
  EXPECT_EQ(Wrong("snapkv", [](EngineOptions& o) { o.head_pattern = "p.tsv"; }),
            "evict and head_pattern do not go together");
  EXPECT_EQ(Wrong("snapkv", [](EngineOptions& o) { o.policy = "kvpr"; }),
            "evict and policy kvpr do not go together");
  EXPECT_EQ(Wrong("snapkv", [](EngineOptions& o) { o.recompute_share = 0.5; }),
            "evict and recompute_share do not go together");
  // What is kept may be encoded, and other policies recompute nothing.
  EXPECT_EQ(Wrong("snapkv", [](EngineOptions& o) { o.kv_encoding = "int4"; }), "");
  EXPECT_EQ(Wrong("snapkv", [](EngineOptions& o) { o.policy = "layerwise"; }), "");
}

TEST(EvictionSettings, WhatIsNotKeptIsDroppedOrDemoted) {
  const auto demote = [](EngineOptions& o) { o.evicted = "demote"; };
  EXPECT_FALSE(Read("snapkv").demotion.demotes());
  EXPECT_EQ(Read("snapkv", demote).demotion.keys, 512);
  EXPECT_EQ(Read("snapkv", demote).demotion.refresh, 1);
  const EvictionPolicy policy = Read("snapkv", [](EngineOptions& o) {
    o.evicted = "demote";
    o.evicted_keys = 7;
    o.evicted_refresh = 5;
  });
  EXPECT_EQ(policy.demotion.keys, 7);
  EXPECT_EQ(policy.demotion.refresh, 5);
  EXPECT_EQ(Wrong("none", demote), "evicted needs evict");
  EXPECT_EQ(Wrong("snapkv", [](EngineOptions& o) { o.evicted = "keep"; }),
            "evicted: 'keep' is neither drop nor demote");
  EXPECT_EQ(Wrong("snapkv", [](EngineOptions& o) { o.evicted_keys = 64; }),
            "evicted_keys needs evicted demote");
  EXPECT_EQ(Wrong("snapkv", [](EngineOptions& o) { o.evicted_refresh = 2; }),
            "evicted_refresh needs evicted demote");
  const auto demoting = [](auto change) {
    return Wrong("snapkv", [&](EngineOptions& o) {
      o.evicted = "demote";
      change(o);
    });
  };
  EXPECT_EQ(demoting([](EngineOptions& o) { o.evicted_keys = 0; }),
            "evicted_keys is 1 token or more, as many as a sequence may have");
  EXPECT_EQ(demoting([](EngineOptions& o) { o.evicted_refresh = 0; }),
            "evicted_refresh is 1 step or more");
  EXPECT_EQ(demoting([](EngineOptions& o) { o.page_slots = 8; }),
            "evicted demote: a page of 8 tokens cannot be cut into blocks of 16");
  EXPECT_EQ(demoting([](EngineOptions& o) { o.session = "s"; }),
            "evicted demote and session do not go together yet");
  EXPECT_EQ(demoting([](EngineOptions& o) { o.kv_encoding = "int8"; }), "");
  EXPECT_EQ(demoting([](EngineOptions& o) { o.kv_encoding = "lossless"; }),
            "evicted demote and kv_encoding lossless do not go together yet");
}

TEST(EvictionSettings, WordsNameWhatAMethodReads) {
  EXPECT_EQ(EvictionWords(Read("streamingllm")), "streamingllm (budget 1024, sink 4)");
  EXPECT_EQ(EvictionWords(Read("snapkv",
                               [](EngineOptions& o) {
                                 o.evict_pool = "31:max";
                                 o.evict_room = 7;
                               })),
            "snapkv (budget 1024, window 32, pool 31:max)");
  EXPECT_EQ(
      EvictionWords(Read("ada-pyramidkv", [](EngineOptions& o) { o.evict_budget = "12.5%"; })),
      "ada-pyramidkv (budget 12.5%, window 32, pool 7:mean, safeguard 0.2, steepness 20)");
  EvictionPolicy policy = Read("headkv");
  policy.shares = {0.5, 1.5};
  EXPECT_EQ(EvictionWords(policy),
            "headkv (budget 1024, window 32, pool 7:mean, safeguard 0.166667, profile "
            "2736e7d4e53131fd)");
  policy.shares = {0.75, 1.25};
  EXPECT_EQ(EvictionWords(policy).find("2736e7d4e53131fd"), std::string::npos);
}

TEST(EvictionSettings, NothingIsRecomputedUnasked) {
  EngineOptions options;
  EXPECT_FALSE(ReadSettings(options)->recompute_share.has_value());
  options.evict = "snapkv";
  EXPECT_EQ(ReadSettings(options)->recompute_share, 0.0);
}

TEST(EvictionSettings, ModelsWithSlidingWindowsAreRefused) {
  ModelConfig config;
  config.windows = {0, 0, 0};
  EvictionPolicy policy;
  policy.method = EvictionMethod::kSnap;
  EXPECT_TRUE(CheckEviction(policy, config).ok());
  config.windows[1] = 512;
  const Status refused = CheckEviction(policy, config);
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_EQ(refused.message(), "evict snapkv: this model's layers have sliding windows");
  policy.method = EvictionMethod::kNone;
  EXPECT_TRUE(CheckEviction(policy, config).ok());
  config.windows[1] = 0;
  config.learned_positions = true;
  policy.method = EvictionMethod::kZip;
  EXPECT_EQ(CheckEviction(policy, config).code(), StatusCode::kUnsupported);
  config.windows[1] = 0;
  config.learned_positions = true;
  policy.method = EvictionMethod::kZip;
  EXPECT_EQ(CheckEviction(policy, config).code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace headway
