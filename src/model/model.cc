#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/half.h"
#include "base/random.h"

namespace headway {

namespace {

constexpr int64_t kAlignment = 64;  // a cache line, and the widest vector of any CPU here
constexpr float kRandomDeviation = 0.02f;
constexpr int64_t kRandomChunk = int64_t{1} << 18;  // elements with a generator of their own
constexpr int64_t kScanChunk = int64_t{1} << 20;    // elements

constexpr char kHeadName[] = "lm_head.weight";

// What tensors are called behind the prefix of all but the head.
struct Names {
  const char* input_norm;
  const char* o;
  const char* mlp_norm;
  const char* gate;
  const char* down;
  const char* final_norm;
};
constexpr Names kLlamaNames = {"input_layernorm", "self_attn.o_proj", "post_attention_layernorm",
                               "mlp.gate_proj",   "mlp.down_proj",    "norm"};
constexpr Names kOptNames = {
    "self_attn_layer_norm", "self_attn.out_proj", "final_layer_norm", "fc1", "fc2",
    "final_layer_norm"};
const Names& NamesOf(const ModelConfig& config) {
  return config.names == TensorNames::kOpt ? kOptNames : kLlamaNames;
}

int64_t AlignedFloats(int64_t count) {
  return RoundUp(count, kAlignment / static_cast<int64_t>(sizeof(float)));
}

// True when an element has the exponent of infinities and NaNs. No early exit: the loop is one
// that compilers turn into vector code. Elements need no alignment.
template <typename Bits>
bool HasExponent(const std::byte* data, int64_t count, Bits exponent) {
  Bits found = 0;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits = 0;
    std::memcpy(&bits, data + static_cast<size_t>(i) * sizeof(Bits), sizeof(Bits));
    found |= static_cast<Bits>((bits & exponent) == exponent);
  }
  return found != 0;
}

bool HasNonFinite(const std::byte* data, DType dtype, int64_t count) {
  switch (dtype) {
    case DType::kF32:
      return HasExponent<uint32_t>(data, count, 0x7F800000u);
    case DType::kF16:
      return HasExponent<uint16_t>(data, count, 0x7C00u);
    case DType::kBF16:
      return HasExponent<uint16_t>(data, count, 0x7F80u);
  }
  return false;
}

// Why weights may lack a tensor that the config asks for; OK where there is nothing to say.
Status ExplainMissing(const Weights& weights, const std::string& folder, const std::string& name) {
  if (name == kHeadName) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{}: no tensor '{}' in its weights: they are the model without the "
                              "head that makes tokens, and config.json does not tie it to the "
                              "embedding; get the model as it was saved for generation "
                              "(...ForCausalLM)",
                              folder, name));
  }
  const std::string stem = name.substr(0, name.find_last_of('.') + 1);
  for (const char* quantized : {"qweight", "qzeros", "scales"}) {
    if (!weights.Has(stem + quantized)) continue;
    return Status(StatusCode::kUnsupported,
                  fmt::format("{}: quantised weights (tensor '{}{}') are not supported, which "
                              "config.json does not mention; use the model in F32, F16 or BF16",
                              folder, stem, quantized));
  }
  return OkStatus();
}

// [0, items) in pieces, on the pool if there is one.
void ForEachChunk(ThreadPool* pool, int64_t items, int64_t grain,
                  const std::function<void(int64_t begin, int64_t end)>& fn) {
  if (pool != nullptr) {
    pool->Run(items, grain, [&fn](int, int64_t begin, int64_t end) { fn(begin, end); });
    return;
  }
  for (int64_t begin = 0; begin < items; begin += grain) fn(begin, std::min(items, begin + grain));
}

// Normal numbers by table: four for each 64 random bits, some ten times as fast as computing them.
class NormalTable {
 public:
  explicit NormalTable(DType dtype) : dtype_(dtype), bytes_(kEntries * DTypeBytes(dtype)) {
    headway::Random random(1);
    for (size_t i = 0; i < kEntries; ++i) {
      StoreFloat(bytes_.data(), static_cast<int64_t>(i), dtype, kRandomDeviation * random.Normal());
    }
  }

