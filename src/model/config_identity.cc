#include "model/config_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "model/arch/family.h"

namespace headway {
namespace {

// The structured bindings of this file name every field, so that a new one does not compile until
// it was decided here whether it counts.
class Lines {
 public:
  template <typename T>
  void Add(std::string_view name, const T& value) {
    text_ += fmt::format("{}={}\n", name, value);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

void AddShape(const ModelShape& shape, const arch::ConfigKeys& keys, Lines* lines) {
  const auto& [layers, d_model, query_heads, kv_heads, head_dim, d_ff, vocab, dtype, gated_mlp] =
      shape;
  lines->Add("num_hidden_layers", layers);
  lines->Add("hidden_size", d_model);
  lines->Add("num_attention_heads", query_heads);
  lines->Add("num_key_value_heads", kv_heads);
  lines->Add("head_dim", head_dim);
  lines->Add(keys.d_ff, d_ff);
  lines->Add("vocab_size", vocab);
  lines->Add("dtype of the weights", DTypeName(dtype));
  lines->Add("gated MLP", gated_mlp);
}

// Only what ComputeRope reads for the type: a longer max_position_embeddings changes nothing
// elsewhere.
void AddRope(const RopeConfig& rope, Lines* lines) {
  const auto& [type, theta, factor, max_position, original_max_position, low_freq_factor,
               high_freq_factor, beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim,
               truncate, share] = rope;
  lines->Add("rope_type", RopeTypeName(type));
  if (type == RopeType::kNone) return;
  lines->Add("rope_theta", theta);
  if (share != 1.0) lines->Add("share of a head that rotates", share);
  if (type == RopeType::kDefault) return;
  lines->Add("RoPE factor", factor);
  if (type == RopeType::kDynamic) lines->Add("max_position_embeddings", max_position);
  if (type == RopeType::kYarn || type == RopeType::kLlama3) {
    lines->Add("original_max_position_embeddings", original_max_position);
  }
  if (type == RopeType::kLlama3) {
    lines->Add("low_freq_factor", low_freq_factor);
    lines->Add("high_freq_factor", high_freq_factor);
  }
  if (type == RopeType::kYarn) {
    lines->Add("beta_fast", beta_fast);
    lines->Add("beta_slow", beta_slow);
    lines->Add("attention_factor", attention_factor ? fmt::to_string(*attention_factor) : "none");
    lines->Add("mscale", mscale);
    lines->Add("mscale_all_dim", mscale_all_dim);
    lines->Add("truncate", truncate);
  }
}

// One number where all layers are alike.
std::string Windows(const std::vector<int64_t>& windows) {
  const bool alike =
      std::adjacent_find(windows.begin(), windows.end(), std::not_equal_to<>()) == windows.end();
  if (alike) return windows.empty() || windows[0] == 0 ? "none" : fmt::to_string(windows[0]);
  return fmt::format("{}", fmt::join(windows, ","));
}

}  // namespace

std::string ConfigIdentity(const ModelConfig& config) {
  // Not the family, which `architecture` names, nor what bounds lengths (max_position), or decides
  // which tokens are asked for and when to stop. It is of whole models: of no run of layers.
  const auto& [architecture, family, shape, first_layer, norm_eps, layer_norm, norm_affine,
               norm_behind, final_norm, embed_width, qkv_bias, o_bias, mlp_bias, qk_norm,
               parallel_residual, tanh_gelu, tied_embeddings, rope, windows, max_position,
               max_position_given, learned_positions, bos, eos, generation] = config;
  const arch::ConfigKeys& keys = family->keys;
  Lines lines;
  lines.Add("architectures", architecture);
  AddShape(shape, keys, &lines);
  lines.Add(keys.norm_eps, norm_eps);
  lines.Add("LayerNorm", layer_norm);
  lines.Add("layer_norm_elementwise_affine", norm_affine);
  lines.Add("do_layer_norm_before", !norm_behind);
  lines.Add("final norm", final_norm);
  lines.Add("word_embed_proj_dim", embed_width == 0 ? shape.d_model : embed_width);
  lines.Add(keys.biases, qkv_bias);
  lines.Add("bias of the output projection", o_bias);
  lines.Add("mlp_bias", mlp_bias);
  lines.Add("norms of queries and keys", qk_norm);
  lines.Add("tie_word_embeddings", tied_embeddings);
  AddRope(rope, &lines);
  lines.Add("sliding_window", Windows(windows));
  lines.Add("learned positions", learned_positions);
  // Files from before there were such models have no lines of these.
  if (parallel_residual) lines.Add("use_parallel_residual", true);
  if (tanh_gelu) lines.Add("GELU by tanh", true);
  return lines.Take();
}

std::string IdentityDifference(std::string_view before, std::string_view now) {
  constexpr size_t kShown = 60;
  const auto take = [](std::string_view* text) {
    const std::string_view line = text->substr(0, text->find('\n'));
    text->remove_prefix(std::min(line.size() + 1, text->size()));
    return line;
  };
  while (!before.empty() || !now.empty()) {
    const std::string_view a = take(&before), b = take(&now);
    if (a == b) continue;
    const std::string_view name = a.substr(0, a.find('=')), other = b.substr(0, b.find('='));
    // Settings that only one of them has follow a setting that differs; text that is not ours does
    // not.
    if (name != other || name.size() == a.size() || other.size() == b.size()) {
      return "another configuration";
    }
    const std::string_view was = a.substr(name.size() + 1), is = b.substr(name.size() + 1);
    if (std::max(was.size(), is.size()) > kShown) return fmt::format("another {}", name);
    return fmt::format("{} {}, the model now has {}", name, was, is);
  }
  return "";
}

}  // namespace headway
