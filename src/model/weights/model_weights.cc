#include "model/weights/model_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/half.h"
#include "base/random.h"
#include "kernels/weight_code.h"
#include "model/weights/chunks.h"
#include "model/weights/finite.h"

namespace headway {

namespace {

constexpr int64_t kScanChunk = int64_t{1} << 20;  // elements

// Why a source may lack a part that the config asks for; OK where there is nothing to say. `head`
// is the matrix of the program that makes logits.
Status ExplainMissing(const WeightSource& source, const WeightPart& part, arch::TensorId head) {
  const std::string& name = part.name;
  if (part.layer == kNoLayer && part.id == head) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{}: no tensor '{}' in its weights: they are the model without the "
                              "head that makes tokens, and config.json does not tie it to the "
                              "embedding; get the model as it was saved for generation "
                              "(...ForCausalLM)",
                              source.where(), name));
  }
  const std::string stem = name.substr(0, name.find_last_of('.') + 1);
  for (const char* quantized : {"qweight", "qzeros", "scales"}) {
    if (!source.Has(stem + quantized)) continue;
    return Status(StatusCode::kUnsupported,
                  fmt::format("{}: quantised weights (tensor '{}{}') are not supported, which "
                              "config.json does not mention; use the model in F32, F16 or BF16",
                              source.where(), stem, quantized));
  }
  return OkStatus();
}

// The tensor of a part, of the shape that config.json makes it.
Result<SourceTensor> FindPart(const WeightSource& source, const WeightPart& part,
                              arch::TensorId head) {
  Result<SourceTensor> tensor = source.Find(part.name);
  if (tensor.status().code() == StatusCode::kNotFound) {
    if (Status why = ExplainMissing(source, part, head); !why.ok()) return why;
  }
  if (!tensor.ok() || part.MatchesShape(tensor->shape)) return tensor;
  return Status(
      StatusCode::kCorrupt,
      fmt::format("{}: tensor '{}' has shape [{}], config.json makes it [{}{}]", source.where(),
                  part.name, fmt::join(tensor->shape, ", "), part.file_rows,
                  part.is_matrix() ? fmt::format(", {}", part.file_columns) : ""));
}

// Moves rows of a part that lie one behind the other so far apart that its columns of zeros fit
// between them, in memory that was zero behind these rows.
void MakeRoomForZeros(const WeightPart& part, std::byte* rows) {
  if (part.zero_columns == 0) return;
  const auto from_bytes =
      static_cast<size_t>(RowBytes(part.type, part.columns - part.zero_columns));
  const auto to_bytes = static_cast<size_t>(RowBytes(part.type, part.columns));
  for (auto row = static_cast<size_t>(part.rows); row-- > 0;) {
    std::memmove(rows + row * to_bytes, rows + row * from_bytes, from_bytes);
    std::memset(rows + row * to_bytes + from_bytes, 0, to_bytes - from_bytes);
  }
}

}  // namespace

ModelWeights::~ModelWeights() {
  for (const Owned& owned : owned_) env_->FreeMemory(owned.data, owned.bytes);
}

Result<std::byte*> ModelWeights::Own(int64_t bytes, int layer) {
  Result<std::byte*> memory = env_->AllocateMemory(static_cast<size_t>(bytes));
  if (memory.ok()) owned_.push_back({layer, *memory, static_cast<size_t>(bytes)});
  return memory;
}

void ModelWeights::Disown(int layer) {
  std::erase_if(owned_, [&](const Owned& owned) {
    if (owned.layer == layer) env_->FreeMemory(owned.data, owned.bytes);
    return owned.layer == layer;
  });
}

Result<std::unique_ptr<ModelWeights>> ModelWeights::Load(Env* env, const ModelConfig& config,
                                                         const arch::Program& program,
                                                         std::unique_ptr<WeightSource> source,
                                                         const Shard* shard) {
  WeightTable table(config, program, source.get());
  if (shard != nullptr) table.Cut(program, config.shape, *shard);
  std::unique_ptr<ModelWeights> weights(new ModelWeights(env, std::move(source), std::move(table)));
  if (Status s = weights->LoadParts(program.head); !s.ok()) return s;
  return weights;
}

Status ModelWeights::LoadParts(arch::TensorId head) {
  std::vector<SourceTensor> vectors;  // in the order of the parts
  for (WeightPart& part : table_.parts()) {
    Result<SourceTensor> tensor = FindPart(*source_, part, head);
    if (!tensor.ok()) return tensor.status();
    if (!part.is_matrix()) {
      vectors.push_back(std::move(*tensor));
      continue;
    }
    part.type = tensor->type;
    MapMatrix(*tensor, &part);
    if (!part.InLayerBlock() && InColumns(part)) {
      if (Status s = Hold(&part); !s.ok()) return s;
    }
    if (part.on_host != nullptr) table_.Point(part, part.on_host);
  }
  table_.LayOutBlocks();
  bytes_ = table_.Count();
  MakeZeros();
  return LoadVectors(vectors);
}

