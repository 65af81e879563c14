#include "engine/eval/approximation.h"

#include <gtest/gtest.h>

namespace headway::eval {
namespace {

TEST(Approximations, AreNamedWithWhatTheOptionsGive) {
  EXPECT_TRUE(ApproximationsOf({}).empty());
  EngineOptions options;
  options.kv_encoding = "int8";
  options.head_pattern = "heads.tsv";
  options.sink_tokens = 0;
  const std::vector<Approximation> all = ApproximationsOf(options);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].name, "kv-encoding");
  EXPECT_EQ(std::get<std::string>(all[0].parameters[0].second), "int8");
  EXPECT_EQ(all[1].name, "streaming-heads");
  ASSERT_EQ(all[1].parameters.size(), 2u);
  EXPECT_EQ(all[1].parameters[1].first, "sink_tokens");
  EXPECT_EQ(std::get<int64_t>(all[1].parameters[1].second), 0);
}

TEST(Approximations, NameAnEvictionWithItsBudget) {
  EngineOptions options;
  options.evict = "ada-snapkv";
  std::vector<Approximation> all = ApproximationsOf(options);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].name, "eviction");
  ASSERT_EQ(all[0].parameters.size(), 2u);
  EXPECT_EQ(std::get<std::string>(all[0].parameters[0].second), "ada-snapkv");
  EXPECT_EQ(std::get<std::string>(all[0].parameters[1].second), "1024");
  options.evict_budget = "25%";
  options.evict_window = 16;
  options.evict_safeguard = 0.0;
  all = ApproximationsOf(options);
  ASSERT_EQ(all[0].parameters.size(), 4u);
  EXPECT_EQ(std::get<std::string>(all[0].parameters[1].second), "25%");
  EXPECT_EQ(all[0].parameters[2].first, "window");
  EXPECT_EQ(std::get<int64_t>(all[0].parameters[2].second), 16);
  EXPECT_EQ(std::get<double>(all[0].parameters[3].second), 0.0);
}

TEST(ExactOptions, LeaveOutWhatApproximatesAndFilesOfOneRun) {
  EngineOptions options;
  options.device = "cuda:1";
  options.chunk = 64;
  options.host_share = 0.5;
  options.kv_encoding = "int4";
  options.head_pattern = "heads.tsv";
  options.sparsity = 0.5;
  options.sink_tokens = 4;
  options.recent_tokens = 32;
  options.self_extend = "8:4096";
  options.evict = "snapkv";
  options.evict_budget = "512";
  options.evict_window = 16;
  options.evict_pool = "5";
  options.evict_sink = 8;
  options.evict_safeguard = 0.5;
  options.evict_steepness = 10.0;
  options.evict_room = 64;
  options.evicted = "demote";
  options.evicted_keys = 64;
  options.evicted_refresh = 2;
  options.session = "s";
  options.session_recut = true;
  options.trace = "t";
  const EngineOptions exact = ExactOptions(options);
  EXPECT_TRUE(ApproximationsOf(exact).empty());
  // Parameters without their approximation would be refused.
  EXPECT_LT(exact.sparsity, 0.0);
  EXPECT_LT(exact.sink_tokens, 0);
  EXPECT_EQ(exact.recent_tokens, 0);
  EXPECT_EQ(exact.evict_budget + exact.evict_pool, "");
  EXPECT_EQ(exact.evict_window, -1);
  EXPECT_EQ(exact.evict_sink, -1);
  EXPECT_EQ(exact.evict_safeguard, -1.0);
  EXPECT_EQ(exact.evict_steepness, -1.0);
  EXPECT_EQ(exact.evict_room, -1);
  EXPECT_EQ(exact.evicted, "drop");
  EXPECT_EQ(exact.evicted_keys, -1);
  EXPECT_EQ(exact.evicted_refresh, -1);
  EXPECT_EQ(exact.session + exact.trace, "");
  EXPECT_FALSE(exact.session_recut);
  EXPECT_EQ(exact.device, "cuda:1");
  EXPECT_EQ(exact.chunk, 64);
  EXPECT_EQ(exact.host_share, 0.5);
}

TEST(ExactOptions, LeaveOutSelections) {
  EngineOptions options;
  options.selector = "pages";
  options.sparse_keys = 512;
  options.sparse_sink = 16;
  options.sparse_recent = 64;
  options.sparse_share = 0.1;
  options.sparse_top_p = 0.9;
  options.sparse_least = 32;
  options.sparse_epsilon = 0.1;
  options.sparse_delta = 0.01;
  options.sparse_block = 8;
  options.sparse_looks = 2;
  options.sparse_sketches = "host";
  options.sparse_refresh = 4;
  options.sparse_from = 0;
  options.sparse_cache = 0;
  options.hip_stages = "64:1024";
  options.hip_refresh = "8";
  options.hip_outer_keys = 0;
  options.sparse_candidates_refresh = 8;
  options.sparse_prefill = true;
  options.sparse_dense_every = 64;
  options.reach = "on";
  options.reach_positions = "infllm";
  options.hip_positions = "chunk";
  const EngineOptions exact = ExactOptions(options);
  EXPECT_TRUE(ApproximationsOf(exact).empty());
  EXPECT_EQ(exact.sparse_keys, 2048);
  EXPECT_EQ(exact.sparse_sink, 256);
  EXPECT_EQ(exact.sparse_recent, 1024);
  EXPECT_EQ(exact.sparse_share, 0.0);
  EXPECT_EQ(exact.sparse_top_p, 0.0);
  EXPECT_EQ(exact.sparse_least, 64);
  EXPECT_EQ(exact.sparse_epsilon, 0.0);
  EXPECT_EQ(exact.sparse_delta, 0.05);
  EXPECT_EQ(exact.sparse_block, 0);
  EXPECT_EQ(exact.sparse_looks, 1);
  EXPECT_EQ(exact.sparse_sketches, "auto");
  EXPECT_EQ(exact.sparse_refresh, 1);
  EXPECT_EQ(exact.sparse_from, kSparseFromAuto);
  EXPECT_EQ(exact.sparse_cache, kSparseCacheAuto);
  EXPECT_EQ(exact.hip_stages, EngineOptions{}.hip_stages);
  EXPECT_EQ(exact.hip_refresh, "");
  EXPECT_EQ(exact.hip_outer_keys, 4096);
  EXPECT_EQ(exact.sparse_candidates_refresh, 1);
  EXPECT_FALSE(exact.sparse_prefill);
  EXPECT_EQ(exact.sparse_dense_every, 0);
  EXPECT_EQ(exact.reach, "auto");
  EXPECT_EQ(exact.reach_positions, "streamingllm");
  EXPECT_EQ(exact.hip_positions, "published");
}

}  // namespace
}  // namespace headway::eval
