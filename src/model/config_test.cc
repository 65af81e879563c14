#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/random.h"

namespace headway {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

json Llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 2},
          {"vocab_size", 100},
          {"max_position_embeddings", 2048}};
}

json Of(const char* architecture, const char* model_type) {
  json config = Llama();
  config["architectures"] = {architecture};
  config["model_type"] = model_type;
  return config;
}

Result<ModelConfig> Parse(const json& config, const json& generation = json::object()) {
  return ParseModelConfig(config.dump(), generation.dump(), "folder/config.json");
}

ModelConfig Good(const json& config, const json& generation = json::object()) {
  Result<ModelConfig> parsed = Parse(config, generation);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return parsed.ok() ? *parsed : ModelConfig();
}

json With(json config, const char* key, const json& value) {
  config[key] = value;
  return config;
}

void ExpectError(const json& config, StatusCode code, const std::string& message) {
  Result<ModelConfig> parsed = Parse(config);
  ASSERT_FALSE(parsed.ok()) << message;
  EXPECT_EQ(parsed.status().code(), code) << parsed.status().message();
  EXPECT_THAT(parsed.status().message(), HasSubstr(message));
  EXPECT_THAT(parsed.status().message(), HasSubstr("folder/config.json"));
}

TEST(ConfigTest, ReadsLlama) {
  json config = Llama();
  config.update({{"rms_norm_eps", 1e-5},
                 {"torch_dtype", "bfloat16"},
                 {"tie_word_embeddings", true},
                 {"attention_bias", true},
                 {"mlp_bias", true},
                 {"bos_token_id", 7},
                 {"eos_token_id", 8},
                 {"rope_theta", 500000.0}});
  const ModelConfig model = Good(config);
  EXPECT_EQ(model.architecture, "LlamaForCausalLM");
  EXPECT_EQ(model.shape.layers, 4);
  EXPECT_EQ(model.shape.d_model, 64);
  EXPECT_EQ(model.shape.query_heads, 8);
  EXPECT_EQ(model.shape.kv_heads, 2);
  EXPECT_EQ(model.shape.head_dim, 8);
  EXPECT_EQ(model.shape.d_ff, 96);
  EXPECT_EQ(model.shape.vocab, 100);
  EXPECT_EQ(model.shape.dtype, DType::kBF16);
  EXPECT_FLOAT_EQ(model.norm_eps, 1e-5f);
  EXPECT_TRUE(model.tied_embeddings && model.qkv_bias && model.o_bias && model.mlp_bias);
  EXPECT_FALSE(model.qk_norm);
  EXPECT_EQ(model.rope.theta, 500000.0);
  EXPECT_EQ(model.rope.type, RopeType::kDefault);
  EXPECT_THAT(model.windows, ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(model.max_position, 2048);
  EXPECT_EQ(model.bos, 7);
  EXPECT_THAT(model.eos, ElementsAre(8));
}

TEST(ConfigTest, FillsInTheDefaultsOfTheArchitecture) {
  json llama = Llama();
  llama.erase("num_key_value_heads");
  llama.erase("max_position_embeddings");
  const ModelConfig model = Good(llama);
  EXPECT_EQ(model.shape.kv_heads, 8);
  EXPECT_EQ(model.shape.dtype, DType::kF32);
  EXPECT_FLOAT_EQ(model.norm_eps, 1e-6f);
  EXPECT_EQ(model.rope.theta, 10000.0);
  EXPECT_EQ(model.max_position, 2048);
  EXPECT_FALSE(model.max_position_given);
  EXPECT_TRUE(Good(Llama()).max_position_given);
  EXPECT_EQ(model.bos, 1);
  EXPECT_THAT(model.eos, ElementsAre(2));
  EXPECT_FALSE(Good(With(llama, "bos_token_id", nullptr)).bos.has_value());

  json mistral = Of("MistralForCausalLM", "mistral");
  mistral.erase("num_key_value_heads");
  EXPECT_EQ(Good(mistral).shape.kv_heads, 8);
  EXPECT_THAT(Good(mistral).windows, ElementsAre(4096, 4096, 4096, 4096));

  const json qwen3 = Of("Qwen3ForCausalLM", "qwen3");
  EXPECT_EQ(Good(qwen3).shape.head_dim, 128);
  EXPECT_TRUE(Good(qwen3).qk_norm);
  EXPECT_FALSE(Good(qwen3).qkv_bias);
  EXPECT_TRUE(Good(qwen3).eos.empty());
  EXPECT_EQ(Good(With(qwen3, "head_dim", nullptr)).shape.head_dim, 8);

  const json qwen2 = Of("Qwen2ForCausalLM", "qwen2");
  EXPECT_TRUE(Good(qwen2).qkv_bias);
  EXPECT_FALSE(Good(qwen2).o_bias);
  EXPECT_THAT(Good(qwen2).windows, ElementsAre(0, 0, 0, 0));
}

json Opt() {
  return {{"architectures", {"OPTForCausalLM"}},
          {"model_type", "opt"},
          {"hidden_size", 64},
          {"ffn_dim", 256},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"vocab_size", 100},
          {"max_position_embeddings", 512}};
}