void ModelWeights::MakeZeros() {
  int64_t most = 0;
  for (const WeightPart& part : parts()) {
    most = std::max(most, part.zero_rows * RowBytes(part.type, part.columns));
  }
  zeros_.resize(static_cast<size_t>(most));
}

void ModelWeights::MapMatrix(const SourceTensor& tensor, WeightPart* part) {
  const Slice& slice = part->slice;
  if (slice.rows.size() != 1 || part->IsApart()) return;
  const int64_t begin = slice.rows[0].begin * RowBytes(tensor.type, part->file_columns);
  part->on_host = source_->Bytes(tensor, begin, part->bytes()).data();
  part->mapped = true;
}

Status ModelWeights::CopyPart(const WeightPart& part, std::byte* to) const {
  if (!InColumns(part)) {
    for (const std::span<const std::byte> piece : PiecesOf(part)) {
      to = std::copy(piece.begin(), piece.end(), to);
    }
    return OkStatus();
  }
  const Result<SourceTensor> tensor = source_->Find(part.name);
  if (!tensor.ok()) return tensor.status();
  if (Status s = source_->Read(*tensor, part.slice, to); !s.ok()) return s;
  MakeRoomForZeros(part, to);
  return OkStatus();
}

Status ModelWeights::Hold(WeightPart* part) {
  const Result<std::byte*> memory = Own(part->bytes(), part->layer);
  if (!memory.ok()) return memory.status();
  if (Status s = CopyPart(*part, *memory); !s.ok()) return s;
  part->on_host = *memory;
  return OkStatus();
}

std::vector<std::span<const std::byte>> ModelWeights::PiecesOf(const WeightPart& part) const {
  if (part.on_host != nullptr) return {{part.on_host, static_cast<size_t>(part.bytes())}};
  std::vector<std::span<const std::byte>> pieces;
  if (source_ == nullptr || !part.slice.columns.empty()) return pieces;
  const Result<SourceTensor> tensor = source_->Find(part.name);
  HEADWAY_CHECK(tensor.ok());  // LoadParts has found it
  const int64_t row_bytes = RowBytes(part.type, part.file_columns);
  for (const Interval& rows : part.slice.rows) {
    pieces.push_back(source_->Bytes(*tensor, rows.begin * row_bytes, rows.size() * row_bytes));
  }
  const auto zeros = static_cast<size_t>(part.zero_rows * RowBytes(part.type, part.columns));
  if (zeros > 0) pieces.push_back(std::span(zeros_).first(zeros));
  return pieces;
}

Status ModelWeights::Gather() {
  if (on_device()) return OkStatus();
  for (WeightPart& part : table_.parts()) {
    const bool streams = part.InLayerBlock() && Streams(part.layer);
    if (part.on_host != nullptr || part.count() == 0 || streams) continue;
    if (Status s = Hold(&part); !s.ok()) return s;
    table_.Point(part, part.on_host);
  }
  return OkStatus();
}

Status ModelWeights::LoadVectors(std::span<const SourceTensor> tensors) {
  Result<std::byte*> memory = Own(bytes_.vectors, kNoLayer);
  if (!memory.ok()) return memory.status();
  std::byte* next = *memory;
  size_t index = 0;
  for (WeightPart& part : table_.parts()) {
    if (part.is_matrix()) continue;
    const SourceTensor& tensor = tensors[index++];
    auto* to = reinterpret_cast<float*>(next);
    for (const Interval& rows : part.slice.rows) {
      const std::span<const std::byte> from = source_->Bytes(
          tensor, RowBytes(tensor.type, rows.begin), RowBytes(tensor.type, rows.size()));
      for (int64_t i = 0; i < rows.size(); ++i) {
        *to++ = LoadAsFloat(from.data(), i, ElementDType(tensor.type));
      }
    }
    table_.Point(part, next);
    part.on_host = next;
    next += RoundUp(part.bytes(), kWeightAlignment);
  }
  return OkStatus();
}