  void Fill(uint64_t seed, std::byte* to, int64_t count) const {
    const size_t width = DTypeBytes(dtype_);
    headway::Random random(seed);
    uint64_t bits = 0;
    for (int64_t i = 0; i < count; ++i, bits >>= 16) {
      if (i % 4 == 0) bits = random.Next();
      const std::byte* entry = bytes_.data() + (bits & 0xFFFFu) * width;
      if (width == 2) {
        std::memcpy(to + i * 2, entry, 2);
      } else {
        std::memcpy(to + i * 4, entry, 4);
      }
    }
  }

 private:
  static constexpr size_t kEntries = size_t{1} << 16;
  DType dtype_;
  std::vector<std::byte> bytes_;
};

}  // namespace

struct Model::Part {
  std::string name;
  int64_t rows = 0;
  int64_t columns = 0;           // 0: a vector of `rows`
  WeightView* matrix = nullptr;  // or
  const float** vector = nullptr;
  const std::byte* on_host = nullptr;  // once known
  int layer = kNoLayer;

  int64_t count() const { return columns == 0 ? rows : rows * columns; }
  bool MatchesShape(const std::vector<int64_t>& shape) const {
    return columns == 0 ? shape == std::vector<int64_t>{rows}
                        : shape == std::vector<int64_t>{rows, columns};
  }
  // Of the tensor as the model uses it.
  DType dtype() const { return matrix != nullptr ? matrix->dtype : DType::kF32; }
  int64_t bytes() const { return count() * static_cast<int64_t>(DTypeBytes(dtype())); }
  bool InLayerBlock() const { return matrix != nullptr && layer != kNoLayer; }
  void PointTo(const std::byte* data) const {
    if (matrix != nullptr) {
      matrix->data = data;
    } else {
      *vector = reinterpret_cast<const float*>(data);
    }
  }
};

namespace {

int64_t QkvWidth(const ModelShape& shape) {
  return (int64_t{shape.query_heads} + 2 * int64_t{shape.kv_heads}) * shape.head_dim;
}

// Bytes of `count` elements, whole cache lines.
int64_t LineBytes(int64_t count, DType dtype) {
  return RoundUp(count * static_cast<int64_t>(DTypeBytes(dtype)), kAlignment);
}

}  // namespace

int64_t Activations::Bytes(const ModelShape& shape, DType dtype, int64_t tokens) {
  const int64_t attention = LineBytes(tokens * QkvWidth(shape), dtype) +
                            LineBytes(tokens * shape.query_heads * shape.head_dim, dtype);
  const int64_t mlp = (shape.gated_mlp ? 2 : 1) * LineBytes(tokens * shape.d_ff, dtype);
  return LineBytes(tokens * shape.d_model, DType::kF32) + LineBytes(tokens * shape.d_model, dtype) +
         std::max(attention, mlp) + 2 * LineBytes(tokens * shape.head_dim / 2, DType::kF32);
}

Activations Activations::Place(const ModelShape& shape, DType dtype, int64_t tokens,
                               std::byte* buffer) {
  const auto width = static_cast<int64_t>(DTypeBytes(dtype));
  std::byte* next = buffer;
  const auto take = [&next](int64_t count, DType of) {
    return std::exchange(next, next + LineBytes(count, of));
  };
  const auto floats = [&take](int64_t count) {
    return reinterpret_cast<float*>(take(count, DType::kF32));
  };
  Activations a;
  a.x = floats(tokens * shape.d_model);
  a.normed = take(tokens * shape.d_model, dtype);
  a.cos = floats(tokens * shape.head_dim / 2);
  a.sin = floats(tokens * shape.head_dim / 2);
  std::byte* shared = next;
  a.qkv_stride = QkvWidth(shape);
  std::byte* qkv = take(tokens * a.qkv_stride, dtype);
  a.q = qkv;
  a.k = qkv + shape.query_heads * shape.head_dim * width;
  a.v = qkv + (shape.query_heads + shape.kv_heads) * shape.head_dim * width;
  a.o = take(tokens * shape.query_heads * shape.head_dim, dtype);
  next = shared;
  a.gate = take(tokens * shape.d_ff, dtype);
  if (shape.gated_mlp) a.up = take(tokens * shape.d_ff, dtype);
  return a;
}

