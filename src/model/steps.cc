// The way of a token through the model, from its id to its logits. Attention itself, between Qkv
// and AttentionOut, is the engine's.
#include <array>

#include "model/model.h"

namespace headway {

void Model::Embed(Kernels& kernels, Stream& stream, std::span<const TokenId> ids, float* x) const {
  kernels.Embed(stream, embed_, ids, x);
}

void Model::Qkv(Kernels& kernels, Stream& stream, int layer, int64_t tokens,
                const Activations& a) const {
  const Layer& w = layers_[static_cast<size_t>(layer)];
  const ModelShape& s = config_.shape;
  const std::array<LinearOp, 3> ops = {{
      {.weight = w.q, .bias = w.q_bias, .y = a.q, .y_stride = a.qkv_stride},
      {.weight = w.k, .bias = w.k_bias, .y = a.k, .y_stride = a.qkv_stride},
      {.weight = w.v, .bias = w.v_bias, .y = a.v, .y_stride = a.qkv_stride},
  }};
  kernels.NormLinear(stream, a.x, w.input_norm, config_.norm_eps, tokens, a.normed, ops);
  if (config_.qk_norm) {
    kernels.HeadNorm(stream, w.q_norm, config_.norm_eps, tokens, s.query_heads, s.head_dim, a.q,
                     a.qkv_stride);
    kernels.HeadNorm(stream, w.k_norm, config_.norm_eps, tokens, s.kv_heads, s.head_dim, a.k,
                     a.qkv_stride);
  }
}

void Model::AttentionOut(Kernels& kernels, Stream& stream, int layer, int64_t tokens,
                         const Activations& a) const {
  const Layer& w = layers_[static_cast<size_t>(layer)];
  const LinearOp op = {.weight = w.o,
                       .bias = w.o_bias,
                       .y = a.x,
                       .y_stride = w.o.out,
                       .result = LinearResult::kAddFloat};
  kernels.Linear(stream, a.o, tokens, {&op, 1});
}

void Model::Mlp(Kernels& kernels, Stream& stream, int layer, int64_t tokens,
                const Activations& a) const {
  const Layer& w = layers_[static_cast<size_t>(layer)];
  kernels.NormGatedLinear(
      stream, a.x, w.mlp_norm, config_.norm_eps, tokens, a.normed,
      {.weight = w.gate, .bias = w.gate_bias, .y = a.gate, .y_stride = w.gate.out},
      {.weight = w.up, .bias = w.up_bias, .y = a.up, .y_stride = w.up.out});
  const LinearOp down = {.weight = w.down,
                         .bias = w.down_bias,
                         .y = a.x,
                         .y_stride = w.down.out,
                         .result = LinearResult::kAddFloat};
  kernels.Linear(stream, a.gate, tokens, {&down, 1});
}

void Model::Head(Kernels& kernels, Stream& stream, int64_t rows, const float* x, void* normed,
                 float* logits) const {
  const LinearOp op = {
      .weight = head_, .y = logits, .y_stride = head_.out, .result = LinearResult::kFloat};
  kernels.NormLinear(stream, x, final_norm_, config_.norm_eps, rows, normed, {&op, 1});
}

}  // namespace headway