Status ModelWeights::CopyBlock(ThreadPool* pool, int layer, std::byte* to) const {
  for (const WeightPart& part : parts()) {
    if (!part.InLayerBlock() || part.layer != layer) continue;
    if (InColumns(part)) {
      if (Status s = CopyPart(part, to); !s.ok()) return s;
    }
    std::byte* copied = to;
    for (const std::span<const std::byte> piece : PiecesOf(part)) {
      ForEachChunk(pool, std::ssize(piece), kScanChunk, [&](int64_t begin, int64_t end) {
        std::memcpy(copied + begin, piece.data() + begin, static_cast<size_t>(end - begin));
      });
      copied += piece.size();
    }
    to += RoundUp(part.bytes(), kWeightAlignment);
  }
  return OkStatus();
}

void ModelWeights::LeaveBlock(int layer) {
  for (WeightPart& part : table_.parts()) {
    if (part.InLayerBlock() && part.layer == layer && !part.mapped) part.on_host = nullptr;
  }
  Disown(layer);
}

Status ModelWeights::MoveToHost(Device& device, const WeightPlacement& to, int layer) {
  std::unique_ptr<Buffer>& block = host_blocks_[static_cast<size_t>(layer)];
  if (block != nullptr) return OkStatus();
  if (to.lossless) return EncodeToHost(device, to, layer);
  Result<std::unique_ptr<Buffer>> memory =
      device.AllocateHost(*to.host_budget, static_cast<size_t>(BlockBytes(layer)), "weights");
  if (!memory.ok()) return memory.status();
  if (Status s = CopyBlock(to.pool, layer, (*memory)->data()); !s.ok()) return s;
  std::byte* next = (*memory)->data();
  for (WeightPart& part : table_.parts()) {
    if (!part.InLayerBlock() || part.layer != layer) continue;
    table_.Point(part, next);
    part.on_host = next;
    next += RoundUp(part.bytes(), kWeightAlignment);
  }
  block = std::move(*memory);
  Disown(layer);
  return OkStatus();
}

Status ModelWeights::EncodeToHost(Device& device, const WeightPlacement& to, int layer) {
  constexpr int64_t kPages = 32;  // that a thread encodes at once
  const WeightCode layout(BlockBytes(layer));
  Result<std::unique_ptr<Buffer>> memory =
      device.AllocateHost(*to.host_budget, static_cast<size_t>(layout.bytes()), "weights");
  if (!memory.ok()) return memory.status();
  Result<std::byte*> block = Own(BlockBytes(layer), layer);
  if (!block.ok()) return block.status();
  if (Status s = CopyBlock(to.pool, layer, *block); !s.ok()) return s;
  std::byte* const code = (*memory)->data();
  std::atomic<bool> fits = true;
  ForEachChunk(to.pool, layout.pages(), kPages, [&](int64_t begin, int64_t end) {
    for (int64_t page = begin; page < end; ++page) {
      if (!EncodeWeightPage(layout, *block, page, code)) fits = false;
    }
  });
  if (!fits) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("the weights of layer {} do not fit their lossless form: too many "
                              "exponents are far below their neighbours'",
                              layer));
  }
  CopyWeightTail(layout, *block, code);
  host_blocks_[static_cast<size_t>(layer)] = std::move(*memory);
  LeaveBlock(layer);
  return OkStatus();
}

Status ModelWeights::MoveTo(Device& device, const WeightPlacement& to) {
  host_blocks_.resize(table_.layers());
  disk_blocks_.resize(table_.layers());
  host_code_ = to.lossless;
  for (const int layer : to.streamed) {
    const bool disk = std::find(to.on_disk.begin(), to.on_disk.end(), layer) != to.on_disk.end();
    if (Status s = disk ? MoveToDisk(to, layer) : MoveToHost(device, to, layer); !s.ok()) return s;
  }
  return to.device_budget == nullptr ? Gather() : MoveToDevice(device, *to.device_budget);
}

Status ModelWeights::MoveToDevice(Device& device, Budget& budget) {
  const auto stays = [&](const WeightPart& part) {
    return part.InLayerBlock() && Streams(part.layer);
  };
  int64_t bytes = 0;
  for (WeightPart& part : table_.parts()) {
    if (stays(part) || !InColumns(part)) continue;
    if (Status s = Hold(&part); !s.ok()) return s;
  }
  for (const WeightPart& part : parts()) {
    bytes += stays(part) ? 0 : RoundUp(part.bytes(), kWeightAlignment);
  }
  Result<std::unique_ptr<Buffer>> memory =
      device.Allocate(budget, static_cast<size_t>(bytes), "weights");
  if (!memory.ok()) return memory.status();
  Result<std::unique_ptr<Stream>> made = device.NewStream(Lane::kHostToDevice);
  if (!made.ok()) return made.status();
  const std::unique_ptr<Stream> stream = std::move(*made);
  std::byte* next = (*memory)->data();
  // Matrices first: biases between them would keep them apart.
  for (const bool matrices : {true, false}) {
    for (const WeightPart& part : parts()) {
      if (part.is_matrix() != matrices || stays(part) || part.count() == 0) continue;
      std::byte* copied = next;
      for (const std::span<const std::byte> piece : PiecesOf(part)) {
        stream->Copy(copied, piece.data(), piece.size());
        copied += piece.size();
      }
      table_.Point(part, next);
      next += RoundUp(part.bytes(), kWeightAlignment);
    }
  }
  Status status = stream->Synchronize();
  if (!status.ok()) return status;
  on_device_ = std::move(*memory);
  GiveBackCopies(stays);
  return OkStatus();
}

