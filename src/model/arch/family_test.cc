// A family that this file defines, and no other knows: as in GPT-NeoX attention and MLP work on the
// same residual stream side by side, as in BLOOM the embedding has a norm; tensors and keys of
// config.json have names of their own. What the model computes is compared with a plain loop.
#include "model/arch/family.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "device/budget.h"
#include "device/cpu/cpu_device.h"
#include "model/arch/config_fields.h"
#include "model/config_identity.h"
#include "model/model.h"
#include "model/testing/memory_source.h"
#include "model/testing/plain_runner.h"

namespace headway::arch {
namespace {

using ::testing::HasSubstr;

constexpr float kEps = 1e-5f;
constexpr NormTraits kNorm = {NormKind::kLayer, kEps, true};

void ReadToyShape(ConfigReader& config, ModelShape* shape) {
  const auto read = [&](const char* key) {
    return static_cast<int>(config.Int(key, 1, kMaxWidth, std::nullopt));
  };
  shape->layers = read("n_layer");
  shape->d_model = read("n_embd");
  shape->d_ff = read("n_inner");
  shape->vocab = read("n_vocab");
  shape->query_heads = read("n_head");
  shape->kv_heads = read("n_head_kv");
  shape->head_dim = shape->d_model / shape->query_heads;
  shape->gated_mlp = config.Bool("gated", false);
  CheckHeadDim(config, *shape);
}

void ReadToy(ConfigReader& config, ModelConfig* model) {
  model->max_position = config.Int("n_positions", 1, kMaxPosition, 512);
  model->norm_eps = kEps;
  model->layer_norm = true;
  model->qkv_bias = model->o_bias = model->mlp_bias = true;
  model->rope = ReadRope(config, model->max_position);
}

LayerProgram BuildToyLayer(const ModelShape& s) {
  const int64_t q_width = int64_t{s.query_heads} * s.head_dim;
  const int64_t kv_width = int64_t{s.kv_heads} * s.head_dim;
  LayerProgram layer;
  TensorList& t = layer.tensors;
  const auto linear = [&t](const char* name, int64_t out, int64_t in, Split split) {
    return t.AddLinear({name, out, in, split, /*has_bias=*/true});
  };
  const Linear q = linear("attn.query", q_width, s.d_model, Split::kQueryRows);
  const Linear k = linear("attn.key", kv_width, s.d_model, Split::kKvRows);
  const Linear v = linear("attn.value", kv_width, s.d_model, Split::kKvRows);
  const Linear o = linear("attn.dense", s.d_model, q_width, Split::kQueryColumns);
  const Linear inner = linear("mlp.up", s.d_ff, s.d_model, Split::kInnerRows);
  const Linear outer = linear("mlp.down", s.d_model, s.d_ff, Split::kInnerColumns);
  const Norm attention_norm = t.AddNorm("ln_attn", s.d_model, kNorm);
  const Norm mlp_norm = t.AddNorm("ln_mlp", s.d_model, kNorm);
  layer.steps = {
      NormStep{attention_norm},
      LinearStep{Slot::kNormed, {{q, Slot::kQuery}, {k, Slot::kKey}, {v, Slot::kValue}}},
      RopeStep{},
      AttendStep{},
      NormStep{mlp_norm},
      LinearStep{Slot::kAttended, {{o, Slot::kResidual, Into::kAdd}}},
  };
  LinearStep half = {Slot::kNormed, {{inner, Slot::kInner}}};
  if (s.gated_mlp) {
    const Linear up = linear("mlp.gated", s.d_ff, s.d_model, Split::kInnerRows);
    half.products.push_back({up, Slot::kUp});
  }
  layer.steps.push_back(half);
  layer.steps.push_back(ActivateStep{s.gated_mlp ? Activation::kSwiGlu : Activation::kRelu});
  layer.steps.push_back(LinearStep{Slot::kInner, {{outer, Slot::kResidual, Into::kAdd}}});
  return layer;
}

Program BuildToy(const ModelConfig& c) {
  const ModelShape& s = c.shape;
  Program program;
  program.prefix = program.bare_prefix = "toy.";
  program.layer_prefix = "h.";
  TensorList& t = program.tensors;
  program.embedding =
      t.Add({.name = "words.weight", .rows = s.vocab, .columns = s.d_model, .use = Use::kRowTable});
  program.embed = {EmbedStep{program.embedding},
                   NormStep{t.AddNorm("words_norm", s.d_model, kNorm), Slot::kResidual}};
  program.front = t.specs.size();
  program.layers.assign(static_cast<size_t>(s.layers), BuildToyLayer(s));
  const Norm last = t.AddNorm("ln_f", s.d_model, kNorm);
  program.head = t.Add(
      {.name = "embed_out.weight", .rows = s.vocab, .columns = s.d_model, .has_prefix = false});
  program.output = {NormStep{last}, LinearStep{Slot::kNormed, {{{program.head}, Slot::kLogits}}}};
  return program;
}

constexpr const char* kToyActivations[] = {"relu", "silu"};
constinit const Family kToy = {
    .architecture = "ToyForCausalLM",
    .model_type = "toy",
    .keys = {.d_ff = "n_inner"},
    .activation = {.key = "act", .names = kToyActivations},
    .read_shape = ReadToyShape,
    .read = ReadToy,
    .build = BuildToy,
};
constexpr const Family* kOwn[] = {&kToy};

// The same by plain loops, in f64.
class PlainToy {
 public:
  using Row = std::vector<double>;