TEST(ConfigTest, ReadsOpt) {
  ModelConfig model = Good(Opt());
  EXPECT_EQ(model.family, &arch::kOpt);
  EXPECT_EQ(model.shape.kv_heads, 4);
  EXPECT_EQ(model.shape.head_dim, 16);
  EXPECT_EQ(model.shape.d_ff, 256);
  EXPECT_FALSE(model.shape.gated_mlp);
  EXPECT_FLOAT_EQ(model.norm_eps, 1e-5f);
  EXPECT_TRUE(model.layer_norm && model.norm_affine && model.final_norm);
  EXPECT_FALSE(model.norm_behind);
  EXPECT_TRUE(model.qkv_bias && model.o_bias && model.mlp_bias && model.tied_embeddings);
  EXPECT_TRUE(model.learned_positions);
  EXPECT_EQ(model.max_position, 512);
  EXPECT_EQ(model.embed_width, 0);
  EXPECT_EQ(model.rope.type, RopeType::kNone);
  EXPECT_THAT(model.windows, ElementsAre(0, 0, 0));
  EXPECT_EQ(model.bos, 2);
  EXPECT_THAT(model.eos, ElementsAre(2));
  EXPECT_EQ(Good(With(Opt(), "word_embed_proj_dim", 64)).embed_width, 0);

  json behind = With(With(Opt(), "do_layer_norm_before", false), "word_embed_proj_dim", 32);
  model = Good(behind);
  EXPECT_TRUE(model.norm_behind);
  EXPECT_FALSE(model.final_norm);
  EXPECT_EQ(model.embed_width, 32);
  EXPECT_FALSE(Good(With(Opt(), "_remove_final_layer_norm", true)).final_norm);
  model = Good(With(With(Opt(), "enable_bias", false), "layer_norm_elementwise_affine", false));
  EXPECT_FALSE(model.qkv_bias || model.o_bias || model.mlp_bias || model.norm_affine);
}

TEST(ConfigTest, RefusesAnOptThatMakesNoSense) {
  for (const char* key :
       {"hidden_size", "ffn_dim", "num_hidden_layers", "vocab_size", "num_attention_heads",
        "max_position_embeddings", "word_embed_proj_dim"}) {
    for (const json& value : {json(0), json(-1), json("8"), json(1e30)}) {
      ExpectError(With(Opt(), key, value), StatusCode::kCorrupt, key);
    }
  }
  json missing = Opt();
  missing.erase("ffn_dim");
  ExpectError(missing, StatusCode::kCorrupt, "no ffn_dim");
  ExpectError(With(Opt(), "num_attention_heads", 5), StatusCode::kCorrupt, "multiple of");
  ExpectError(With(Opt(), "num_attention_heads", 64), StatusCode::kCorrupt, "head_dim is 1");
  ExpectError(With(Opt(), "word_embed_proj_dim", 65), StatusCode::kUnsupported,
              "word_embed_proj_dim 65 above hidden_size 64");
  ExpectError(With(Opt(), "activation_function", "gelu"), StatusCode::kUnsupported,
              "activation_function 'gelu' is not supported; supported is relu");
  ExpectError(With(Opt(), "do_layer_norm_before", 1), StatusCode::kCorrupt, "do_layer_norm_before");
  ExpectError(With(Opt(), "enable_bias", "yes"), StatusCode::kCorrupt, "enable_bias");
  ExpectError(With(Opt(), "max_position_embeddings", 1 << 25), StatusCode::kCorrupt, "max_pos");
}

