// The way of a token through the model, from its id to its logits. Attention itself, between Qkv
// and AttentionOut, is the engine's.
#include <array>
#include <vector>

#include "model/model.h"

namespace headway {

namespace {

// The norm in front of a product: none, where norms come behind.
NormView Before(const ModelConfig& config, const NormView& norm) {
  return config.norm_behind ? NormView{.kind = NormKind::kNone} : norm;
}

}  // namespace

void Model::Embed(Kernels& kernels, Stream& stream, std::span<const TokenId> ids,
                  std::span<const int32_t> positions, const Activations& a) const {
  const auto tokens = static_cast<int64_t>(ids.size());
  kernels.Embed(stream, embed_, ids, /*add=*/false, a.x);
  if (config_.embed_width != 0) {
    // x has room for the narrower rows, too.
    kernels.Norm(stream, a.x, {.kind = NormKind::kNone}, tokens, config_.embed_width, a.normed);
    const LinearOp op = {.weight = project_in_,
                         .y = a.x,
                         .y_stride = project_in_.out,
                         .result = LinearResult::kFloat};
    kernels.Linear(stream, a.normed, tokens, {&op, 1});
  }
  if (!config_.learned_positions) return;
  std::vector<TokenId> rows;
  for (const int32_t position : positions) {
    rows.push_back(static_cast<TokenId>(position + kPositionOffset));
  }
  kernels.Embed(stream, positions_, rows, /*add=*/true, a.x);
}

void Model::Qkv(Kernels& kernels, Stream& stream, int layer, int64_t tokens, const Activations& a,
                bool keep_normed, const std::byte* block) const {
  const Layer w = LayerAt(layer, block);
  const ModelShape& s = config_.shape;
  const std::array<LinearOp, 3> ops = {{
      {.weight = w.q, .bias = w.q_bias, .y = a.q, .y_stride = a.qkv_stride},
      {.weight = w.k, .bias = w.k_bias, .y = a.k, .y_stride = a.qkv_stride},
      {.weight = w.v, .bias = w.v_bias, .y = a.v, .y_stride = a.qkv_stride},
  }};
  const NormView norm = Before(config_, w.input_norm);
  if (keep_normed) {
    kernels.Norm(stream, a.x, norm, tokens, s.d_model, a.normed);
    kernels.Linear(stream, a.normed, tokens, ops);
  } else {
    kernels.NormLinear(stream, a.x, norm, tokens, a.normed, ops);
  }
  if (config_.qk_norm) {
    kernels.HeadNorm(stream, w.q_norm, config_.norm_eps, tokens, s.query_heads, s.head_dim, a.q,
                     a.qkv_stride);
    kernels.HeadNorm(stream, w.k_norm, config_.norm_eps, tokens, s.kv_heads, s.head_dim, a.k,
                     a.qkv_stride);
  }
}

void Model::Kv(Kernels& kernels, Stream& stream, int layer, const void* normed, int64_t rows,
               void* k, void* v, int64_t kv_stride, const std::byte* block) const {
  const Layer w = LayerAt(layer, block);
  const ModelShape& s = config_.shape;
  const std::array<LinearOp, 2> ops = {{
      {.weight = w.k, .bias = w.k_bias, .y = k, .y_stride = kv_stride},
      {.weight = w.v, .bias = w.v_bias, .y = v, .y_stride = kv_stride},
  }};
  kernels.Linear(stream, normed, rows, ops);
  if (config_.qk_norm) {
    kernels.HeadNorm(stream, w.k_norm, config_.norm_eps, rows, s.kv_heads, s.head_dim, k,
                     kv_stride);
  }
}

void Model::AttentionOut(Kernels& kernels, Stream& stream, int layer, int64_t tokens,
                         const Activations& a, const std::byte* block) const {
  const Layer w = LayerAt(layer, block);
  const LinearOp op = {.weight = w.o,
                       .bias = w.o_bias,
                       .y = a.x,
                       .y_stride = w.o.out,
                       .result = LinearResult::kAddFloat};
  kernels.Linear(stream, a.o, tokens, {&op, 1});
  if (config_.norm_behind) {
    kernels.NormInPlace(stream, w.input_norm, tokens, config_.shape.d_model, a.x);
  }
}

void Model::Mlp(Kernels& kernels, Stream& stream, int layer, int64_t tokens, const Activations& a,
                const std::byte* block) const {
  const Layer w = LayerAt(layer, block);
  const NormView norm = Before(config_, w.mlp_norm);
  LinearOp gate = {.weight = w.gate, .bias = w.gate_bias, .y = a.gate, .y_stride = w.gate.out};
  if (config_.shape.gated_mlp) {
    kernels.NormGatedLinear(stream, a.x, norm, tokens, a.normed, gate,
                            {.weight = w.up, .bias = w.up_bias, .y = a.up, .y_stride = w.up.out});
  } else {
    gate.result = LinearResult::kRelu;
    kernels.NormLinear(stream, a.x, norm, tokens, a.normed, {&gate, 1});
  }
  const LinearOp down = {.weight = w.down,
                         .bias = w.down_bias,
                         .y = a.x,
                         .y_stride = w.down.out,
                         .result = LinearResult::kAddFloat};
  kernels.Linear(stream, a.gate, tokens, {&down, 1});
  if (config_.norm_behind) {
    kernels.NormInPlace(stream, w.mlp_norm, tokens, config_.shape.d_model, a.x);
  }
}

void Model::Head(Kernels& kernels, Stream& stream, int64_t rows, const float* x, void* scratch,
                 float* logits) const {
  const LinearOp head = {
      .weight = head_, .y = logits, .y_stride = head_.out, .result = LinearResult::kFloat};
  if (config_.embed_width == 0) {
    return kernels.NormLinear(stream, x, final_norm_, rows, scratch, {&head, 1});
  }
  const DType dtype = kernels.ActivationDType(config_.shape.dtype);
  void* const projected =
      static_cast<std::byte*>(scratch) + HeadScratchBytes(config_.shape, dtype, rows) / 2;
  const LinearOp out = {.weight = project_out_, .y = projected, .y_stride = project_out_.out};
  kernels.NormLinear(stream, x, final_norm_, rows, scratch, {&out, 1});
  kernels.Linear(stream, projected, rows, {&head, 1});
}

}  // namespace headway