int64_t HeadScratchBytes(const ModelShape& shape, DType dtype, int64_t rows) {
  return 2 * LineBytes(rows * shape.d_model, dtype);
}

int64_t LogitsBytes(const ModelShape& shape, int64_t rows) {
  return rows * shape.vocab * static_cast<int64_t>(sizeof(float));
}

WeightBytes CountWeightBytes(const ModelConfig& config) {
  Model model(nullptr, config);
  WeightBytes bytes;
  model.parts_ = model.Parts();
  for (const Model::Part& part : model.parts_) {
    if (part.matrix != nullptr) {
      part.matrix->dtype = config.shape.dtype;
      model.CountMatrix(part, &bytes);
    } else {
      bytes.vectors += AlignedFloats(part.count()) * static_cast<int64_t>(sizeof(float));
    }
  }
  bytes.layer = model.LargestBlock();
  bytes.layer_read = DiskBlock::MostReadBytes(bytes.layer);
  return bytes;
}

void Model::CountMatrix(const Part& part, WeightBytes* bytes) const {
  bytes->matrices += part.bytes();
  const bool table = part.matrix == &embed_ && !config_.tied_embeddings;
  if (table || part.matrix == &positions_) bytes->row_tables += part.bytes();
}

int64_t Model::BlockBytes(int layer) const {
  int64_t bytes = 0;
  for (const Part& part : parts_) {
    if (part.InLayerBlock() && part.layer == layer) bytes += RoundUp(part.bytes(), kAlignment);
  }
  return bytes;
}

int64_t Model::LargestBlock() const {
  int64_t largest = 0;
  for (int layer = 0; layer < config_.shape.layers; ++layer) {
    largest = std::max(largest, BlockBytes(layer));
  }
  return largest;
}

Model::Model(Env* env, ModelConfig config) : env_(env), config_(std::move(config)) {
  layers_.resize(static_cast<size_t>(config_.shape.layers));
  const NormView norm = {.kind = config_.layer_norm ? NormKind::kLayer : NormKind::kRms,
                         .eps = config_.norm_eps};
  for (Layer& layer : layers_) layer.input_norm = layer.mlp_norm = norm;
  final_norm_ = config_.final_norm ? norm : NormView{.kind = NormKind::kNone};
}

Model::~Model() {
  for (const Owned& owned : owned_) env_->FreeMemory(owned.data, owned.bytes);
}

std::string Model::Prefix() const {
  // Some of the published files hold the model without its head, whose names begin with nothing.
  const std::string base = config_.names == TensorNames::kOpt ? "decoder." : "";
  const bool bare = files_.has_value() && files_->Has(base + "embed_tokens.weight");
  return bare ? base : "model." + base;
}

void Model::AddNorm(const std::string& name, int64_t width, NormView* norm,
                    std::vector<Part>* parts) const {
  if (!config_.norm_affine) return;
  parts->push_back({name + ".weight", width, 0, nullptr, &norm->weight});
  if (config_.layer_norm) parts->push_back({name + ".bias", width, 0, nullptr, &norm->bias});
}