json GptNeoX() {
  return {{"architectures", {"GPTNeoXForCausalLM"}},
          {"model_type", "gpt_neox"},
          {"hidden_size", 64},
          {"intermediate_size", 256},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"vocab_size", 100},
          {"max_position_embeddings", 512}};
}

// What such a file means to Transformers.
TEST(ConfigTest, ATrainedLengthThatIsNotSaidIsTheFamilysDefault) {
  const auto unsaid = [](json config) {
    config.erase("max_position_embeddings");
    return Good(config).max_position;
  };
  EXPECT_EQ(unsaid(Llama()), 2048);
  EXPECT_EQ(unsaid(Of("MistralForCausalLM", "mistral")), 131072);
  EXPECT_EQ(unsaid(Of("Qwen2ForCausalLM", "qwen2")), 32768);
  EXPECT_EQ(unsaid(Of("Qwen3ForCausalLM", "qwen3")), 32768);
  EXPECT_EQ(unsaid(Opt()), 2048);
  EXPECT_EQ(unsaid(GptNeoX()), 2048);
}

TEST(ConfigTest, ReadsGptNeoX) {
  ModelConfig model = Good(GptNeoX());
  EXPECT_EQ(model.family, &arch::kGptNeoX);
  EXPECT_EQ(model.shape.kv_heads, 4);
  EXPECT_EQ(model.shape.head_dim, 16);
  EXPECT_FALSE(model.shape.gated_mlp || model.tanh_gelu || model.tied_embeddings);
  EXPECT_FLOAT_EQ(model.norm_eps, 1e-5f);
  EXPECT_TRUE(model.layer_norm && model.parallel_residual);
  EXPECT_TRUE(model.qkv_bias && model.o_bias && model.mlp_bias);
  EXPECT_EQ(model.rope.type, RopeType::kDefault);
  EXPECT_EQ(model.rope.theta, 10000.0);
  EXPECT_EQ(RotaryDim(model.rope, 16), 4);
  EXPECT_EQ(model.bos, 0);
  EXPECT_THAT(model.eos, ElementsAre(2));

  json other = GptNeoX();
  other.update({{"use_parallel_residual", false},
                {"attention_bias", false},
                {"tie_word_embeddings", true},
                {"hidden_act", "gelu_fast"},
                {"layer_norm_eps", 1e-4},
                {"rotary_emb_base", 5000},
                {"rotary_pct", 0.5},
                {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}});
  model = Good(other);
  EXPECT_FALSE(model.parallel_residual || model.qkv_bias || model.o_bias);
  EXPECT_TRUE(model.mlp_bias && model.tied_embeddings && model.tanh_gelu);
  EXPECT_FLOAT_EQ(model.norm_eps, 1e-4f);
  EXPECT_EQ(model.rope.type, RopeType::kLinear);
  EXPECT_EQ(model.rope.theta, 5000.0);
  EXPECT_EQ(RotaryDim(model.rope, 16), 8);
  // What Transformers 5 writes comes before what older files say.
  other.erase("rope_scaling");
  other["rope_parameters"] = {
      {"rope_type", "default"}, {"rope_theta", 7000}, {"partial_rotary_factor", 1.0}};
  EXPECT_EQ(Good(other).rope.theta, 7000.0);
  EXPECT_EQ(RotaryDim(Good(other).rope, 16), 16);
  for (const char* tanh : {"gelu_new", "gelu_pytorch_tanh"}) {
    EXPECT_TRUE(Good(With(GptNeoX(), "hidden_act", tanh)).tanh_gelu);
  }
}

