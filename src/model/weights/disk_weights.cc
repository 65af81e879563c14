// What of ModelWeights stays on disk: matrices in the model's files, and in a temporary one what
// lies in none as it is needed.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "model/weights/model_weights.h"

namespace headway {

Result<const WeightFile*> ModelWeights::FileOf(size_t file) {
  std::unique_ptr<WeightFile>& open = weight_files_[file];
  if (open != nullptr) return open.get();
  const FileIdentity& identity = source_->file(file).identity();
  Result<std::unique_ptr<WeightFile>> made =
      WeightFile::Open(*env_, source_->path(file), identity.size, identity.modified_nanos);
  if (!made.ok()) return made.status();
  open = std::move(*made);
  return open.get();
}

Result<DiskBlock::Tensor> ModelWeights::AppendToDisk(const WeightPlacement& to, std::byte* data,
                                                     int64_t bytes) {
  const int64_t there = RoundUp(bytes, int64_t{kDirectAlignment});
  Result<Reservation> reserved = to.disk_budget->Reserve(there, "weights");
  if (!reserved.ok()) return reserved.status();
  if (temporary_ == nullptr) {
    Result<std::unique_ptr<WeightFile>> made = WeightFile::Temporary(*env_, to.directory);
    if (!made.ok()) return made.status();
    temporary_ = std::move(*made);
  }
  const Result<int64_t> offset = temporary_->Append(data, there);
  if (!offset.ok()) return offset.status();
  on_disk_.push_back(std::move(*reserved));
  return DiskBlock::Tensor{temporary_.get(), *offset, bytes, 0};
}

// Random weights were drawn as the block that they are: one tensor there.
Result<DiskBlock::Tensor> ModelWeights::WriteToDisk(const WeightPlacement& to, int layer) {
  const auto block = std::find_if(owned_.begin(), owned_.end(),
                                  [&](const Owned& owned) { return owned.layer == layer; });
  HEADWAY_CHECK(block != owned_.end());
  Result<DiskBlock::Tensor> written = AppendToDisk(to, block->data, BlockBytes(layer));
  if (!written.ok()) return written;
  for (WeightPart& part : table_.parts()) {
    if (part.InLayerBlock() && part.layer == layer) part.on_host = nullptr;
  }
  Disown(layer);
  return written;
}

Result<DiskBlock::Tensor> ModelWeights::WriteToDisk(const WeightPlacement& to,
                                                    const WeightPart& part) {
  Result<std::byte*> memory = Own(RoundUp(part.bytes(), int64_t{kDirectAlignment}), part.layer);
  if (!memory.ok()) return memory.status();
  if (Status s = CopyPart(part, *memory); !s.ok()) return s;
  return AppendToDisk(to, *memory, part.bytes());
}

Status ModelWeights::MoveToDisk(const WeightPlacement& to, int layer) {
  std::unique_ptr<DiskBlock>& block = disk_blocks_[static_cast<size_t>(layer)];
  if (block != nullptr) return OkStatus();
  if (source_ == nullptr) {
    Result<DiskBlock::Tensor> written = WriteToDisk(to, layer);
    if (!written.ok()) return written.status();
    block = std::make_unique<DiskBlock>(std::vector<DiskBlock::Tensor>{*written});
    return OkStatus();
  }
  std::vector<DiskBlock::Tensor> tensors;
  int64_t at = 0;
  for (const WeightPart& part : table_.parts()) {
    if (!part.InLayerBlock() || part.layer != layer) continue;
    const int64_t begin = std::exchange(at, at + RoundUp(part.bytes(), kWeightAlignment));
    if (part.IsApart()) {
      Result<DiskBlock::Tensor> written = WriteToDisk(to, part);
      if (!written.ok()) return written.status();
      written->at = begin;
      tensors.push_back(*written);
      continue;
    }
    Result<SourceTensor> tensor = source_->Find(part.name);
    if (!tensor.ok()) return tensor.status();
    Result<const WeightFile*> file = FileOf(tensor->file);
    if (!file.ok()) return file.status();
    const int64_t row_bytes = RowBytes(part.type, part.file_columns);
    int64_t next = begin;
    for (const Interval& rows : part.slice.rows) {
      const int64_t bytes = rows.size() * row_bytes;
      tensors.push_back({*file, tensor->offset + rows.begin * row_bytes, bytes, next});
      next += bytes;
    }
  }
  block = std::make_unique<DiskBlock>(std::move(tensors));
  LeaveBlock(layer);
  return OkStatus();
}

const DiskBlock* ModelWeights::BlockOnDisk(int layer) const {
  const auto index = static_cast<size_t>(layer);
  return index < disk_blocks_.size() ? disk_blocks_[index].get() : nullptr;
}

}  // namespace headway