std::vector<Model::Part> Model::LayerParts(int index) {
  Layer& layer = layers_[static_cast<size_t>(index)];
  const ModelShape& s = config_.shape;
  const int64_t q_width = int64_t{s.query_heads} * s.head_dim;
  const int64_t kv_width = int64_t{s.kv_heads} * s.head_dim;
  const std::string prefix = fmt::format("{}layers.{}.", Prefix(), index);
  std::vector<Part> parts;
  auto vector = [&](const char* name, int64_t size, const float** at) {
    parts.push_back({prefix + name, size, 0, nullptr, at});
  };
  auto linear = [&](const char* name, int64_t out, int64_t in, WeightView* at, bool has_bias,
                    const float** bias) {
    parts.push_back({prefix + name + ".weight", out, in, at, nullptr});
    if (has_bias) parts.push_back({prefix + name + ".bias", out, 0, nullptr, bias});
  };
  const ModelConfig& c = config_;
  const Names& names = NamesOf(c);
  AddNorm(prefix + names.input_norm, s.d_model, &layer.input_norm, &parts);
  linear("self_attn.q_proj", q_width, s.d_model, &layer.q, c.qkv_bias, &layer.q_bias);
  linear("self_attn.k_proj", kv_width, s.d_model, &layer.k, c.qkv_bias, &layer.k_bias);
  linear("self_attn.v_proj", kv_width, s.d_model, &layer.v, c.qkv_bias, &layer.v_bias);
  if (c.qk_norm) {
    vector("self_attn.q_norm.weight", s.head_dim, &layer.q_norm);
    vector("self_attn.k_norm.weight", s.head_dim, &layer.k_norm);
  }
  linear(names.o, s.d_model, q_width, &layer.o, c.o_bias, &layer.o_bias);
  AddNorm(prefix + names.mlp_norm, s.d_model, &layer.mlp_norm, &parts);
  linear(names.gate, s.d_ff, s.d_model, &layer.gate, c.mlp_bias, &layer.gate_bias);
  if (s.gated_mlp) {
    linear("mlp.up_proj", s.d_ff, s.d_model, &layer.up, c.mlp_bias, &layer.up_bias);
  }
  linear(names.down, s.d_model, s.d_ff, &layer.down, c.mlp_bias, &layer.down_bias);
  return parts;
}

std::vector<Model::Part> Model::Parts() {
  const ModelShape& s = config_.shape;
  // A folder may hold both tables though the config ties them. Then the head is lm_head: where the
  // two are equal it makes no difference, and where not, Transformers does not tie them either. It
  // may also hold the head alone, which then is the embedding, too.
  const bool has_head = files_.has_value() && files_->Has(kHeadName);
  const std::string prefix = Prefix();
  const bool has_embed = files_.has_value() && files_->Has(prefix + "embed_tokens.weight");
  const int64_t width = config_.embed_width == 0 ? s.d_model : config_.embed_width;
  std::vector<Part> parts;
  if (has_embed || !has_head || !config_.tied_embeddings) {
    parts.push_back({prefix + "embed_tokens.weight", s.vocab, width, &embed_, nullptr});
  }
  if (config_.learned_positions) {
    parts.push_back({prefix + "embed_positions.weight", config_.max_position + kPositionOffset,
                     s.d_model, &positions_, nullptr});
  }
  if (config_.embed_width != 0) {
    parts.push_back({prefix + "project_in.weight", s.d_model, width, &project_in_, nullptr});
    parts.push_back({prefix + "project_out.weight", width, s.d_model, &project_out_, nullptr});
  }
  for (int i = 0; i < s.layers; ++i) {
    std::vector<Part> layer = LayerParts(i);
    for (Part& part : layer) part.layer = i;
    parts.insert(parts.end(), layer.begin(), layer.end());
  }
  if (config_.final_norm) {
    AddNorm(prefix + NamesOf(config_).final_norm, s.d_model, &final_norm_, &parts);
  }
  if (has_head || !config_.tied_embeddings) {
    parts.push_back({kHeadName, s.vocab, width, &head_, nullptr});
  }
  return parts;
}

void Model::TieEmbeddings() {
  const auto is_part = [this](const WeightView& view) {
    return std::any_of(parts_.begin(), parts_.end(),
                       [&](const Part& part) { return part.matrix == &view; });
  };
  if (!is_part(head_)) head_ = embed_;
  if (!is_part(embed_)) embed_ = head_;
}