TEST(ConfigTest, RefusesAGptNeoXThatMakesNoSense) {
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size",
                          "num_attention_heads", "max_position_embeddings"}) {
    for (const json& value : {json(0), json(-1), json("8"), json(1e30)}) {
      ExpectError(With(GptNeoX(), key, value), StatusCode::kCorrupt, key);
    }
  }
  ExpectError(With(GptNeoX(), "num_attention_heads", 5), StatusCode::kCorrupt, "multiple of");
  ExpectError(With(GptNeoX(), "num_attention_heads", 64), StatusCode::kCorrupt, "head_dim is 1");
  ExpectError(With(GptNeoX(), "hidden_act", "relu"), StatusCode::kUnsupported,
              "hidden_act 'relu' is not supported; supported are gelu, gelu_new, gelu_fast, "
              "gelu_pytorch_tanh");
  ExpectError(With(GptNeoX(), "rotary_pct", 1.5), StatusCode::kCorrupt, "rotary_pct");
  ExpectError(With(GptNeoX(), "rotary_emb_base", 1), StatusCode::kCorrupt, "rotary_emb_base");
  ExpectError(With(GptNeoX(), "rotary_pct", 0), StatusCode::kUnsupported,
              "0 of a head's 16 elements rotate");
  ExpectError(With(GptNeoX(), "rotary_pct", 0.2), StatusCode::kUnsupported,
              "3 of a head's 16 elements rotate; supported are even numbers from 2 on");
  ExpectError(With(GptNeoX(), "rope_scaling",
                   {{"type", "dynamic"}, {"factor", 2.0}, {"partial_rotary_factor", 0.125}}),
              StatusCode::kCorrupt, "dynamic needs 4");
  ExpectError(With(GptNeoX(), "use_parallel_residual", 1), StatusCode::kCorrupt,
              "use_parallel_residual");
  ExpectError(With(GptNeoX(), "attention_bias", "yes"), StatusCode::kCorrupt, "attention_bias");
  ExpectError(With(GptNeoX(), "layer_norm_eps", -1), StatusCode::kCorrupt, "layer_norm_eps");
}

TEST(ConfigTest, FindsTheArchitectureByEitherKey) {
  json config = Llama();
  config.erase("architectures");
  EXPECT_EQ(Good(config).architecture, "LlamaForCausalLM");
  config = Llama();
  config.erase("model_type");
  EXPECT_EQ(Good(config).architecture, "LlamaForCausalLM");
}

TEST(ConfigTest, ReadsWindows) {
  const json mistral = Of("MistralForCausalLM", "mistral");
  EXPECT_THAT(Good(With(mistral, "sliding_window", 9)).windows, ElementsAre(9, 9, 9, 9));
  EXPECT_THAT(Good(With(mistral, "sliding_window", nullptr)).windows, ElementsAre(0, 0, 0, 0));

  json qwen = With(Of("Qwen2ForCausalLM", "qwen2"), "sliding_window", 9);
  qwen["max_window_layers"] = 3;
  EXPECT_THAT(Good(qwen).windows, ElementsAre(0, 0, 0, 0));
  qwen["use_sliding_window"] = true;
  EXPECT_THAT(Good(qwen).windows, ElementsAre(0, 0, 0, 9));
  qwen["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention",
                         "full_attention"};
  EXPECT_THAT(Good(qwen).windows, ElementsAre(9, 0, 9, 0));

  ExpectError(With(qwen, "sliding_window", nullptr), StatusCode::kCorrupt, "without a sliding");
  ExpectError(With(qwen, "layer_types", {"full_attention"}), StatusCode::kCorrupt, "layer_types");
  qwen["layer_types"][1] = "linear_attention";
  ExpectError(qwen, StatusCode::kUnsupported, "layer type 'linear_attention'");
  ExpectError(With(mistral, "sliding_window", 0), StatusCode::kCorrupt, "sliding_window");
}

TEST(ConfigTest, ReadsRopeInBothSpellings) {
  json old_keys = With(Llama(), "rope_theta", 1e6);
  old_keys["rope_scaling"] = {{"type", "linear"}, {"factor", 4}};
  json new_keys = With(Llama(), "rope_parameters",
                       {{"rope_type", "linear"}, {"rope_theta", 1e6}, {"factor", 4.0}});
  EXPECT_EQ(Good(old_keys).rope, Good(new_keys).rope);
  EXPECT_EQ(Good(old_keys).rope.type, RopeType::kLinear);
  EXPECT_EQ(Good(old_keys).rope.theta, 1e6);
  EXPECT_EQ(Good(old_keys).rope.factor, 4.0);
  EXPECT_EQ(Good(With(Llama(), "rope_scaling", nullptr)).rope.type, RopeType::kDefault);

  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 512}};
  RopeConfig rope = Good(With(Llama(), "rope_scaling", llama3)).rope;
  EXPECT_EQ(rope.type, RopeType::kLlama3);
  EXPECT_EQ(rope.original_max_position, 512);

  const json yarn = {
      {"type", "yarn"},   {"factor", nullptr}, {"original_max_position_embeddings", 512},
      {"beta_fast", 16},  {"mscale", 0.7},     {"mscale_all_dim", 1.0},
      {"truncate", false}};
  rope = Good(With(Llama(), "rope_scaling", yarn)).rope;
  EXPECT_EQ(rope.type, RopeType::kYarn);
  EXPECT_EQ(rope.factor, 4.0);  // 2048 / 512
  EXPECT_EQ(rope.beta_fast, 16.0);
  EXPECT_EQ(rope.mscale, 0.7);
  EXPECT_FALSE(rope.truncate);
  EXPECT_FALSE(rope.attention_factor.has_value());
}

