#include "model/model.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "base/check.h"
#include "model/arch/family.h"
#include "model/weights/open_weights.h"

namespace headway {

namespace {

// The matrix that makes a layer's keys.
arch::TensorId KeyMatrix(const arch::LayerProgram& layer) {
  for (const arch::Step& step : layer.steps) {
    const auto* linear = std::get_if<arch::LinearStep>(&step);
    if (linear == nullptr) continue;
    for (const arch::Product& product : linear->products) {
      if (product.to == arch::Slot::kKey) return product.linear.weight;
    }
  }
  HEADWAY_CHECK(false);
  return arch::kNoTensor;
}

const WeightPart& KeyPart(const arch::Program& program, const std::vector<WeightPart>& parts) {
  const arch::TensorId id = KeyMatrix(program.layers.front());
  const auto part = std::find_if(parts.begin(), parts.end(),
                                 [id](const WeightPart& p) { return p.layer == 0 && p.id == id; });
  HEADWAY_CHECK(part != parts.end());
  return *part;
}

}  // namespace

WeightBytes CountWeightBytes(const ModelConfig& config, const Shard* shard) {
  const arch::Program program = config.family->build(config);
  WeightTable table(config, program, /*source=*/nullptr);
  if (shard != nullptr) table.Cut(program, config.shape, *shard);
  for (WeightPart& part : table.parts()) part.type = WeightTypeOf(config.shape.dtype);
  return table.Count();
}

Result<DType> CacheDType(const ModelConfig& config, const WeightSource& source) {
  const arch::Program program = config.family->build(config);
  const WeightTable table(config, program, &source);
  Result<SourceTensor> tensor = source.Find(KeyPart(program, table.parts()).name);
  if (tensor.ok()) return ElementDType(tensor->type);
  if (tensor.status().code() != StatusCode::kNotFound) return tensor.status();
  return config.shape.dtype;
}

Model::Model(const ModelConfig& config, const arch::Program& program,
             std::unique_ptr<ModelWeights> weights, const Shard* shard)
    : config_(config),
      vocab_rows_(shard == nullptr ? Interval{0, config.shape.vocab} : shard->vocab),
      weights_(std::move(weights)),
      embed_(arch::Resolve(program.embed, Normed::kDropped)),
      output_(arch::Resolve(program.output, Normed::kDropped)) {
  config_.shape.dtype = KeyPart(program, weights_->parts()).dtype();
  if (shard != nullptr) config_.shape = ShardShape(config_.shape, *shard);
  const arch::SumRole role = shard == nullptr ? arch::SumRole::kAlone : shard->role;
  for (const arch::LayerProgram& layer : program.layers) {
    layers_.push_back(arch::ResolveLayer(layer, role));
  }
}

Result<std::unique_ptr<Model>> Model::Map(Env* env, const ModelConfig& config,
                                          std::unique_ptr<WeightSource> source,
                                          const Shard* shard) {
  const arch::Program program = config.family->build(config);
  Result<std::unique_ptr<ModelWeights>> weights =
      ModelWeights::Load(env, config, program, std::move(source), shard);
  if (!weights.ok()) return weights.status();
  return std::unique_ptr<Model>(new Model(config, program, std::move(*weights), shard));
}

Result<std::unique_ptr<Model>> Model::Load(Env* env, const std::string& folder) {
  Result<ModelConfig> config = ReadModelConfig(*env, folder);
  if (!config.ok()) return config.status();
  Result<std::unique_ptr<WeightSource>> source = OpenWeights(*env, folder);
  if (!source.ok()) return source.status();
  return Load(env, *config, std::move(*source));
}

Result<std::unique_ptr<Model>> Model::Load(Env* env, const ModelConfig& config,
                                           std::unique_ptr<WeightSource> source,
                                           const Shard* shard) {
  Result<std::unique_ptr<Model>> model = Map(env, config, std::move(source), shard);
  if (!model.ok()) return model;
  if (Status s = (*model)->Gather(); !s.ok()) return s;
  return model;
}

Result<std::unique_ptr<Model>> Model::Random(Env* env, const ModelConfig& config, uint64_t seed,
                                             ThreadPool* pool, const Shard* shard) {
  const arch::Program program = config.family->build(config);
  Result<std::unique_ptr<ModelWeights>> weights =
      ModelWeights::Random(env, config, program, seed, pool, shard);
  if (!weights.ok()) return weights.status();
  return std::unique_ptr<Model>(new Model(config, program, std::move(*weights), shard));
}

arch::Frame Model::FrameOf(const LayerCall& call, const Activations& a) const {
  arch::Frame frame = {.tensors = weights_->Views(call.layer, call.block),
                       .shape = &config_.shape,
                       .rows = call.tokens,
                       .qkv_stride = a.qkv_stride,
                       .sum = call.sum};
  frame[arch::Slot::kResidual] = a.x;
  frame[arch::Slot::kNormed] = a.normed;
  frame[arch::Slot::kQuery] = a.q;
  frame[arch::Slot::kKey] = a.k;
  frame[arch::Slot::kValue] = a.v;
  frame[arch::Slot::kAttended] = a.o;
  frame[arch::Slot::kInner] = a.gate;
  frame[arch::Slot::kUp] = a.up;
  return frame;
}

void Model::Embed(Kernels& kernels, Stream& stream, std::span<const TokenId> ids,
                  std::span<const int32_t> positions, const Activations& a) const {
  arch::Frame frame = FrameOf({kNoLayer, static_cast<int64_t>(ids.size())}, a);
  frame.ids = ids;
  frame.positions = positions;
  arch::Run(kernels, stream, embed_, frame);
}

void Model::Qkv(Kernels& kernels, Stream& stream, const LayerCall& call, const Activations& a,
                Normed normed) const {
  const arch::LayerCalls& calls = layers_[static_cast<size_t>(call.layer)];
  const std::vector<arch::Call>& before =
      normed == Normed::kKept ? calls.before_keeping : calls.before;
  if (call.pieces > 1) return RunBehindSums(kernels, stream, before, FrameOf(call, a), call.pieces);
  arch::Run(kernels, stream, before, FrameOf(call, a));
}

void Model::Kv(Kernels& kernels, Stream& stream, const LayerCall& call, const void* normed,
               const KvRows& to) const {
  arch::Frame frame = FrameOf(call, {.k = to.k, .v = to.v, .qkv_stride = to.stride});
  frame[arch::Slot::kNormed] = const_cast<void*>(normed);  // which these calls read only
  arch::Run(kernels, stream, layers_[static_cast<size_t>(call.layer)].keys_values, frame);
}

void Model::AfterAttention(Kernels& kernels, Stream& stream, const LayerCall& call,
                           const Activations& a) const {
  arch::Run(kernels, stream, layers_[static_cast<size_t>(call.layer)].after, FrameOf(call, a),
            call.pieces);
}

WeightView Model::OutputProjection(int layer, const std::byte* block) const {
  const std::vector<arch::Call>& calls = layers_[static_cast<size_t>(layer)].after;
  const auto call = std::find_if(calls.begin(), calls.end(), [](const arch::Call& each) {
    return each.at == arch::Slot::kAttended;
  });
  HEADWAY_CHECK(call != calls.end());
  return weights_->Views(layer, block).Matrix(call->output[0].linear.weight);
}

void Model::Head(Kernels& kernels, Stream& stream, int64_t rows, const float* x, void* scratch,
                 float* logits) const {
  const DType dtype = kernels.ActivationDType(config_.shape.dtype);
  // The residual stream is read only.
  arch::Frame frame = FrameOf({kNoLayer, rows}, {.x = const_cast<float*>(x), .normed = scratch});
  frame[arch::Slot::kProjected] =
      static_cast<std::byte*>(scratch) + HeadScratchBytes(config_.shape, dtype, rows) / 2;
  frame[arch::Slot::kLogits] = logits + vocab_rows_.begin;
  arch::Run(kernels, stream, output_, frame);
}

int64_t Model::MaxLinearIn() const {
  const ModelShape& s = config_.shape;
  return std::max({int64_t{s.d_model}, int64_t{s.d_ff}, int64_t{s.query_heads} * s.head_dim});
}

int64_t Model::MaxLinearOut() const { return MaxLinearIn(); }

}  // namespace headway