Result<std::unique_ptr<Model>> Model::Load(Env* env, const std::string& folder) {
  Result<ModelConfig> config = ReadModelConfig(*env, folder);
  if (!config.ok()) return config.status();
  Result<Weights> weights = Weights::Open(*env, folder);
  if (!weights.ok()) return weights.status();
  std::unique_ptr<Model> model(new Model(env, std::move(*config)));
  model->files_ = std::move(*weights);
  Status status = model->MapParts(folder);
  if (!status.ok()) return status;
  return model;
}

Status Model::MapParts(const std::string& folder) {
  parts_ = Parts();
  std::vector<TensorView> vectors;  // in the order of the parts
  for (Part& part : parts_) {
    Result<TensorView> view = files_->Find(part.name);
    if (view.status().code() == StatusCode::kNotFound) {
      if (Status why = ExplainMissing(*files_, folder, part.name); !why.ok()) return why;
    }
    if (!view.ok()) return view.status();
    if (!part.MatchesShape(view->shape)) {
      return Status(StatusCode::kCorrupt,
                    fmt::format("{}: tensor '{}' has shape [{}], config.json makes it [{}{}]",
                                folder, part.name, fmt::join(view->shape, ", "), part.rows,
                                part.columns == 0 ? "" : fmt::format(", {}", part.columns)));
    }
    if (part.matrix == nullptr) {
      vectors.push_back(std::move(*view));
      continue;
    }
    *part.matrix = {view->data.data(), view->dtype, part.rows, part.columns};
    part.on_host = view->data.data();
    CountMatrix(part, &weight_bytes_);
  }
  weight_bytes_.layer = LargestBlock();
  weight_bytes_.layer_read = DiskBlock::MostReadBytes(weight_bytes_.layer);
  TieEmbeddings();
  config_.shape.dtype = layers_.front().k.dtype;

  for (const TensorView& view : vectors) {
    weight_bytes_.vectors += AlignedFloats(view.shape[0]) * static_cast<int64_t>(sizeof(float));
  }
  Result<std::byte*> memory = Own(weight_bytes_.vectors, kNoLayer);
  if (!memory.ok()) return memory.status();
  auto* next = reinterpret_cast<float*>(*memory);
  size_t index = 0;
  for (Part& part : parts_) {
    if (part.vector == nullptr) continue;
    const TensorView& view = vectors[index++];
    for (int64_t i = 0; i < part.rows; ++i) next[i] = LoadAsFloat(view.data.data(), i, view.dtype);
    *part.vector = next;
    part.on_host = reinterpret_cast<const std::byte*>(next);
    next += AlignedFloats(part.rows);
  }
  return OkStatus();
}

Result<std::byte*> Model::Own(int64_t bytes, int layer) {
  Result<std::byte*> memory = env_->AllocateMemory(static_cast<size_t>(bytes));
  if (memory.ok()) owned_.push_back({layer, *memory, static_cast<size_t>(bytes)});
  return memory;
}

void Model::Disown(int layer) {
  std::erase_if(owned_, [&](const Owned& owned) {
    if (owned.layer == layer) env_->FreeMemory(owned.data, owned.bytes);
    return owned.layer == layer;
  });
}