// What a user asks for is what a configuration may say.
TEST(ConfigTest, StretchesRopeAsAConfigurationDoes) {
  for (const RopeType type : {RopeType::kLinear, RopeType::kDynamic, RopeType::kYarn}) {
    const json scaling = {{"rope_type", RopeTypeName(type)},
                          {"factor", 4.0},
                          {"original_max_position_embeddings", 2048}};
    const ModelConfig expected = Good(With(Llama(), "rope_scaling", scaling));
    ModelConfig config = Good(Llama());
    ASSERT_EQ(config.max_position, 2048);
    ASSERT_TRUE(ScaleRope({type, 4.0}, &config).ok());
    EXPECT_EQ(config.rope, expected.rope) << RopeTypeName(type);
    EXPECT_EQ(config.max_position, 8192);
    EXPECT_EQ(ScaleRope({type, 4.0}, &config).code(), StatusCode::kUnsupported);
  }
}

TEST(ConfigTest, RefusesRopeThatItDoesNotKnow) {
  for (const char* type : {"longrope", "mrope", "su", ""}) {
    ExpectError(With(Llama(), "rope_scaling", {{"rope_type", type}}), StatusCode::kUnsupported,
                std::string("rope type '") + type + "' is not supported");
  }
  ExpectError(With(Llama(), "partial_rotary_factor", 0.5), StatusCode::kUnsupported, "partial");
  ExpectError(With(Llama(), "rope_scaling", 3), StatusCode::kCorrupt, "rope_scaling");
  ExpectError(With(Llama(), "rope_scaling", {{"type", "linear"}}), StatusCode::kCorrupt,
              "no factor");
  ExpectError(With(Llama(), "rope_scaling", {{"type", "linear"}, {"factor", 0}}),
              StatusCode::kCorrupt, "factor is 0");
  ExpectError(With(Llama(), "rope_theta", 1), StatusCode::kCorrupt, "rope_theta");
  ExpectError(
      With(Llama(), "rope_scaling",
           {{"type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}),
      StatusCode::kCorrupt, "high_freq_factor");
}

TEST(ConfigTest, NamesWhatItDoesNotSupport) {
  const char* supported =
      "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, OPTForCausalLM, "
      "GPTNeoXForCausalLM";
  ExpectError(Of("GPT2LMHeadModel", "gpt2"), StatusCode::kUnsupported, "'GPT2LMHeadModel'");
  ExpectError(Of("GPT2LMHeadModel", "gpt2"), StatusCode::kUnsupported, supported);
  ExpectError(Of("LlamaForCausalLM", "gpt2"), StatusCode::kUnsupported, "model_type 'gpt2'");
  ExpectError(Of("LlamaForSequenceClassification", "llama"), StatusCode::kUnsupported, "Sequence");
  ExpectError(json::object(), StatusCode::kUnsupported, "supported are");
  ExpectError(With(Llama(), "hidden_act", "gelu"), StatusCode::kUnsupported, "'gelu'");
  ExpectError(With(Llama(), "quantization_config", {{"quant_method", "awq"}}),
              StatusCode::kUnsupported, "awq");
  ExpectError(With(Llama(), "dtype", "float64"), StatusCode::kUnsupported, "'float64'");
}

TEST(ConfigTest, RefusesNumbersThatMakeNoSense) {
  const json bad_numbers = {0, -1, 1.5, "8", true, 1e30, 18446744073709551615u, json::array()};
  for (const char* key :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size",
        "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    for (const json& value : bad_numbers) {
      ExpectError(With(Llama(), key, value), StatusCode::kCorrupt, key);
    }
  }
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size",
                          "num_attention_heads"}) {
    json missing = Llama();
    missing.erase(key);
    ExpectError(missing, StatusCode::kCorrupt, std::string("no ") + key);
  }
  ExpectError(With(Llama(), "num_key_value_heads", 3), StatusCode::kCorrupt, "multiple of 3 KV");
  ExpectError(With(Llama(), "hidden_size", 65), StatusCode::kCorrupt, "multiple of");
  ExpectError(With(Llama(), "head_dim", 7), StatusCode::kCorrupt, "head_dim is 7");
  ExpectError(With(Llama(), "hidden_size", 56), StatusCode::kCorrupt, "head_dim is 7");
  ExpectError(With(Llama(), "hidden_size", 8), StatusCode::kCorrupt, "head_dim is 1");
  json wide = With(Llama(), "num_attention_heads", 65536);
  ExpectError(With(wide, "head_dim", 1024), StatusCode::kCorrupt, "wider than");
  ExpectError(With(Llama(), "rms_norm_eps", -1), StatusCode::kCorrupt, "rms_norm_eps");
  ExpectError(With(Llama(), "tie_word_embeddings", 1), StatusCode::kCorrupt, "tie_word");
  ExpectError(With(Llama(), "eos_token_id", -1), StatusCode::kCorrupt, "eos_token_id");
  ExpectError(With(Llama(), "eos_token_id", {1, "2"}), StatusCode::kCorrupt, "eos_token_id");
}

