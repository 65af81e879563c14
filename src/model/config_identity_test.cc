#include "model/config_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "model/rope.h"

namespace headway {
namespace {

using testing::HasSubstr;
using Change = std::function<void(ModelConfig*)>;

ModelConfig Plain() {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.shape = {4, 64, 8, 2, 8, 128, 1000, DType::kBF16, true};
  config.windows = {0, 0, 0, 0};
  config.max_position = config.rope.max_position = config.rope.original_max_position = 4096;
  return config;
}

std::string DifferenceOf(const ModelConfig& before, const Change& change) {
  ModelConfig now = before;
  change(&now);
  return IdentityDifference(ConfigIdentity(before), ConfigIdentity(now));
}

TEST(ConfigIdentity, EveryValueThatTheComputationReadsCounts) {
  const std::pair<const char*, Change> changes[] = {
      {"architectures LlamaForCausalLM, the model now has Qwen2ForCausalLM",
       [](ModelConfig* c) { c->architecture = "Qwen2ForCausalLM"; }},
      {"num_hidden_layers 4, the model now has 5", [](ModelConfig* c) { ++c->shape.layers; }},
      {"hidden_size 64", [](ModelConfig* c) { c->shape.d_model = 32; }},
      {"num_attention_heads 8", [](ModelConfig* c) { c->shape.query_heads = 4; }},
      {"num_key_value_heads 2", [](ModelConfig* c) { c->shape.kv_heads = 4; }},
      {"head_dim 8", [](ModelConfig* c) { c->shape.head_dim = 16; }},
      {"intermediate_size 128", [](ModelConfig* c) { c->shape.d_ff = 96; }},
      {"vocab_size 1000", [](ModelConfig* c) { ++c->shape.vocab; }},
      {"dtype of the weights bf16, the model now has f16",
       [](ModelConfig* c) { c->shape.dtype = DType::kF16; }},
      {"gated MLP true", [](ModelConfig* c) { c->shape.gated_mlp = false; }},
      {"rms_norm_eps 1e-06, the model now has 1e-05", [](ModelConfig* c) { c->norm_eps = 1e-5f; }},
      {"LayerNorm false", [](ModelConfig* c) { c->layer_norm = true; }},
      {"layer_norm_elementwise_affine", [](ModelConfig* c) { c->norm_affine = false; }},
      {"do_layer_norm_before true", [](ModelConfig* c) { c->norm_behind = true; }},
      {"final norm true", [](ModelConfig* c) { c->final_norm = false; }},
      {"word_embed_proj_dim 64, the model now has 48", [](ModelConfig* c) { c->embed_width = 48; }},
      {"attention_bias false", [](ModelConfig* c) { c->qkv_bias = true; }},
      {"bias of the output projection", [](ModelConfig* c) { c->o_bias = true; }},
      {"mlp_bias", [](ModelConfig* c) { c->mlp_bias = true; }},
      {"norms of queries and keys", [](ModelConfig* c) { c->qk_norm = true; }},
      {"tie_word_embeddings", [](ModelConfig* c) { c->tied_embeddings = true; }},
      {"rope_type default, the model now has linear",
       [](ModelConfig* c) { c->rope.type = RopeType::kLinear; }},
      {"rope_theta 10000, the model now has 500000", [](ModelConfig* c) { c->rope.theta = 5e5; }},
      {"sliding_window none, the model now has 512",
       [](ModelConfig* c) { c->windows.assign(4, 512); }},
      {"sliding_window none, the model now has 0,0,512,0",
       [](ModelConfig* c) { c->windows[2] = 512; }},
      {"learned positions", [](ModelConfig* c) { c->learned_positions = true; }},
      // Lines that files from before there were such models do not have.
      {"another configuration", [](ModelConfig* c) { c->parallel_residual = true; }},
      {"another configuration", [](ModelConfig* c) { c->tanh_gelu = true; }},
      {"another configuration", [](ModelConfig* c) { c->rope.share = 0.25; }},
  };
  for (const auto& [name, change] : changes) {
    EXPECT_THAT(DifferenceOf(Plain(), change), HasSubstr(name));
  }
}

TEST(ConfigIdentity, WhatChangesNoKeyDoesNotCount) {
  const Change changes[] = {
      [](ModelConfig*) {},
      [](ModelConfig* c) { c->max_position = c->rope.max_position = 100000; },
      [](ModelConfig* c) { c->bos = 7; },
      [](ModelConfig* c) {
        c->eos = {1, 2};
      },
      [](ModelConfig* c) { c->generation.temperature = 0.5; },
  };
  for (const Change& change : changes) EXPECT_EQ(DifferenceOf(Plain(), change), "");
}

// The identity of a type has each field that its frequencies depend on.
TEST(ConfigIdentity, FollowsTheFrequenciesOfEveryRopeType) {
  using Field = std::function<void(RopeConfig*)>;
  const Field fields[] = {
      [](RopeConfig* r) { r->theta = 20000.0; },
      [](RopeConfig* r) { r->factor = 8.0; },
      [](RopeConfig* r) { r->max_position = 50; },
      [](RopeConfig* r) { r->original_max_position = 700; },
      [](RopeConfig* r) { r->low_freq_factor = 2.0; },
      [](RopeConfig* r) { r->high_freq_factor = 8.0; },
      [](RopeConfig* r) { r->beta_fast = 16.0; },
      [](RopeConfig* r) { r->beta_slow = 2.0; },
      [](RopeConfig* r) { r->attention_factor = 1.5; },
      [](RopeConfig* r) { r->mscale = 0.7; },
      [](RopeConfig* r) { r->mscale_all_dim = 0.6; },
      [](RopeConfig* r) { r->truncate = false; },
      [](RopeConfig* r) { r->share = 0.5; },
  };
  int differences = 0;
  for (const RopeType type : {RopeType::kNone, RopeType::kDefault, RopeType::kLinear,
                              RopeType::kDynamic, RopeType::kYarn, RopeType::kLlama3}) {
    ModelConfig before = Plain();
    before.shape.head_dim = 64;
    before.rope.type = type;
    before.rope.factor = 4.0;
    before.rope.mscale = 1.0;
    before.rope.mscale_all_dim = 0.8;
    for (size_t i = 0; i < std::size(fields); ++i) {
      SCOPED_TRACE(testing::Message() << RopeTypeName(type) << ", field " << i);
      ModelConfig now = before;
      fields[i](&now.rope);
      bool same = true;
      for (const int64_t length : {100, 5000, 100000}) {
        same = same && ComputeRope(before.rope, 64, length) == ComputeRope(now.rope, 64, length);
      }
      const bool equal = ConfigIdentity(before) == ConfigIdentity(now);
      EXPECT_TRUE(same || !equal);
      differences += equal ? 0 : 1;
    }
  }
  EXPECT_GT(differences, 15);
}

TEST(ConfigIdentity, SaysWhatDiffersInOneShortLine) {
  EXPECT_EQ(IdentityDifference("a=1\nb=2\n", "a=1\nb=2\n"), "");
  EXPECT_EQ(IdentityDifference("a=1\nb=2\n", "a=1\nb=3\n"), "b 2, the model now has 3");
  EXPECT_EQ(IdentityDifference("a=1\n", "a=" + std::string(500, '7') + "\n"), "another a");
  // What another program wrote.
  for (const char* foreign : {"", "a", "a=1", "x=1\nb=2\n", "a=1\nb=2\nc=3\n", "=\n=\n", "\n\n"}) {
    EXPECT_EQ(IdentityDifference(foreign, "a=1\nb=2\n"), "another configuration") << foreign;
  }
}

}  // namespace
}  // namespace headway