Result<std::unique_ptr<Model>> Model::Random(Env* env, const ModelConfig& config, uint64_t seed,
                                             ThreadPool* pool) {
  std::unique_ptr<Model> model(new Model(env, config));
  model->seed_ = seed;
  model->parts_ = model->Parts();
  const DType dtype = config.shape.dtype;
  int64_t rest = 0;  // what is in no layer's block
  for (const Part& part : model->parts_) {
    if (part.matrix != nullptr) part.matrix->dtype = dtype;
    if (!part.InLayerBlock()) rest += RoundUp(part.bytes(), kAlignment);
  }
  Result<std::byte*> memory = model->Own(rest, kNoLayer);
  if (!memory.ok()) return memory.status();
  std::byte* next_of_rest = *memory;
  // Each layer by itself, so that MoveTo can give them back one by one.
  std::vector<std::byte*> next_of_layer;
  for (int layer = 0; layer < config.shape.layers; ++layer) {
    memory = model->Own(RoundUp(model->BlockBytes(layer), int64_t{kDirectAlignment}), layer);
    if (!memory.ok()) return memory.status();
    next_of_layer.push_back(*memory);
  }

  const NormalTable table(dtype);
  headway::Random seeds(seed);
  for (Part& part : model->parts_) {
    const uint64_t part_seed = seeds.Next();
    std::byte*& next =
        part.InLayerBlock() ? next_of_layer[static_cast<size_t>(part.layer)] : next_of_rest;
    part.on_host = next;
    if (part.matrix == nullptr) {
      // Norms of one and biases of zero leave activations as a trained model has them.
      auto* values = reinterpret_cast<float*>(next);
      const bool is_norm = part.name.ends_with("norm.weight");
      std::fill_n(values, part.rows, is_norm ? 1.0f : 0.0f);
      *part.vector = values;
      next += RoundUp(part.rows * static_cast<int64_t>(sizeof(float)), kAlignment);
      continue;
    }
    const auto width = static_cast<int64_t>(DTypeBytes(dtype));
    *part.matrix = {next, dtype, part.rows, part.columns};
    ForEachChunk(pool, part.count(), kRandomChunk, [&](int64_t begin, int64_t end) {
      table.Fill(part_seed + static_cast<uint64_t>(begin), next + begin * width, end - begin);
    });
    next += RoundUp(part.count() * width, kAlignment);
  }
  model->TieEmbeddings();
  model->weight_bytes_ = CountWeightBytes(config);
  return model;
}

Status Model::MoveToHost(Device& device, const Placement& to, int layer) {
  std::unique_ptr<Buffer>& block = host_blocks_[static_cast<size_t>(layer)];
  if (block != nullptr) return OkStatus();
  Result<std::unique_ptr<Buffer>> memory =
      device.AllocateHost(*to.host_budget, static_cast<size_t>(BlockBytes(layer)), "weights");
  if (!memory.ok()) return memory.status();
  std::byte* next = (*memory)->data();
  for (Part& part : parts_) {
    if (!part.InLayerBlock() || part.layer != layer) continue;
    ForEachChunk(to.pool, part.bytes(), kScanChunk, [&](int64_t begin, int64_t end) {
      std::memcpy(next + begin, part.on_host + begin, static_cast<size_t>(end - begin));
    });
    part.PointTo(next);
    part.on_host = next;
    next += RoundUp(part.bytes(), kAlignment);
  }
  block = std::move(*memory);
  Disown(layer);
  return OkStatus();
}

Result<const WeightFile*> Model::FileOf(size_t file) {
  std::unique_ptr<WeightFile>& open = weight_files_[file];
  if (open != nullptr) return open.get();
  const FileIdentity& identity = files_->file(file).identity();
  Result<std::unique_ptr<WeightFile>> made =
      WeightFile::Open(*env_, files_->path(file), identity.size, identity.modified_nanos);
  if (!made.ok()) return made.status();
  open = std::move(*made);
  return open.get();
}

