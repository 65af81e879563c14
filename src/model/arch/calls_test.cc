#include "model/arch/calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "model/arch/family.h"

namespace headway::arch {
namespace {

using ::testing::ElementsAre;

const char* Name(Slot slot) {
  constexpr const char* kNames[kSlots] = {"x",        "normed", "q",  "k",         "v",
                                          "attended", "inner",  "up", "projected", "logits"};
  return kNames[static_cast<size_t>(slot)];
}

std::string Products(const Call& call) {
  std::string text = " ->";
  for (int i = 0; i < call.outputs; ++i) {
    const Call::Output& output = call.output[static_cast<size_t>(i)];
    constexpr const char* kResults[] = {"", "relu ", "gelu ", "tanh gelu ", "float ", "+= "};
    text += std::string(i == 0 ? " " : ", ") + kResults[static_cast<size_t>(output.result)] +
            Name(output.to);
  }
  return text;
}

// A call in words: what kernel, of what, and where to.
std::string Text(const Call& call) {
  constexpr const char* kNorms[] = {"None", "Rms", "Layer"};
  const std::string norm = kNorms[static_cast<size_t>(call.norm.kind)];
  switch (call.kind) {
    case CallKind::kEmbed:
      return call.embed.by == RowBy::kId ? "Embed ids" : "Embed positions";
    case CallKind::kNorm:
      return "Norm " + norm;
    case CallKind::kNormInPlace:
      return "NormInPlace " + norm;
    case CallKind::kHeadNorm:
      return std::string("HeadNorm ") + Name(call.at);
    case CallKind::kLinear:
      return std::string("Linear ") + Name(call.at) + Products(call);
    case CallKind::kGatedLinear:
      return std::string("GatedLinear ") + Name(call.at) + Products(call);
    case CallKind::kNormLinear:
      return "NormLinear " + norm + Products(call);
    case CallKind::kNormGatedLinear:
      return "NormGatedLinear " + norm + Products(call);
  }
  return "?";
}

std::vector<std::string> Texts(const std::vector<Call>& calls) {
  std::vector<std::string> texts;
  for (const Call& call : calls) texts.push_back(Text(call));
  return texts;
}

ModelConfig Config(const Family& family) {
  ModelConfig config;
  config.family = &family;
  config.shape = {2, 64, 8, 2, 8, 128, 1000, DType::kBF16, true};
  return config;
}

ModelConfig OptConfig() {
  ModelConfig config = Config(kOpt);
  config.shape.kv_heads = 8;
  config.shape.gated_mlp = false;
  config.rope.type = RopeType::kNone;
  config.learned_positions = true;
  return config;
}

TEST(CallsTest, OfLlama) {
  const Program program = kLlama.build(Config(kLlama));
  EXPECT_THAT(Texts(Resolve(program.embed, Normed::kDropped)), ElementsAre("Embed ids"));
  EXPECT_THAT(Texts(Resolve(program.output, Normed::kDropped)),
              ElementsAre("NormLinear Rms -> float logits"));
  ASSERT_EQ(program.layers.size(), 2u);
  const LayerCalls calls = ResolveLayer(program.layers[1]);
  EXPECT_THAT(Texts(calls.before), ElementsAre("NormLinear Rms -> q, k, v"));
  EXPECT_THAT(Texts(calls.before_keeping), ElementsAre("Norm Rms", "Linear normed -> q, k, v"));
  EXPECT_THAT(Texts(calls.keys_values), ElementsAre("Linear normed -> k, v"));
  EXPECT_THAT(Texts(calls.after),
              ElementsAre("Linear attended -> += x", "NormGatedLinear Rms -> inner, up",
                          "Linear inner -> += x"));
}

// What ranks add up: the first begins with the residual stream, the others set theirs.
TEST(CallsTest, ProductsOfShardsAreSums) {
  const Program program = kLlama.build(Config(kLlama));
  for (const SumRole role : {SumRole::kAlone, SumRole::kFirst, SumRole::kOther}) {
    const LayerCalls calls = ResolveLayer(program.layers[0], role);
    const std::string to = role == SumRole::kOther ? " -> float x" : " -> += x";
    EXPECT_THAT(Texts(calls.after),
                ElementsAre("Linear attended" + to, "NormGatedLinear Rms -> inner, up",
                            "Linear inner" + to));
    const bool sums = role != SumRole::kAlone;
    EXPECT_THAT(std::vector<bool>({calls.after[0].sums, calls.after[1].sums, calls.after[2].sums}),
                ElementsAre(sums, false, sums));
  }
}

TEST(CallsTest, NormsOfHeadsFollowTheirProducts) {
  ModelConfig config = Config(kQwen3);
  config.qk_norm = true;
  const LayerCalls calls = ResolveLayer(kQwen3.build(config).layers[0]);
  EXPECT_THAT(Texts(calls.before),
              ElementsAre("NormLinear Rms -> q, k, v", "HeadNorm q", "HeadNorm k"));
  EXPECT_THAT(Texts(calls.keys_values), ElementsAre("Linear normed -> k, v", "HeadNorm k"));
}

TEST(CallsTest, OfOpt) {
  const Program program = kOpt.build(OptConfig());
  EXPECT_THAT(Texts(Resolve(program.embed, Normed::kDropped)),
              ElementsAre("Embed ids", "Embed positions"));
  const LayerCalls calls = ResolveLayer(program.layers[0]);
  EXPECT_THAT(Texts(calls.before), ElementsAre("NormLinear Layer -> q, k, v"));
  EXPECT_THAT(Texts(calls.after),
              ElementsAre("Linear attended -> += x", "NormLinear Layer -> relu inner",
                          "Linear inner -> += x"));
}

// Side by side the MLP's norm is made before attention is added, and so by itself.
TEST(CallsTest, OfAGptNeoX) {
  ModelConfig config = Config(kGptNeoX);
  config.shape.kv_heads = 8;
  config.shape.gated_mlp = false;
  LayerCalls calls = ResolveLayer(kGptNeoX.build(config).layers[0]);
  EXPECT_THAT(Texts(calls.before), ElementsAre("NormLinear Layer -> q, k, v"));
  EXPECT_THAT(Texts(calls.after),
              ElementsAre("Linear attended -> += x", "NormLinear Layer -> gelu inner",
                          "Linear inner -> += x"));
  config.parallel_residual = config.tanh_gelu = true;
  calls = ResolveLayer(kGptNeoX.build(config).layers[0]);
  EXPECT_THAT(Texts(calls.keys_values), ElementsAre("Linear normed -> k, v"));
  EXPECT_THAT(Texts(calls.after),
              ElementsAre("Norm Layer", "Linear attended -> += x",
                          "Linear normed -> tanh gelu inner", "Linear inner -> += x"));
}

TEST(CallsTest, OfAnOptWithNormsBehindAndANarrowEmbedding) {
  ModelConfig config = OptConfig();
  config.norm_behind = true;
  config.final_norm = false;
  config.embed_width = 48;
  const Program program = kOpt.build(config);
  EXPECT_THAT(Texts(Resolve(program.embed, Normed::kDropped)),
              ElementsAre("Embed ids", "Norm None", "Linear normed -> float x", "Embed positions"));
  EXPECT_THAT(Texts(Resolve(program.output, Normed::kDropped)),
              ElementsAre("NormLinear None -> projected", "Linear projected -> float logits"));
  const LayerCalls calls = ResolveLayer(program.layers[0]);
  EXPECT_THAT(Texts(calls.before), ElementsAre("NormLinear None -> q, k, v"));
  EXPECT_THAT(Texts(calls.before_keeping), ElementsAre("Norm None", "Linear normed -> q, k, v"));
  EXPECT_THAT(Texts(calls.after), ElementsAre("Linear attended -> += x", "NormInPlace Layer",
                                              "NormLinear None -> relu inner",
                                              "Linear inner -> += x", "NormInPlace Layer"));
}

TEST(CallsTest, ANormIsNotFusedWhereItsRowsAreReadAgain) {
  const LinearStep twice[] = {{Slot::kNormed, {{{0}, Slot::kInner}, {{1}, Slot::kUp}}},
                              {Slot::kNormed, {{{2}, Slot::kProjected}}}};
  const std::vector<Step> steps = {NormStep{{NormKind::kRms, 1e-6f, 3}}, twice[0],
                                   ActivateStep{Activation::kSwiGlu}, twice[1]};
  EXPECT_THAT(
      Texts(Resolve(steps, Normed::kDropped)),
      ElementsAre("Norm Rms", "GatedLinear normed -> inner, up", "Linear normed -> projected"));
}

// The norm of a parallel MLP reads the residual stream before attention's output is added.
TEST(CallsTest, OfAParallelMlp) {
  LayerProgram layer;
  layer.steps = {
      NormStep{{NormKind::kLayer, 1e-5f}},
      LinearStep{Slot::kNormed, {{{0}, Slot::kQuery}, {{1}, Slot::kKey}, {{2}, Slot::kValue}}},
      AttendStep{},
      NormStep{{NormKind::kLayer, 1e-5f}},
      LinearStep{Slot::kAttended, {{{3}, Slot::kResidual, Into::kAdd}}},
      LinearStep{Slot::kNormed, {{{4}, Slot::kInner}}},
      ActivateStep{Activation::kRelu},
      LinearStep{Slot::kInner, {{{5}, Slot::kResidual, Into::kAdd}}},
  };
  EXPECT_THAT(Texts(ResolveLayer(layer).after),
              ElementsAre("Norm Layer", "Linear attended -> += x", "Linear normed -> relu inner",
                          "Linear inner -> += x"));
}

TEST(CallsDeathTest, RefusesProgramsThatReadWhatIsNotThere) {
  const LinearStep qkv = {Slot::kResidual,
                          {{{0}, Slot::kQuery}, {{1}, Slot::kKey}, {{2}, Slot::kValue}}};
  const LinearStep out = {Slot::kAttended, {{{3}, Slot::kResidual, Into::kAdd}}};
  const LinearStep inner = {Slot::kResidual, {{{4}, Slot::kInner}}};
  const auto resolve = [](std::vector<Step> steps) {
    return ResolveLayer({{}, std::move(steps)}).after.size();
  };
  EXPECT_EQ(resolve({qkv, AttendStep{}, out, inner}), 2u);
  EXPECT_DEATH(resolve({qkv, out}), "");                                // does not attend
  EXPECT_DEATH(resolve({AttendStep{}, out}), "");                       // to nothing
  EXPECT_DEATH(resolve({qkv, AttendStep{}, inner, out}), "");           // inner is where o was
  EXPECT_DEATH(resolve({qkv, AttendStep{}, ActivateStep{}, out}), "");  // what is activated?
  EXPECT_DEATH(resolve({NormStep{}, qkv, AttendStep{}, LinearStep{}}), "");
}

// What config_identity.cc keeps in sessions hangs on the family's names of keys.
TEST(FamiliesTest, EachHasItsNames) {
  for (const Family* family : Families()) {
    EXPECT_NE(family->architecture, nullptr);
    EXPECT_NE(family->read, nullptr);
    EXPECT_STREQ(family->keys.d_ff, family == &kOpt ? "ffn_dim" : "intermediate_size");
  }
  EXPECT_EQ(Families().size(), 6u);
}

}  // namespace
}  // namespace headway::arch
