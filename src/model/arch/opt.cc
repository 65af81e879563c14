// OPT: LayerNorm, learned positions, as many KV heads as query heads, and an MLP of two products
// with ReLU between. OPT-350m has its norms behind attention and MLP, and a narrower embedding with
// products from and to its width.
#include <fmt/format.h>

#include "model/arch/config_fields.h"
#include "model/arch/family.h"

namespace headway::arch {

namespace {

// Rows of the table of learned positions before the first one's.
constexpr int64_t kPositionOffset = 2;

constexpr const char* kActivations[] = {"relu"};
constexpr ConfigKeys kKeys = {
    .d_ff = "ffn_dim", .norm_eps = "epsilon of LayerNorm", .biases = "enable_bias"};

void ReadShape(ConfigReader& config, ModelShape* shape) {
  shape->gated_mlp = false;
  ReadWidths(config, kKeys.d_ff, shape);
  ReadEqualHeads(config, shape);
}

void Read(ConfigReader& config, ModelConfig* model) {
  model->max_position = config.Int("max_position_embeddings", 1, kMaxTable, 2048);
  model->norm_eps = 1e-5f;  // torch.nn.LayerNorm's, which the architecture takes
  model->layer_norm = true;
  model->norm_affine = config.Bool("layer_norm_elementwise_affine", true);
  model->norm_behind = !config.Bool("do_layer_norm_before", true);
  model->final_norm = !model->norm_behind && !config.Bool("_remove_final_layer_norm", false);
  model->tied_embeddings = config.Bool("tie_word_embeddings", true);
  model->qkv_bias = model->o_bias = model->mlp_bias = config.Bool(kKeys.biases, true);
  model->rope.type = RopeType::kNone;
  model->learned_positions = true;
  const int64_t width = config.Int("word_embed_proj_dim", 1, kMaxWidth, model->shape.d_model);
  if (width > model->shape.d_model) {
    config.Unsupported(fmt::format("word_embed_proj_dim {} above hidden_size {} is not supported",
                                   width, model->shape.d_model));
  }
  if (width != model->shape.d_model) model->embed_width = static_cast<int>(width);
}

NormTraits Traits(const ModelConfig& c) { return {NormKind::kLayer, c.norm_eps, c.norm_affine}; }

LayerProgram BuildLayer(const ModelConfig& c) {
  const ModelShape& s = c.shape;
  const int64_t width = int64_t{s.query_heads} * s.head_dim;
  LayerProgram layer;
  TensorList& t = layer.tensors;
  const Norm attention_norm = t.AddNorm("self_attn_layer_norm", s.d_model, Traits(c));
  const auto qkv = [&](const char* name, Split split) {
    return t.AddLinear({name, width, s.d_model, split, c.qkv_bias});
  };
  const Linear q = qkv("self_attn.q_proj", Split::kQueryRows);
  const Linear k = qkv("self_attn.k_proj", Split::kKvRows);
  const Linear v = qkv("self_attn.v_proj", Split::kKvRows);
  const Linear o =
      t.AddLinear({"self_attn.out_proj", s.d_model, width, Split::kQueryColumns, c.o_bias});
  const Norm mlp_norm = t.AddNorm("final_layer_norm", s.d_model, Traits(c));
  const Linear inner = t.AddLinear({"fc1", s.d_ff, s.d_model, Split::kInnerRows, c.mlp_bias});
  const Linear outer = t.AddLinear({"fc2", s.d_model, s.d_ff, Split::kInnerColumns, c.mlp_bias});

  std::vector<Step>& steps = layer.steps;
  const Slot input = c.norm_behind ? Slot::kResidual : Slot::kNormed;
  if (!c.norm_behind) steps.push_back(NormStep{attention_norm});
  steps.push_back(LinearStep{input, {{q, Slot::kQuery}, {k, Slot::kKey}, {v, Slot::kValue}}});
  if (c.rope.type != RopeType::kNone) steps.push_back(RopeStep{});
  steps.push_back(AttendStep{});
  steps.push_back(LinearStep{Slot::kAttended, {{o, Slot::kResidual, Into::kAdd}}});
  steps.push_back(c.norm_behind ? NormStep{attention_norm, Slot::kResidual} : NormStep{mlp_norm});
  steps.push_back(LinearStep{input, {{inner, Slot::kInner}}});
  steps.push_back(ActivateStep{Activation::kRelu});
  steps.push_back(LinearStep{Slot::kInner, {{outer, Slot::kResidual, Into::kAdd}}});
  if (c.norm_behind) steps.push_back(NormStep{mlp_norm, Slot::kResidual});
  return layer;
}

// From and to the embedding's width, where that is not the model's.
struct Projections {
  Linear in;
  Linear out;
};

void AddEmbedding(const ModelConfig& c, int64_t width, Program* program, Projections* projections) {
  const ModelShape& s = c.shape;
  TensorList& t = program->tensors;
  program->embedding = t.Add({.name = "embed_tokens.weight",
                              .rows = s.vocab,
                              .columns = width,
                              .use = c.tied_embeddings ? Use::kMatrix : Use::kRowTable});
  program->embed.push_back(EmbedStep{program->embedding});
  TensorId positions = kNoTensor;
  if (c.learned_positions) {
    positions = t.Add({.name = "embed_positions.weight",
                       .rows = c.max_position + kPositionOffset,
                       .columns = s.d_model,
                       .use = Use::kRowTable});
  }
  if (c.embed_width != 0) {
    projections->in = t.AddLinear({.name = "project_in", .out = s.d_model, .in = width});
    projections->out = t.AddLinear({.name = "project_out", .out = width, .in = s.d_model});
    program->embed.push_back(
        LinearStep{Slot::kResidual, {{projections->in, Slot::kResidual, Into::kSet}}});
  }
  if (c.learned_positions) {
    program->embed.push_back(EmbedStep{positions, RowBy::kPosition, kPositionOffset});
  }
}

Program Build(const ModelConfig& c) {
  const ModelShape& s = c.shape;
  const int64_t width = c.embed_width == 0 ? s.d_model : c.embed_width;
  Program program;
  program.prefix = "model.decoder.";
  program.bare_prefix = "decoder.";
  Projections projections;
  AddEmbedding(c, width, &program, &projections);
  program.front = program.tensors.specs.size();
  program.layers.assign(static_cast<size_t>(s.layers), BuildLayer(c));

  Slot last = Slot::kResidual;
  if (c.final_norm) {
    const Norm norm = program.tensors.AddNorm("final_layer_norm", s.d_model, Traits(c));
    program.output.push_back(NormStep{norm});
    last = Slot::kNormed;
  }
  if (c.embed_width != 0) {
    program.output.push_back(LinearStep{last, {{projections.out, Slot::kProjected}}});
    last = Slot::kProjected;
  }
  program.head = program.tensors.Add({.name = "lm_head.weight",
                                      .rows = s.vocab,
                                      .columns = width,
                                      .split = Split::kVocabRows,
                                      .has_prefix = false});
  program.output.push_back(LinearStep{last, {{{program.head}, Slot::kLogits}}});
  return program;
}

}  // namespace

constinit const Family kOpt = {
    .architecture = "OPTForCausalLM",
    .model_type = "opt",
    .keys = kKeys,
    .activation = {.key = "activation_function", .names = kActivations},
    .default_bos = 2,
    .default_eos = 2,
    .read_shape = ReadShape,
    .read = Read,
    .build = Build,
};

}  // namespace headway::arch