// Random weights of a layer, which were drawn as the block that they are: one tensor there.
Result<DiskBlock::Tensor> Model::WriteToDisk(const Placement& to, int layer) {
  const int64_t bytes = RoundUp(BlockBytes(layer), int64_t{kDirectAlignment});
  Result<Reservation> reserved = to.disk_budget->Reserve(bytes, "weights");
  if (!reserved.ok()) return reserved.status();
  std::unique_ptr<WeightFile>& file = weight_files_[0];
  if (file == nullptr) {
    Result<std::unique_ptr<WeightFile>> made = WeightFile::Temporary(*env_, to.directory);
    if (!made.ok()) return made.status();
    file = std::move(*made);
  }
  const auto block = std::find_if(owned_.begin(), owned_.end(),
                                  [&](const Owned& owned) { return owned.layer == layer; });
  HEADWAY_CHECK(block != owned_.end());
  Result<int64_t> offset = file->Append(block->data, bytes);
  if (!offset.ok()) return offset.status();
  on_disk_.push_back(std::move(*reserved));
  for (Part& part : parts_) {
    if (part.InLayerBlock() && part.layer == layer) part.on_host = nullptr;
  }
  Disown(layer);
  return DiskBlock::Tensor{file.get(), *offset, BlockBytes(layer), 0};
}

Status Model::MoveToDisk(const Placement& to, int layer) {
  std::unique_ptr<DiskBlock>& block = disk_blocks_[static_cast<size_t>(layer)];
  if (block != nullptr) return OkStatus();
  if (!files_.has_value()) {
    Result<DiskBlock::Tensor> written = WriteToDisk(to, layer);
    if (!written.ok()) return written.status();
    block = std::make_unique<DiskBlock>(std::vector<DiskBlock::Tensor>{*written});
    return OkStatus();
  }
  std::vector<DiskBlock::Tensor> tensors;
  int64_t at = 0;
  for (const Part& part : parts_) {
    if (!part.InLayerBlock() || part.layer != layer) continue;
    Result<TensorView> view = files_->Find(part.name);
    if (!view.ok()) return view.status();
    Result<const WeightFile*> file = FileOf(view->file);
    if (!file.ok()) return file.status();
    tensors.push_back({*file, view->offset, part.bytes(), at});
    at += RoundUp(part.bytes(), kAlignment);
  }
  block = std::make_unique<DiskBlock>(std::move(tensors));
  return OkStatus();
}

Status Model::MoveTo(Device& device, const Placement& to) {
  host_blocks_.resize(layers_.size());
  disk_blocks_.resize(layers_.size());
  for (const int layer : to.streamed) {
    const bool disk = std::find(to.on_disk.begin(), to.on_disk.end(), layer) != to.on_disk.end();
    if (Status s = disk ? MoveToDisk(to, layer) : MoveToHost(device, to, layer); !s.ok()) return s;
  }
  if (to.device_budget == nullptr) return OkStatus();
  const auto stays = [&](const Part& part) { return part.InLayerBlock() && Streams(part.layer); };
  int64_t bytes = 0;
  for (const Part& part : parts_) bytes += stays(part) ? 0 : RoundUp(part.bytes(), kAlignment);
  Result<std::unique_ptr<Buffer>> memory =
      device.Allocate(*to.device_budget, static_cast<size_t>(bytes), "weights");
  if (!memory.ok()) return memory.status();
  Result<std::unique_ptr<Stream>> made = device.NewStream(Lane::kHostToDevice);
  if (!made.ok()) return made.status();
  const std::unique_ptr<Stream> stream = std::move(*made);
  std::byte* next = (*memory)->data();
  // Matrices first: biases between them would keep them apart.
  for (const bool matrices : {true, false}) {
    for (const Part& part : parts_) {
      if ((part.matrix != nullptr) != matrices || stays(part)) continue;
      stream->Copy(next, part.on_host, static_cast<size_t>(part.bytes()));
      part.PointTo(next);
      next += RoundUp(part.bytes(), kAlignment);
    }
  }
  TieEmbeddings();
  Status status = stream->Synchronize();
  if (!status.ok()) return status;
  on_device_ = std::move(*memory);
  if (files_.has_value()) return OkStatus();
  for (int layer = kNoLayer; layer < config_.shape.layers; ++layer) Disown(layer);
  for (Part& part : parts_) {
    if (!stays(part)) part.on_host = nullptr;
  }
  return OkStatus();
}