  PlainToy(const ModelShape& shape, uint64_t seed) : s_(shape), random_(seed) {
    ModelConfig config;
    config.shape = shape;
    const Program program = BuildToy(config);
    AddTensors(program.tensors, program.prefix);
    for (int i = 0; i < s_.layers; ++i) {
      AddTensors(program.layers[static_cast<size_t>(i)].tensors,
                 program.prefix + program.layer_prefix + std::to_string(i) + ".");
    }
  }

  std::unique_ptr<WeightSource> Source() const {
    auto source = std::make_unique<headway::testing::MemorySource>();
    for (const auto& [name, tensor] : tensors_) {
      source->Add(name, tensor.shape, tensor.values, WeightType::kF32);
    }
    return source;
  }

  // The logits behind each token.
  std::vector<Row> Logits(const std::vector<TokenId>& ids) const {
    std::vector<Row> x;
    for (const TokenId id : ids) {
      const std::vector<float>& table = tensors_.at("toy.words.weight").values;
      const auto row = table.begin() + static_cast<int64_t>(id) * s_.d_model;
      x.push_back(LayerNorm(Row(row, row + s_.d_model), "toy.words_norm"));
    }
    for (int i = 0; i < s_.layers; ++i) Layer("toy.h." + std::to_string(i) + ".", &x);
    for (Row& row : x) row = Product(LayerNorm(row, "toy.ln_f"), "embed_out");
    return x;
  }

 private:
  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<float> values;
  };

  // Of a size that keeps activations near one.
  void AddTensors(const TensorList& tensors, const std::string& prefix) {
    for (const TensorSpec& spec : tensors.specs) {
      Tensor tensor = {{spec.rows}, {}};
      if (spec.columns != 0) tensor.shape.push_back(spec.columns);
      const int64_t count = spec.rows * std::max<int64_t>(spec.columns, 1);
      const float deviation =
          spec.columns == 0 ? 0.3f : 1.0f / std::sqrt(static_cast<float>(spec.columns));
      for (int64_t i = 0; i < count; ++i) {
        tensor.values.push_back((spec.use == Use::kNormWeight ? 1.0f : 0.0f) +
                                deviation * random_.Normal());
      }
      tensors_[spec.has_prefix ? prefix + spec.name : spec.name] = std::move(tensor);
    }
  }

  Row LayerNorm(const Row& x, const std::string& name) const {
    const auto n = static_cast<double>(x.size());
    double mean = 0.0, variance = 0.0;
    for (double value : x) mean += value / n;
    for (double value : x) variance += (value - mean) * (value - mean) / n;
    Row y;
    for (size_t i = 0; i < x.size(); ++i) {
      y.push_back((x[i] - mean) / std::sqrt(variance + double{kEps}) *
                      tensors_.at(name + ".weight").values[i] +
                  tensors_.at(name + ".bias").values[i]);
    }
    return y;
  }

