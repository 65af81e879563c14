#include "model/arch/llama.h"

#include <optional>

#include "model/arch/family.h"

namespace headway::arch {

namespace {

// Of q and k.
void AddHeadNorms(const ModelConfig& c, LayerProgram* layer) {
  TensorList& t = layer->tensors;
  const auto weight = [&](const char* name) {
    return t.Add({.name = name, .rows = c.shape.head_dim, .use = Use::kNormWeight});
  };
  const TensorId q = weight("self_attn.q_norm.weight");
  const TensorId k = weight("self_attn.k_norm.weight");
  layer->steps.push_back(HeadNormStep{Slot::kQuery, q, c.norm_eps});
  layer->steps.push_back(HeadNormStep{Slot::kKey, k, c.norm_eps});
}

LayerProgram BuildLayer(const ModelConfig& c) {
  const ModelShape& s = c.shape;
  const int64_t q_width = int64_t{s.query_heads} * s.head_dim;
  const int64_t kv_width = int64_t{s.kv_heads} * s.head_dim;
  const NormTraits norm = {NormKind::kRms, c.norm_eps, c.norm_affine};
  LayerProgram layer;
  TensorList& t = layer.tensors;
  std::vector<Step>& steps = layer.steps;

  steps.push_back(NormStep{t.AddNorm("input_layernorm", s.d_model, norm)});
  const auto qkv = [&](const char* name, int64_t width, Split split) {
    return t.AddLinear({name, width, s.d_model, split, c.qkv_bias});
  };
  const Linear q = qkv("self_attn.q_proj", q_width, Split::kQueryRows);
  const Linear k = qkv("self_attn.k_proj", kv_width, Split::kKvRows);
  const Linear v = qkv("self_attn.v_proj", kv_width, Split::kKvRows);
  steps.push_back(
      LinearStep{Slot::kNormed, {{q, Slot::kQuery}, {k, Slot::kKey}, {v, Slot::kValue}}});
  if (c.qk_norm) AddHeadNorms(c, &layer);
  if (c.rope.type != RopeType::kNone) steps.push_back(RopeStep{});
  steps.push_back(AttendStep{});
  const Linear o =
      t.AddLinear({"self_attn.o_proj", s.d_model, q_width, Split::kQueryColumns, c.o_bias});
  steps.push_back(LinearStep{Slot::kAttended, {{o, Slot::kResidual, Into::kAdd}}});

  steps.push_back(NormStep{t.AddNorm("post_attention_layernorm", s.d_model, norm)});
  const Linear gate =
      t.AddLinear({"mlp.gate_proj", s.d_ff, s.d_model, Split::kInnerRows, c.mlp_bias});
  const Linear up = t.AddLinear({"mlp.up_proj", s.d_ff, s.d_model, Split::kInnerRows, c.mlp_bias});
  const Linear down =
      t.AddLinear({"mlp.down_proj", s.d_model, s.d_ff, Split::kInnerColumns, c.mlp_bias});
  steps.push_back(LinearStep{Slot::kNormed, {{gate, Slot::kInner}, {up, Slot::kUp}}});
  steps.push_back(ActivateStep{Activation::kSwiGlu});
  steps.push_back(LinearStep{Slot::kInner, {{down, Slot::kResidual, Into::kAdd}}});
  return layer;
}

}  // namespace

void ReadLlamaShape(ConfigReader& config, const HeadDefaults& defaults, ModelShape* shape) {
  shape->gated_mlp = true;
  ReadWidths(config, ConfigKeys().d_ff, shape);
  ReadGroupedHeads(config, defaults, shape);
}

void ReadLlamaFields(ConfigReader& config, int64_t default_max_position, ModelConfig* model) {
  model->max_position =
      config.Int("max_position_embeddings", 1, kMaxPosition, default_max_position);
  model->norm_eps =
      static_cast<float>(config.Number(ConfigKeys().norm_eps, 0.0, 1.0, /*fallback=*/1e-6));
  model->tied_embeddings = config.Bool("tie_word_embeddings", false);
}

void ReadLlamaRope(ConfigReader& config, ModelConfig* model) {
  model->rope = ReadRope(config, model->max_position);
  CheckRotaryDim(config, model->rope, model->shape.head_dim);
}

Program BuildLlama(const ModelConfig& c) {
  const ModelShape& s = c.shape;
  Program program;
  TensorList& t = program.tensors;
  program.embedding = t.Add({.name = "embed_tokens.weight",
                             .rows = s.vocab,
                             .columns = s.d_model,
                             .use = c.tied_embeddings ? Use::kMatrix : Use::kRowTable});
  program.embed = {EmbedStep{program.embedding}};
  program.front = t.specs.size();
  program.layers.assign(static_cast<size_t>(s.layers), BuildLayer(c));
  if (c.final_norm) {
    program.output.push_back(
        NormStep{t.AddNorm("norm", s.d_model, {NormKind::kRms, c.norm_eps, c.norm_affine})});
  }
  program.head = t.Add({.name = "lm_head.weight",
                        .rows = s.vocab,
                        .columns = s.d_model,
                        .split = Split::kVocabRows,
                        .has_prefix = false});
  program.output.push_back(LinearStep{c.final_norm ? Slot::kNormed : Slot::kResidual,
                                      {{{program.head}, Slot::kLogits}}});
  return program;
}

constinit const Family kLlama = {
    .architecture = "LlamaForCausalLM",
    .model_type = "llama",
    .default_bos = 1,
    .default_eos = 2,
    .read_shape = [](ConfigReader& config,
                     ModelShape* shape) { ReadLlamaShape(config, {}, shape); },
    .read =
        [](ConfigReader& config, ModelConfig* model) {
          ReadLlamaFields(config, 2048, model);
          model->qkv_bias = model->o_bias = config.Bool("attention_bias", false);
          model->mlp_bias = config.Bool("mlp_bias", false);
          ReadLlamaRope(config, model);
        },
    .build = BuildLlama,
};

}  // namespace headway::arch