std::span<const std::byte> Model::HostBlock(int layer) const {
  const auto index = static_cast<size_t>(layer);
  if (index >= host_blocks_.size() || host_blocks_[index] == nullptr) return {};
  return {host_blocks_[index]->data(), host_blocks_[index]->size()};
}

const DiskBlock* Model::BlockOnDisk(int layer) const {
  const auto index = static_cast<size_t>(layer);
  return index < disk_blocks_.size() ? disk_blocks_[index].get() : nullptr;
}

Model::Layer Model::LayerAt(int layer, const std::byte* block) const {
  Layer at = layers_[static_cast<size_t>(layer)];
  if (block == nullptr) return at;
  // In the order of LayerParts.
  for (WeightView* matrix : {&at.q, &at.k, &at.v, &at.o, &at.gate, &at.up, &at.down}) {
    if (matrix->data == nullptr) continue;
    const auto width = static_cast<int64_t>(DTypeBytes(matrix->dtype));
    matrix->data = block;
    block += RoundUp(matrix->out * matrix->in * width, kAlignment);
  }
  return at;
}

Status Model::CheckFinite(ThreadPool* pool) const {
  for (const Part& part : parts_) {
    if (part.on_host == nullptr) continue;  // random weights that were moved
    std::atomic<bool> bad = false;
    const auto width = static_cast<int64_t>(DTypeBytes(part.dtype()));
    ForEachChunk(pool, part.count(), kScanChunk, [&](int64_t begin, int64_t end) {
      if (HasNonFinite(part.on_host + begin * width, part.dtype(), end - begin)) bad = true;
    });
    if (bad) {
      return Status(StatusCode::kCorrupt,
                    fmt::format("tensor '{}' holds a NaN or an infinity: the weights are damaged, "
                                "get them again",
                                part.name));
    }
  }
  return OkStatus();
}

// By what the files hold, so that it makes no difference where MoveTo has put a tensor.
std::vector<UsedTensor> Model::UsedTensors() const {
  std::vector<UsedTensor> tensors;
  for (const Part& part : parts_) {
    UsedTensor tensor{.header = fmt::format("{} {} {}", part.name, part.rows, part.columns)};
    if (files_.has_value()) {
      const Result<TensorView> view = files_->Find(part.name);
      HEADWAY_CHECK(view.ok());  // MapParts has found it
      tensor.header += fmt::format(" {}", DTypeName(view->dtype));
      tensor.file = &files_->file(view->file);
      tensor.bytes = view->data;
    } else {
      tensor.header += fmt::format(" {} drawn from {}", DTypeName(part.dtype()), seed_);
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

uint64_t Model::Fingerprint(ThreadPool* pool) const { return HashTensors(UsedTensors(), pool); }

std::string Model::FilesKey() const {
  std::string key;
  if (!files_.has_value()) return key;
  for (const UsedTensor& tensor : UsedTensors()) key += tensor.header + '\n';
  for (size_t i = 0; i < files_->files(); ++i) {
    const FileIdentity& file = files_->file(i).identity();
    key += fmt::format("{} {} {} {} {}\n", file.device, file.inode, file.size, file.modified_nanos,
                       file.changed_nanos);
  }
  return key;
}

int64_t Model::FilesChangedNanos() const {
  int64_t last = 0;
  for (size_t i = 0; files_.has_value() && i < files_->files(); ++i) {
    const FileIdentity& file = files_->file(i).identity();
    last = std::max({last, file.modified_nanos, file.changed_nanos});
  }
  return last;
}

Status Model::CheckFilesUnchanged() const {
  return files_.has_value() ? files_->CheckUnchanged(*env_) : OkStatus();
}

int64_t Model::MaxLinearIn() const {
  const ModelShape& s = config_.shape;
  return std::max({int64_t{s.d_model}, int64_t{s.d_ff}, int64_t{s.query_heads} * s.head_dim});
}

int64_t Model::MaxLinearOut() const { return MaxLinearIn(); }

}  // namespace headway