  Row Product(const Row& x, const std::string& name) const {
    const std::vector<float>& weight = tensors_.at(name + ".weight").values;
    const auto bias = tensors_.find(name + ".bias");
    Row y(weight.size() / x.size());
    for (size_t i = 0; i < y.size(); ++i) {
      y[i] = bias == tensors_.end() ? 0.0 : bias->second.values[i];
      for (size_t j = 0; j < x.size(); ++j) y[i] += double{weight[i * x.size() + j]} * x[j];
    }
    return y;
  }

  // Of one head, in halves.
  void Rotate(size_t position, double* head) const {
    const int half = s_.head_dim / 2;
    for (int i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(position) * std::pow(10000.0, -2.0 * i / s_.head_dim);
      const double a = head[i], b = head[i + half];
      head[i] = a * std::cos(angle) - b * std::sin(angle);
      head[i + half] = b * std::cos(angle) + a * std::sin(angle);
    }
  }

  // What token t of a query head sees of all before it, and of itself.
  void Attend(const Row& q, const std::vector<Row>& k, const std::vector<Row>& v, int head,
              Row* out) const {
    const auto at = static_cast<size_t>(head) * static_cast<size_t>(s_.head_dim);
    const auto from = static_cast<size_t>(head / s_.group()) * static_cast<size_t>(s_.head_dim);
    double sum = 0.0;
    for (size_t i = 0; i < k.size(); ++i) {
      double dot = 0.0;
      for (size_t d = 0; d < static_cast<size_t>(s_.head_dim); ++d)
        dot += q[at + d] * k[i][from + d];
      const double weight = std::exp(dot / std::sqrt(static_cast<double>(s_.head_dim)));
      sum += weight;
      for (size_t d = 0; d < static_cast<size_t>(s_.head_dim); ++d) {
        (*out)[at + d] += weight * v[i][from + d];
      }
    }
    for (size_t d = 0; d < static_cast<size_t>(s_.head_dim); ++d) (*out)[at + d] /= sum;
  }

  Row Mlp(const Row& x, const std::string& layer) const {
    Row inner = Product(x, layer + "mlp.up");
    if (s_.gated_mlp) {
      const Row up = Product(x, layer + "mlp.gated");
      for (size_t i = 0; i < up.size(); ++i) inner[i] *= up[i] / (1.0 + std::exp(-inner[i]));
    } else {
      for (double& value : inner) value = std::max(value, 0.0);
    }
    return Product(inner, layer + "mlp.down");
  }

  void Layer(const std::string& layer, std::vector<Row>* x) const {
    std::vector<Row> k, v;
    for (size_t t = 0; t < x->size(); ++t) {
      const Row normed = LayerNorm((*x)[t], layer + "ln_attn");
      Row q = Product(normed, layer + "attn.query");
      k.push_back(Product(normed, layer + "attn.key"));
      v.push_back(Product(normed, layer + "attn.value"));
      for (int h = 0; h < s_.query_heads; ++h) Rotate(t, q.data() + h * s_.head_dim);
      for (int h = 0; h < s_.kv_heads; ++h) Rotate(t, k.back().data() + h * s_.head_dim);
      Row attended(q.size(), 0.0);
      for (int h = 0; h < s_.query_heads; ++h) Attend(q, k, v, h, &attended);
      const Row attention = Product(attended, layer + "attn.dense");
      const Row mlp = Mlp(LayerNorm((*x)[t], layer + "ln_mlp"), layer);
      for (size_t i = 0; i < mlp.size(); ++i) (*x)[t][i] += attention[i] + mlp[i];
    }
  }

  const ModelShape s_;
  Random random_;
  std::map<std::string, Tensor> tensors_;
};

Result<ModelConfig> Parse(const std::string& gated) {
  const std::string json =
      R"({"model_type":"toy","n_layer":3,"n_embd":48,"n_inner":80,"n_vocab":90,"n_head":6,)"
      R"("n_head_kv":3,"gated":)" +
      gated + "}";
  return ParseModelConfig(json, "", "folder/config.json", kOwn);
}

class OwnFamily : public ::testing::TestWithParam<const char*> {};

TEST_P(OwnFamily, ComputesWhatAPlainLoopComputes) {
  Result<ModelConfig> config = Parse(GetParam());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->architecture, "ToyForCausalLM");
  const PlainToy plain(config->shape, 3);
  Result<std::unique_ptr<Model>> model = Model::Load(Env::Default(), *config, plain.Source());
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ((*model)->weight_bytes().total(), CountWeightBytes((*model)->config()).total());