// Memory of the host whose weights are on the device now. Norms and biases of files are kept for
// CheckFinite.
void ModelWeights::GiveBackCopies(const std::function<bool(const WeightPart&)>& stays) {
  for (WeightPart& part : table_.parts()) {
    const bool kept = source_ != nullptr && (part.mapped || !part.is_matrix());
    if (!kept && !stays(part)) part.on_host = nullptr;
  }
  for (size_t layer = 0; layer < table_.layers(); ++layer) Disown(static_cast<int>(layer));
  if (source_ == nullptr) Disown(kNoLayer);
}

std::span<const std::byte> ModelWeights::HostBlock(int layer) const {
  const auto index = static_cast<size_t>(layer);
  if (index >= host_blocks_.size() || host_blocks_[index] == nullptr) return {};
  return {host_blocks_[index]->data(), host_blocks_[index]->size()};
}

Status ModelWeights::CheckFinite(ThreadPool* pool) const {
  for (const WeightPart& part : parts()) {
    std::atomic<bool> bad = false;
    const auto width = static_cast<int64_t>(DTypeBytes(part.dtype()));
    for (const std::span<const std::byte> piece : PiecesOf(part)) {
      ForEachChunk(pool, std::ssize(piece) / width, kScanChunk, [&](int64_t begin, int64_t end) {
        if (HasNonFinite(piece.data() + begin * width, part.dtype(), end - begin)) bad = true;
      });
    }
    if (bad) {
      return Status(StatusCode::kCorrupt,
                    fmt::format("tensor '{}' holds a NaN or an infinity: the weights are damaged, "
                                "get them again",
                                part.name));
    }
  }
  return OkStatus();
}

// By what the files hold, so that it makes no difference where MoveTo has put a tensor, nor which
// shard of it this is.
std::vector<UsedTensor> ModelWeights::UsedTensors() const {
  std::vector<UsedTensor> tensors;
  for (const WeightPart& part : parts()) {
    if (!part.first_of_file) continue;
    UsedTensor used{.header =
                        fmt::format("{} {} {}", part.name, part.file_rows, part.file_columns)};
    used.in_each_shard = part.use == arch::Use::kNormWeight || part.use == arch::Use::kRowTable;
    if (source_ != nullptr) {
      const Result<SourceTensor> tensor = source_->Find(part.name);
      HEADWAY_CHECK(tensor.ok());  // LoadParts has found it
      used.header += fmt::format(" {}", WeightTypeName(tensor->type));
      used.file = &source_->file(tensor->file);
      used.bytes = source_->AllBytes(*tensor);
    } else {
      used.header += fmt::format(" {} drawn from {}", DTypeName(part.dtype()), seed_);
    }
    tensors.push_back(std::move(used));
  }
  return tensors;
}

uint64_t ModelWeights::Fingerprint(ThreadPool* pool) const {
  return HashTensors(UsedTensors(), pool);
}

std::string ModelWeights::FilesKey() const {
  std::string key;
  if (source_ == nullptr) return key;
  for (const UsedTensor& tensor : UsedTensors()) key += tensor.header + '\n';
  for (size_t i = 0; i < source_->files(); ++i) {
    const FileIdentity& file = source_->file(i).identity();
    key += fmt::format("{} {} {} {} {}\n", file.device, file.inode, file.size, file.modified_nanos,
                       file.changed_nanos);
  }
  return key;
}

int64_t ModelWeights::FilesChangedNanos() const {
  int64_t last = 0;
  for (size_t i = 0; source_ != nullptr && i < source_->files(); ++i) {
    const FileIdentity& file = source_->file(i).identity();
    last = std::max({last, file.modified_nanos, file.changed_nanos});
  }
  return last;
}

Status ModelWeights::CheckFilesUnchanged() const {
  return source_ != nullptr ? source_->CheckUnchanged(*env_) : OkStatus();
}

}  // namespace headway