TEST(ConfigTest, PrefersGenerationConfig) {
  const json config = With(Llama(), "eos_token_id", 5);
  const ModelConfig model = Good(config, {{"bos_token_id", 3},
                                          {"eos_token_id", {8, 9}},
                                          {"do_sample", true},
                                          {"temperature", 0.6},
                                          {"top_p", 0.9},
                                          {"top_k", 20},
                                          {"repetition_penalty", 1.1}});
  EXPECT_EQ(model.bos, 3);
  EXPECT_THAT(model.eos, ElementsAre(8, 9));
  EXPECT_EQ(model.generation.do_sample, true);
  EXPECT_EQ(model.generation.temperature, 0.6);
  EXPECT_EQ(model.generation.top_p, 0.9);
  EXPECT_EQ(model.generation.top_k, 20);
  EXPECT_EQ(model.generation.repetition_penalty, 1.1);
  EXPECT_FALSE(model.generation.min_p.has_value());
  EXPECT_THAT(Good(config).eos, ElementsAre(5));

  Result<ModelConfig> bad = Parse(config, {{"temperature", "hot"}});
  ASSERT_FALSE(bad.ok());
  EXPECT_THAT(bad.status().message(), HasSubstr("folder/generation_config.json: temperature"));
}

TEST(ConfigTest, SurvivesAnyText) {
  for (const char* text : {"", "null", "[]", "{", "{\"a\":1e999}", "\xff"}) {
    EXPECT_EQ(ParseModelConfig(text, "", "f").status().code(), StatusCode::kCorrupt) << text;
  }
  EXPECT_FALSE(ParseModelConfig(std::string(1000000, '['), "", "f").ok());
  const std::string nested = std::string(1000000, '[') + std::string(1000000, ']');
  EXPECT_FALSE(ParseModelConfig("{\"hidden_size\":" + nested + "}", "", "f").ok());
  const std::string llama = Llama().dump();
  EXPECT_FALSE(
      ParseModelConfig(llama.substr(0, llama.size() - 1) + ",\"head_dim\":" + nested + "}", "", "f")
          .ok());

  const uint64_t seed = 5;
  SCOPED_TRACE(seed);
  Random random(seed);
  for (int round = 0; round < 10000; ++round) {
    const std::string good = (round % 3 == 0 ? Llama() : round % 3 == 1 ? Opt() : GptNeoX()).dump();
    std::string damaged = good;
    for (int64_t flips = 1 + random.Below(3); flips > 0; --flips) {
      damaged[static_cast<size_t>(random.Below(static_cast<int64_t>(good.size())))] =
          static_cast<char>(random.Next());
    }
    Result<ModelConfig> parsed = ParseModelConfig(damaged, "", "f");
    EXPECT_TRUE(parsed.ok() || parsed.status().message().find('\n') == std::string::npos);
  }
}

}  // namespace
}  // namespace headway
