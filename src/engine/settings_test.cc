#include "engine/settings.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>

namespace headway {
namespace {

// What is wrong with the default options once they are changed; empty: nothing.
std::string Wrong(const std::function<void(EngineOptions&)>& change) {
  EngineOptions options;
  change(options);
  const Result<Settings> settings = ReadSettings(options);
  if (settings.ok()) return "";
  EXPECT_EQ(settings.status().code(), StatusCode::kInvalidArgument);
  return settings.status().message();
}

TEST(Settings, WhatIsLeftToTheEngineIsAbsent) {
  const Result<Settings> read = ReadSettings({});
  ASSERT_TRUE(read.ok()) << read.status().message();
  const Settings& settings = *read;
  EXPECT_FALSE(settings.target.isa.has_value() || settings.target.threads.has_value());
  EXPECT_FALSE(settings.memory.gpu.has_value());
  EXPECT_FALSE(settings.gpu_layers.has_value());
  EXPECT_EQ(settings.policy, Policy::kAuto);
  EXPECT_FALSE(settings.cut.chunk.has_value() || settings.cut.head_group.has_value() ||
               settings.cut.segment.has_value() || settings.cut.staging_slabs.has_value());
  EXPECT_EQ(settings.cut.page_slots, kDefaultPageSlots);
  EXPECT_EQ(std::get<Encoding>(settings.encoding), Encoding::kNone);
  EXPECT_FALSE(settings.host_share.has_value() || settings.recompute_share.has_value());
  EXPECT_FALSE(settings.streaming_heads.has_value() || settings.machine.has_value() ||
               settings.session.has_value() || settings.trace.has_value());
  EXPECT_EQ(settings.DiskLimit(), 0);
}

TEST(Settings, SelectionIsRead) {
  EngineOptions options;
  EXPECT_FALSE(ReadSettings(options)->selection.selects());
  options.selector = "pages";
  kv::SelectionPolicy policy = ReadSettings(options)->selection;
  EXPECT_EQ(policy.summary.kind, SummaryKind::kMoments);
  EXPECT_EQ(policy.summary.block_slots, 16);
  EXPECT_EQ(policy.share, BudgetShare::kLayer);
  EXPECT_EQ(policy.keys, 2048);
  EXPECT_FALSE(policy.summary.sketched());
  EXPECT_FALSE(policy.looks_twice());
  EXPECT_EQ(policy.KeysAt(1 << 20), 2048);
  options.sparse_looks = 2;
  policy = ReadSettings(options)->selection;
  EXPECT_TRUE(policy.summary.sketched());
  EXPECT_EQ(policy.CandidatesAt(1 << 20), 8 * 2048);
  options.sparse_share = 0.0625;
  EXPECT_EQ(ReadSettings(options)->selection.KeysAt(1 << 20), 1 << 16);
  EXPECT_EQ(ReadSettings(options)->selection.KeysAt(1 << 10), 2048);
  options.sparse_share = 0.0;
  options.sparse_looks = 1;
  options.sparse_candidates_refresh = 8;
  policy = ReadSettings(options)->selection;
  EXPECT_FALSE(policy.summary.sketched());
  EXPECT_EQ(policy.candidates_refresh, 8);
  EXPECT_EQ(policy.CandidatesAt(1 << 20), 8 * 2048);
  options.sparse_candidates_refresh = 1;
  options.sparse_levels = 2;
  policy = ReadSettings(options)->selection;
  EXPECT_TRUE(policy.searches_pages());
  EXPECT_EQ(policy.search_run(), kDefaultPageSlots / 16);
  EXPECT_EQ(policy.CandidatesAt(1 << 20), 8 * 2048);
  options.sparse_levels = 1;
  options.selector = "quest";
  policy = ReadSettings(options)->selection;
  EXPECT_EQ(policy.summary.kind, SummaryKind::kBoxes);
  EXPECT_EQ(policy.share, BudgetShare::kHead);
  for (const char* name : {"pages", "quest", "oracle", "oracle-heads", "infllm", "infinitehip"}) {
    options.selector = name;
    policy = ReadSettings(options)->selection;
    EXPECT_STREQ(SelectorName(policy), name);
    // Beyond the window each head has a budget of its own.
    policy.share = BudgetShare::kHead;
    EXPECT_STREQ(SelectorName(policy), name == std::string("oracle") ? "oracle-heads" : name);
    const int block = options.selector == "infinitehip" ? 8
                      : options.selector == "infllm"    ? 64
                                                        : 16;
    EXPECT_EQ(policy.summary.block_slots, block);
    EXPECT_EQ(policy.outer_keys, options.selector == "infinitehip" ? 4096 : 0);
  }
}

TEST(Settings, KeysOfStagesHavePublishedPositionsOrOthers) {
  EngineOptions options;
  EXPECT_STREQ(HipPositionsName(ReadSettings(options)->selection), "");
  options.selector = "infinitehip";
  EXPECT_STREQ(HipPositionsName(ReadSettings(options)->selection), "published");
  for (const char* name : {"published", "chunk", "relative", "one"}) {
    options.hip_positions = name;
    EXPECT_STREQ(HipPositionsName(ReadSettings(options)->selection), name);
  }
  const auto wrong = [](const char* selector, const char* positions, const char* reach) {
    return Wrong([&](EngineOptions& o) {
      o.selector = selector, o.hip_positions = positions, o.reach = reach;
    });
  };
  EXPECT_EQ(wrong("infinitehip", "two", "auto"),
            "hip_positions two: published, chunk, relative and one are known");
  for (const char* selector : {"none", "pages"}) {
    EXPECT_EQ(
        wrong(selector, "chunk", "auto"),
        "hip_positions: only infinitehip reads it; leave it out, or choose infinitehip as the "
        "selector");
  }
  EXPECT_EQ(wrong("infinitehip", "one", "off"),
            "hip_positions is for contexts beyond the trained window; leave out reach off");
}

// The same where keys are chosen.
std::string WrongSelecting(const std::function<void(EngineOptions&)>& change) {
  return Wrong([&](EngineOptions& changed) {
    changed.selector = "pages";
    change(changed);
  });
}

TEST(Settings, WhereSketchesLieIsRead) {
  EngineOptions options;
  options.selector = "pages";
  options.sparse_sketches = "host";
  EXPECT_EQ(ReadSettings(options).status().message(),
            "sparse_sketches says where the bits of keys lie that a second look reads; give "
            "sparse_looks 2, or leave it out");
  options.sparse_looks = 2;
  EXPECT_EQ(ReadSettings(options)->selection.sketches, Tier::kHost);
  options.sparse_sketches = "device";
  EXPECT_EQ(ReadSettings(options)->selection.sketches, Tier::kDevice);
  options.sparse_sketches = "auto";
  EXPECT_FALSE(ReadSettings(options)->selection.sketches.has_value());
  options.sparse_sketches = "disk";
  EXPECT_EQ(ReadSettings(options).status().message(),
            "sparse_sketches: 'disk' is none of auto, device, host");
}

TEST(Settings, SelectionsThatCannotBeAreRefused) {
  const auto& wrong = WrongSelecting;
  EXPECT_EQ(
      Wrong([](EngineOptions& o) { o.selector = "best"; }),
      "selector best: there are none, pages, quest, oracle, oracle-heads, infllm, infinitehip");
  EXPECT_EQ(wrong([](EngineOptions& o) { o.sparse_keys = 0; }),
            "sparse_keys is at least 1, and not more than the tokens that a sequence may have");
  EXPECT_NE(wrong([](EngineOptions& o) { o.sparse_keys = kNoLimit; }).find("sparse_keys is"),
            std::string::npos);
  EXPECT_NE(wrong([](EngineOptions& o) { o.sparse_sink = -1; }).find("sparse_sink is at least 0"),
            std::string::npos);
  EXPECT_NE(wrong([](EngineOptions& o) { o.sparse_recent = 0; }).find("sparse_recent is"),
            std::string::npos);
  EXPECT_NE(wrong([](EngineOptions& o) { o.sparse_block = 24; }).find("blocks of 24"),
            std::string::npos);
  EXPECT_NE(wrong([](EngineOptions& o) { o.sparse_refresh = 0; }).find("sparse_refresh is"),
            std::string::npos);
  EXPECT_NE(wrong([](EngineOptions& o) {
              o.sparse_candidates_refresh = 0;
            }).find("sparse_candidates_refresh is at least 1"),
            std::string::npos);
  EXPECT_NE(wrong([](EngineOptions& o) {
              o.selector = "oracle";
              o.sparse_candidates_refresh = 2;
            }).find("only pages, quest and infllm"),
            std::string::npos);
  EXPECT_EQ(wrong([](EngineOptions& o) { o.sparse_looks = 3; }), "sparse_looks is 1 or 2");
  const auto levels = [](EngineOptions& o) { o.sparse_levels = 2; };
  EXPECT_NE(wrong([](EngineOptions& o) { o.sparse_levels = 3; }).find("sparse_levels is 1 or 2"),
            std::string::npos);
  EXPECT_NE(wrong([&](EngineOptions& o) { levels(o), o.selector = "oracle"; }).find("need pages"),
            std::string::npos);
  EXPECT_NE(wrong([&](EngineOptions& o) {
              levels(o), o.sparse_block = kDefaultPageSlots;
            }).find("smaller than pages"),
            std::string::npos);
  EXPECT_NE(wrong([&](EngineOptions& o) { levels(o), o.sparse_epsilon = 0.1; }).find("one look"),
            std::string::npos);
  EXPECT_NE(wrong([&](EngineOptions& o) { levels(o), o.selector = "none"; }), "");
  EXPECT_NE(wrong([](EngineOptions& o) { o.sparse_share = 1.5; }).find("between 0 and 1"),
            std::string::npos);
  EXPECT_EQ(wrong([](EngineOptions& o) { o.sparse_top_p = 1.01; }),
            "sparse_top_p is a share of the attention, between 0 and 1");
  const auto top_p = [](EngineOptions& o) { o.sparse_top_p = 0.9; };
  EXPECT_NE(wrong([&](EngineOptions& o) { top_p(o), o.sparse_least = 2049; }).find("2048"),
            std::string::npos);
  EXPECT_NE(wrong([&](EngineOptions& o) { top_p(o), o.sparse_least = 0; }).find("at least 1"),
            std::string::npos);
  EXPECT_NE(wrong([&](EngineOptions& o) {
              top_p(o), o.selector = "infinitehip";
            }).find("infinitehip has not"),
            std::string::npos);
  const auto looks_twice = [](EngineOptions& o) { o.sparse_looks = 2; };
  EXPECT_NE(wrong([&](EngineOptions& o) { looks_twice(o), o.sparse_block = 4; }), "");
  EXPECT_NE(wrong([&](EngineOptions& o) { looks_twice(o), o.selector = "quest"; }), "");
}

TEST(Settings, PromptsAndReachesThatCannotBeAreRefused) {
  const auto& wrong = WrongSelecting;
  for (const std::string selector : {"infllm", "oracle", "oracle-heads"}) {
    const std::string refused = "selector " + selector +
                                " chooses keys in decode alone; pages, quest and infinitehip do " +
                                "in prompts and beyond the trained window, too";
    EXPECT_EQ(wrong([&](EngineOptions& o) { o.selector = selector, o.reach = "on"; }),
              "reach on: " + refused);
    EXPECT_EQ(wrong([&](EngineOptions& o) { o.selector = selector, o.sparse_prefill = true; }),
              refused);
    EXPECT_EQ(wrong([&](EngineOptions& o) { o.selector = selector; }), "");
  }
  EXPECT_EQ(Wrong([](EngineOptions& o) { o.reach = "far"; }),
            "reach far: auto, on and off are known");
  EXPECT_EQ(wrong([](EngineOptions& o) { o.reach_positions = "here"; }),
            "positions here of far keys: streamingllm and infllm are known");
  EXPECT_NE(Wrong([](EngineOptions& o) { o.reach_positions = "infllm"; }).find("need selector"),
            std::string::npos);
  EXPECT_NE(Wrong([](EngineOptions& o) { o.reach = "on"; }).find("need selector"),
            std::string::npos);
  EXPECT_NE(Wrong([](EngineOptions& o) { o.sparse_prefill = true; }).find("need selector"),
            std::string::npos);
  EXPECT_EQ(wrong([](EngineOptions& o) { o.sparse_dense_every = 64; }),
            "sparse_dense_every is for prompts that choose keys (sparse prefill)");
  EXPECT_EQ(wrong([](EngineOptions& o) { o.sparse_prefill = true, o.sparse_dense_every = -1; }),
            "sparse_dense_every is a number of tokens, or 0");
  EXPECT_NE(Wrong([](EngineOptions& o) { o.sparse_dense_every = 64; }).find("need selector"),
            std::string::npos);
  EXPECT_NE(wrong([](EngineOptions& o) { o.head_pattern = "p"; }).find("head_pattern"),
            std::string::npos);
}

TEST(Settings, BoundsThatCannotBeAreRefused) {
  const auto& wrong = WrongSelecting;
  const auto bounded = [](EngineOptions& o) { o.sparse_epsilon = 0.1; };
  EXPECT_NE(wrong([](EngineOptions& o) { o.sparse_epsilon = 1.0; }).find("less than 1"),
            std::string::npos);
  for (const double delta : {0.0, 0.6}) {
    EXPECT_NE(
        wrong([&](EngineOptions& o) { bounded(o), o.sparse_delta = delta; }).find("at most 0.5"),
        std::string::npos);
  }
  EXPECT_NE(wrong([&](EngineOptions& o) { bounded(o), o.selector = "oracle"; }).find("summaries"),
            std::string::npos);
  EXPECT_EQ(wrong([&](EngineOptions& o) { bounded(o), o.sparse_top_p = 0.9; }),
            "give sparse_epsilon or sparse_top_p, not both");
  EXPECT_NE(wrong([&](EngineOptions& o) { bounded(o), o.sparse_looks = 2; }).find("one look"),
            std::string::npos);
  EXPECT_NE(wrong([&](EngineOptions& o) { bounded(o), o.sparse_refresh = 2; }).find("each token"),
            std::string::npos);
  EXPECT_NE(wrong([&](EngineOptions& o) { bounded(o), o.sparse_prefill = true; }).find("decode"),
            std::string::npos);
}

// Each by its name, rather than left to count for nothing.
TEST(Settings, PartsOfSelectionsThatNothingReadsAreRefused) {
  using Change = std::function<void(EngineOptions&)>;
  const std::pair<std::string, Change> parts[] = {
      {"sparse_keys", [](EngineOptions& o) { o.sparse_keys = 512; }},
      {"sparse_sink", [](EngineOptions& o) { o.sparse_sink = 0; }},
      {"sparse_recent", [](EngineOptions& o) { o.sparse_recent = 64; }},
      {"sparse_share", [](EngineOptions& o) { o.sparse_share = 0.1; }},
      {"sparse_top_p", [](EngineOptions& o) { o.sparse_top_p = 0.9; }},
      {"sparse_least", [](EngineOptions& o) { o.sparse_least = 32; }},
      {"sparse_block", [](EngineOptions& o) { o.sparse_block = 8; }},
      {"sparse_looks", [](EngineOptions& o) { o.sparse_looks = 2; }},
      {"sparse_sketches", [](EngineOptions& o) { o.sparse_sketches = "host"; }},
      {"sparse_levels", [](EngineOptions& o) { o.sparse_levels = 2; }},
      {"sparse_refresh", [](EngineOptions& o) { o.sparse_refresh = 4; }},
      {"sparse_candidates_refresh", [](EngineOptions& o) { o.sparse_candidates_refresh = 4; }},
      {"sparse_from", [](EngineOptions& o) { o.sparse_from = 0; }},
      {"sparse_epsilon", [](EngineOptions& o) { o.sparse_epsilon = 0.1; }},
      {"sparse_delta", [](EngineOptions& o) { o.sparse_delta = 0.1; }},
      {"sparse_cache", [](EngineOptions& o) { o.sparse_cache = 0; }}};
  for (const auto& [name, change] : parts) {
    EXPECT_EQ(Wrong(change), name + " needs selector or draft sparse");
    // Drafts by keys that are chosen read them.
    const std::string drafting = Wrong([&](EngineOptions& o) { o.draft = "sparse", change(o); });
    EXPECT_EQ(drafting.find("needs selector"), std::string::npos) << drafting;
  }
  const std::pair<std::string, Change> of_stages[] = {
      {"hip_stages", [](EngineOptions& o) { o.hip_stages = "64:1024"; }},
      {"hip_refresh", [](EngineOptions& o) { o.hip_refresh = "16,8"; }},
      {"hip_outer_keys", [](EngineOptions& o) { o.hip_outer_keys = 0; }},
      {"hip_positions", [](EngineOptions& o) { o.hip_positions = "one"; }}};
  for (const auto& [name, change] : of_stages) {
    const std::string refused =
        name + ": only infinitehip reads it; leave it out, or choose infinitehip as the selector";
    EXPECT_EQ(Wrong(change), refused);
    EXPECT_EQ(WrongSelecting(change), refused);
    EXPECT_EQ(Wrong([&](EngineOptions& o) { o.draft = "sparse", change(o); }), refused);
  }
  EXPECT_EQ(WrongSelecting([](EngineOptions& o) { o.sparse_least = 32; }),
            "sparse_least needs sparse_top_p");
  EXPECT_EQ(WrongSelecting([](EngineOptions& o) { o.sparse_delta = 0.1; }),
            "sparse_delta needs sparse_epsilon");
}

TEST(Settings, WhatIsGivenIsThere) {
  EngineOptions options;
  options.gpu_memory = 5;
  options.gpu_layers = 0;
  options.chunk = 64;
  options.kv_encoding = "bf16";
  options.host_share = 0.0;
  options.recompute_share = 1.0;
  options.head_pattern = "p.tsv";
  options.sparsity = 0.0;
  options.sink_tokens = 0;
  options.session = "s";
  options.session_recut = true;
  const Result<Settings> settings = ReadSettings(options);
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_EQ(settings->memory.gpu, 5);
  EXPECT_EQ(settings->gpu_layers, 0);
  EXPECT_EQ(settings->cut.chunk, 64);
  EXPECT_EQ(std::get<DType>(settings->encoding), DType::kBF16);
  EXPECT_EQ(settings->host_share, 0.0);
  EXPECT_EQ(settings->recompute_share, 1.0);
  ASSERT_TRUE(settings->streaming_heads.has_value());
  EXPECT_EQ(settings->streaming_heads->sparsity, 0.0);
  EXPECT_EQ(settings->streaming_heads->sink, 0);
  EXPECT_FALSE(settings->streaming_heads->recent.has_value());
  ASSERT_TRUE(settings->session.has_value());
  EXPECT_EQ(settings->session->misfit, SessionSettings::Misfit::kRecut);
  // Its file is the disk tier.
  EXPECT_EQ(settings->DiskLimit(), kNoLimit);
  options.disk_memory = 7;
  EXPECT_EQ(ReadSettings(options)->DiskLimit(), 7);
}

TEST(Settings, RotaryAnglesAreStretchedAsTheUserSays) {
  EngineOptions options;
  EXPECT_FALSE(ReadSettings(options)->rope_scaling.has_value());
  options.rope_scaling = "dynamic:2.5";
  const std::optional<RopeScaling> scaling = ReadSettings(options)->rope_scaling;
  ASSERT_TRUE(scaling.has_value());
  EXPECT_EQ(scaling->type, RopeType::kDynamic);
  EXPECT_EQ(scaling->factor, 2.5);
}

TEST(Settings, PositionsAreGroupedAsTheUserSays) {
  EngineOptions options;
  EXPECT_FALSE(ReadSettings(options)->self_extend.on());
  options.self_extend = "8:4096";
  const SelfExtend extend = ReadSettings(options)->self_extend;
  EXPECT_EQ(extend.group, 8);
  EXPECT_EQ(extend.window, 4096);
  for (const char* text : {"8", "8:", ":4096", "0:4096", "8:127", "8:4096x", "8,4096", "-8:4096"}) {
    EXPECT_NE(Wrong([&](EngineOptions& o) { o.self_extend = text; }).find("128 tokens"),
              std::string::npos)
        << text;
  }
  const auto beside = [](void (*change)(EngineOptions & o)) {
    return Wrong([&](EngineOptions& o) {
      o.self_extend = "8:4096";
      change(o);
    });
  };
  EXPECT_EQ(beside([](EngineOptions& o) { o.selector = "pages"; }),
            "self_extend and selector do not go together");
  EXPECT_EQ(beside([](EngineOptions& o) { o.head_pattern = "p.tsv"; }),
            "self_extend and head_pattern do not go together");
  EXPECT_EQ(beside([](EngineOptions& o) { o.rope_scaling = "yarn:4"; }),
            "self_extend and rope_scaling do not go together");
  EXPECT_EQ(beside([](EngineOptions& o) { o.kv_encoding = "int8"; }),
            "self_extend and kv_encoding do not go together");
  EXPECT_EQ(beside([](EngineOptions& o) { o.host_share = 0.5; }),
            "self_extend and host_share do not go together");
  EXPECT_EQ(beside([](EngineOptions& o) { o.recompute_share = 0.5; }),
            "self_extend and recompute_share do not go together");
  EXPECT_EQ(beside([](EngineOptions& o) { o.policy = "kvpr"; }),
            "self_extend and policy do not go together");
  EXPECT_EQ(beside([](EngineOptions& o) { o.host_share = o.recompute_share = 0.0; }), "");
  EXPECT_EQ(beside([](EngineOptions& o) { o.kv_encoding = "bf16"; }), "");
}

TEST(Settings, APolicyHasAPlacement) {
  EngineOptions options;
  options.policy = "layerwise";
  EXPECT_EQ(ReadSettings(options)->placement, kv::PlacementKind::kHostOnly);
  options.segment = 64;
  EXPECT_FALSE(ReadSettings(options).ok());
  options.segment = 0;
  options.placement = "lru";
  EXPECT_FALSE(ReadSettings(options).ok());
}

TEST(Settings, ASelectorHasAPlacementUnlessTheUserGivesOne) {
  EngineOptions options;
  EXPECT_EQ(ReadSettings(options)->placement, kv::PlacementKind::kFirstFit);
  options.selector = "pages";
  EXPECT_EQ(ReadSettings(options)->placement, kv::PlacementKind::kRecent);
  options.placement = "first-fit";
  EXPECT_EQ(ReadSettings(options)->placement, kv::PlacementKind::kFirstFit);
  options.placement = "recent";
  options.selector = "none";
  EXPECT_EQ(ReadSettings(options)->placement, kv::PlacementKind::kRecent);
  options.placement = "auto";
  options.selector = "pages";
  options.policy = "layerwise";
  EXPECT_EQ(ReadSettings(options)->placement, kv::PlacementKind::kHostOnly);
}

TEST(Settings, TheDiskIsWhereTheUserSays) {
  EngineOptions options;
  options.disk_path = "/here";
  EXPECT_EQ(ReadSettings(options)->memory.disk_directory, "/here");
  EXPECT_FALSE(ReadSettings({})->memory.disk_directory.empty());
}

TEST(Settings, WhatMakesNoSenseIsRefused) {
  EXPECT_NE(Wrong([](EngineOptions& o) { o.threads = -1; }), "");
  EXPECT_NE(Wrong([](EngineOptions& o) { o.threads = 1025; }), "");
  EXPECT_NE(Wrong([](EngineOptions& o) { o.page_slots = -1; }), "");
  EXPECT_NE(Wrong([](EngineOptions& o) { o.page_slots = 4097; }), "");
  EXPECT_NE(Wrong([](EngineOptions& o) { o.policy = "random"; }), "");
  EXPECT_NE(Wrong([](EngineOptions& o) { o.placement = "sideways"; }), "");
  EXPECT_NE(Wrong([](EngineOptions& o) { o.kv_encoding = "int3"; }), "");
  EXPECT_NE(Wrong([](EngineOptions& o) { o.host_share = 1.5; }), "");
  EXPECT_NE(Wrong([](EngineOptions& o) { o.recompute_share = std::nan(""); }), "");
  EXPECT_NE(Wrong([](EngineOptions& o) { o.sparsity = 0.5; }), "");
  for (const char* scaling : {"yarn", "yarn:", "yarn:0.5", "yarn:nan", "yarn:4x", "llama3:4"}) {
    EXPECT_NE(Wrong([&](EngineOptions& o) { o.rope_scaling = scaling; }).find("by factors"),
              std::string::npos)
        << scaling;
  }
  const std::string kvpr = Wrong([](EngineOptions& o) {
    o.policy = "kvpr";
    o.host_share = 0.5;
  });
  EXPECT_NE(kvpr.find("leave out recompute_share and host_share"), std::string::npos) << kvpr;
}

}  // namespace
}  // namespace headway