  const std::vector<TokenId> ids = {5, 77, 0, 31, 31, 89, 12, 40, 2};
  headway::testing::PlainRunner runner(**model, DType::kF32, 6, 9);
  std::vector<std::vector<float>> logits = runner.Run(std::span(ids).first(6));
  for (size_t i = 6; i < ids.size(); ++i) logits.push_back(runner.Run({&ids[i], 1})[0]);
  const std::vector<PlainToy::Row> expected = plain.Logits(ids);
  ASSERT_EQ(logits.size(), expected.size());
  // Each of some eight products a layer rounds activations near one, and a norm behind them
  // stretches by less than two; sums themselves are f64 in the reference kernels.
  const double tolerance = 3 * 8 * 2 * 4.0 * std::ldexp(1.0, -24) * 10.0;
  for (size_t t = 0; t < logits.size(); ++t) {
    for (size_t i = 0; i < logits[t].size(); ++i) {
      ASSERT_NEAR(logits[t][i], expected[t][i], tolerance) << "token " << t << ", logit " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Mlp, OwnFamily, ::testing::Values("false", "true"), [](const auto& mlp) {
  return std::string(mlp.param) == "true" ? "gated" : "relu";
});

TEST(OwnFamilyConfig, IsReadByItsOwnKeysAlone) {
  Result<ModelConfig> config = Parse("1");
  EXPECT_THAT(config.status().message(), HasSubstr("folder/config.json: gated is neither true"));
  // The built-in families do not know it.
  config = ParseModelConfig(R"({"model_type":"toy"})", "", "f");
  EXPECT_THAT(config.status().message(), HasSubstr("'toy') is not supported; supported are Llama"));
  config = ParseModelConfig(R"({"model_type":"llama"})", "", "f", kOwn);
  EXPECT_THAT(config.status().message(), HasSubstr("supported are ToyForCausalLM"));
  config = ParseModelConfig(R"({"model_type":"toy","act":"gelu"})", "", "f", kOwn);
  EXPECT_THAT(config.status().message(), HasSubstr("act 'gelu' is not supported"));
  EXPECT_THAT(ConfigIdentity(*Parse("true")), HasSubstr("n_inner=80\n"));
}

TEST(OwnFamilyWeights, AreNamedAsItSays) {
  Result<ModelConfig> config = Parse("false");
  ASSERT_TRUE(config.ok());
  auto source = std::make_unique<headway::testing::MemorySource>();
  const Status missing = Model::Load(Env::Default(), *config, std::move(source)).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("no tensor 'toy.words.weight'"));
}

// Random weights are drawn by the program, and moved as those of any family.
TEST(OwnFamilyWeights, AreDrawnAndMoved) {
  Result<ModelConfig> config = Parse("true");
  ASSERT_TRUE(config.ok());
  config->shape.dtype = DType::kBF16;
  const auto make = [&] { return std::move(*Model::Random(Env::Default(), *config, 9, nullptr)); };
  const auto device = NewCpuDevice(Env::Default(), nullptr);
  Budget budget("memory", int64_t{1} << 30);
  const std::unique_ptr<Model> model = make(), moved = make();
  EXPECT_EQ(model->weight_bytes().total(), CountWeightBytes(*config).total());
  EXPECT_EQ(model->weights().parts().front().name, "toy.words.weight");
  EXPECT_EQ(model->weights().parts().back().name, "embed_out.weight");
  ASSERT_TRUE(moved->MoveTo(*device, {.device_budget = &budget}).ok());
  EXPECT_EQ(model->Fingerprint(nullptr), moved->Fingerprint(nullptr));
  const std::vector<TokenId> ids = {8, 1, 89};
  const auto run = [&](const Model& of) {
    return headway::testing::PlainRunner(of, DType::kF32, 3, 3).Run(ids);
  };
  EXPECT_EQ(run(*model), run(*moved));
}

}  // namespace
}  // namespace headway::arch
