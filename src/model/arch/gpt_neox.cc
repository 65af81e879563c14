// GPT-NeoX, as Pythia, Dolly and StableLM-alpha are too: LayerNorm, as many KV heads as query
// heads, of which the first elements rotate, and an MLP with GELU that reads the residual stream
// beside attention or behind it. The files hold queries, keys and values as one tensor, head by
// head.
#include "model/arch/config_fields.h"
#include "model/arch/family.h"

namespace headway::arch {

namespace {

// The first is exact; the others are names of its tanh formula.
constexpr const char* kActivations[] = {"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"};
constexpr ActivationKey kActivation = {.names = kActivations};
constexpr ConfigKeys kKeys = {.norm_eps = "layer_norm_eps"};

void ReadShape(ConfigReader& config, ModelShape* shape) {
  shape->gated_mlp = false;
  ReadWidths(config, kKeys.d_ff, shape);
  ReadEqualHeads(config, shape);
}

void Read(ConfigReader& config, ModelConfig* model) {
  model->max_position = config.Int("max_position_embeddings", 1, kMaxPosition, 2048);
  model->norm_eps = static_cast<float>(config.Number(kKeys.norm_eps, 0.0, 1.0, /*fallback=*/1e-5));
  model->layer_norm = true;
  model->qkv_bias = model->o_bias = config.Bool(kKeys.biases, true);
  model->mlp_bias = true;
  model->parallel_residual = config.Bool("use_parallel_residual", true);
  model->tanh_gelu = config.String(kActivation.key, kActivations[0]) != kActivations[0];
  model->tied_embeddings = config.Bool("tie_word_embeddings", false);
  model->rope =
      ReadRope(config, model->max_position,
               {.theta = "rotary_emb_base", .share = "rotary_pct", .default_share = 0.25});
  CheckRotaryDim(config, model->rope, model->shape.head_dim);
}

NormTraits Traits(const ModelConfig& c) { return {NormKind::kLayer, c.norm_eps}; }

LayerProgram BuildLayer(const ModelConfig& c) {
  const ModelShape& s = c.shape;
  LayerProgram layer;
  TensorList& t = layer.tensors;
  const Norm attention_norm = t.AddNorm("input_layernorm", s.d_model, Traits(c));
  const auto qkv = [&](int at, Split split) {
    return t.AddLinear({"attention.query_key_value",
                        s.d_model,
                        s.d_model,
                        split,
                        c.qkv_bias,
                        {.tensors = 3, .at = at, .rows = s.head_dim}});
  };
  const Linear q = qkv(0, Split::kQueryRows);
  const Linear k = qkv(1, Split::kKvRows);
  const Linear v = qkv(2, Split::kKvRows);
  const Linear o =
      t.AddLinear({"attention.dense", s.d_model, s.d_model, Split::kQueryColumns, c.o_bias});
  const Norm mlp_norm = t.AddNorm("post_attention_layernorm", s.d_model, Traits(c));
  const Linear inner =
      t.AddLinear({"mlp.dense_h_to_4h", s.d_ff, s.d_model, Split::kInnerRows, c.mlp_bias});
  const Linear outer =
      t.AddLinear({"mlp.dense_4h_to_h", s.d_model, s.d_ff, Split::kInnerColumns, c.mlp_bias});

  const LinearStep attention = {Slot::kAttended, {{o, Slot::kResidual, Into::kAdd}}};
  std::vector<Step>& steps = layer.steps;
  steps = {NormStep{attention_norm},
           LinearStep{Slot::kNormed, {{q, Slot::kQuery}, {k, Slot::kKey}, {v, Slot::kValue}}},
           RopeStep{}, AttendStep{}};
  // Side by side, the MLP's norm is of what attention has not been added to.
  if (c.parallel_residual) {
    steps.insert(steps.end(), {NormStep{mlp_norm}, attention});
  } else {
    steps.insert(steps.end(), {attention, NormStep{mlp_norm}});
  }
  steps.push_back(LinearStep{Slot::kNormed, {{inner, Slot::kInner}}});
  steps.push_back(ActivateStep{c.tanh_gelu ? Activation::kGeluTanh : Activation::kGelu});
  steps.push_back(LinearStep{Slot::kInner, {{outer, Slot::kResidual, Into::kAdd}}});
  return layer;
}

Program Build(const ModelConfig& c) {
  const ModelShape& s = c.shape;
  Program program;
  program.prefix = "gpt_neox.";
  TensorList& t = program.tensors;
  program.embedding = t.Add({.name = "embed_in.weight",
                             .rows = s.vocab,
                             .columns = s.d_model,
                             .use = c.tied_embeddings ? Use::kMatrix : Use::kRowTable});
  program.embed = {EmbedStep{program.embedding}};
  program.front = t.specs.size();
  program.layers.assign(static_cast<size_t>(s.layers), BuildLayer(c));
  const Norm last = t.AddNorm("final_layer_norm", s.d_model, Traits(c));
  program.head = t.Add({.name = "embed_out.weight",
                        .rows = s.vocab,
                        .columns = s.d_model,
                        .split = Split::kVocabRows,
                        .has_prefix = false});
  program.output = {NormStep{last}, LinearStep{Slot::kNormed, {{{program.head}, Slot::kLogits}}}};
  return program;
}

}  // namespace

constinit const Family kGptNeoX = {
    .architecture = "GPTNeoXForCausalLM",
    .model_type = "gpt_neox",
    .keys = kKeys,
    .activation = kActivation,
    .default_bos = 0,
    .default_eos = 2,
    .read_shape = ReadShape,
    .read = Read,
    .build = Build,
};

}  // namespace headway::arch
