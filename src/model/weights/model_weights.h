// ModelWeights: the memory, mapped files and files on disk that hold a model's weights, and their
// moves between these.
#ifndef HEADWAY_MODEL_WEIGHTS_MODEL_WEIGHTS_H_
#define HEADWAY_MODEL_WEIGHTS_MODEL_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/thread_pool.h"
#include "device/device.h"
#include "headway/status.h"
#include "model/arch/program.h"
#include "model/arch/run.h"
#include "model/config.h"
#include "model/weights/disk_block.h"
#include "model/weights/fingerprint.h"
#include "model/weights/shard.h"
#include "model/weights/weight_source.h"
#include "model/weights/weight_table.h"

namespace headway {

// Where MoveTo puts the weights.
struct WeightPlacement {
  Budget* device_budget = nullptr;     // null: what is not in `streamed` stays where it is
  Budget* host_budget = nullptr;       // for the layers in `streamed`
  bool lossless = false;               // these in their lossless form, which takes bf16
  std::span<const int> streamed = {};  // layers whose matrices go to host memory
  // Of these, those whose matrices stay on disk: in the model's files; random ones, and what of a
  // shard is not in the files as it is needed (WeightPart::IsApart), go to a temporary file in
  // `directory`, reserved from `disk_budget`.
  std::span<const int> on_disk = {};
  Budget* disk_budget = nullptr;
  std::string directory = {};
  ThreadPool* pool = nullptr;  // copies on the host, may be null
};

class ModelWeights {
 public:
  // Finds every tensor of the program in the source and checks its shape. Matrices stay in the
  // mapped files, norms and biases are converted to f32. Columns of a shard, and rows that do not
  // lie one after the other, as those of tensors that the files hold as one, are there for kernels
  // behind Gather or MoveTo. With a shard, only its part of each tensor is looked at. `env`
  // outlives the weights.
  static Result<std::unique_ptr<ModelWeights>> Load(Env* env, const ModelConfig& config,
                                                    const arch::Program& program,
                                                    std::unique_ptr<WeightSource> source,
                                                    const Shard* shard);
  // Matrices of config.shape.dtype that depend on `seed` only; those of a shard are not parts of
  // the whole model's, but for the embedding; those of a run's layers are. `pool` and `shard` may
  // be null.
  static Result<std::unique_ptr<ModelWeights>> Random(Env* env, const ModelConfig& config,
                                                      const arch::Program& program, uint64_t seed,
                                                      ThreadPool* pool, const Shard* shard);
  ~ModelWeights();
  ModelWeights(const ModelWeights&) = delete;
  ModelWeights& operator=(const ModelWeights&) = delete;

  // What kernels read; see WeightTable::Views.
  arch::TensorViews Views(int layer, const std::byte* block) const {
    return table_.Views(layer, block);
  }
  const std::vector<WeightPart>& parts() const { return table_.parts(); }
  WeightBytes bytes() const { return bytes_; }
  int64_t BlockBytes(int layer) const { return table_.BlockBytes(layer); }

  // See Model.
  Status Gather();
  Status MoveTo(Device& device, const WeightPlacement& to);
  bool on_device() const { return on_device_ != nullptr; }
  int64_t device_bytes() const { return on_device_ == nullptr ? 0 : on_device_->size(); }
  std::span<const std::byte> HostBlock(int layer) const;
  bool HostBlocksAreCode() const { return host_code_; }
  const DiskBlock* BlockOnDisk(int layer) const;
  bool Streams(int layer) const {
    return !HostBlock(layer).empty() || BlockOnDisk(layer) != nullptr;
  }
  uint64_t Fingerprint(ThreadPool* pool) const;
  uint64_t SharedFingerprint() const { return HashShared(UsedTensors()); }
  std::string FilesKey() const;
  int64_t FilesChangedNanos() const;
  Status CheckFilesUnchanged() const;
  Status CheckFinite(ThreadPool* pool) const;

 private:
  struct Owned {
    int layer = kNoLayer;
    std::byte* data = nullptr;
    size_t bytes = 0;
  };

  ModelWeights(Env* env, std::unique_ptr<WeightSource> source, WeightTable table)
      : env_(env), source_(std::move(source)), table_(std::move(table)) {}
  void MapMatrix(const SourceTensor& tensor, WeightPart* part);
  // Fills `to` with the part; columns of a shard that are nowhere else come from the files.
  Status CopyPart(const WeightPart& part, std::byte* to) const;
  // The part gets memory of its own on the host.
  Status Hold(WeightPart* part);
  // Whether the files have the part in pieces of which it is nowhere put together yet.
  bool InColumns(const WeightPart& part) const {
    return part.on_host == nullptr && source_ != nullptr && !part.slice.columns.empty();
  }
  Status LoadVectors(std::span<const SourceTensor> tensors);
  Status LoadParts(arch::TensorId head);
  Status Draw(const ModelConfig& config, uint64_t seed, ThreadPool* pool, const Shard* shard);
  // Memory for weights on the host; `layer`: that Disown gives back.
  Result<std::byte*> Own(int64_t bytes, int layer);
  void Disown(int layer);
  // Copies the matrices of a layer as its block has them.
  Status CopyBlock(ThreadPool* pool, int layer, std::byte* to) const;
  Status MoveToHost(Device& device, const WeightPlacement& to, int layer);
  Status EncodeToHost(Device& device, const WeightPlacement& to, int layer);
  // The matrices of a layer are read by blocks alone from now on, or from the files.
  void LeaveBlock(int layer);
  Status MoveToDisk(const WeightPlacement& to, int layer);
  Status MoveToDevice(Device& device, Budget& budget);
  void GiveBackCopies(const std::function<bool(const WeightPart&)>& stays);
  Result<const WeightFile*> FileOf(size_t file);
  // Random weights of a layer, or a part that is apart, go to the temporary file.
  Result<DiskBlock::Tensor> WriteToDisk(const WeightPlacement& to, int layer);
  Result<DiskBlock::Tensor> WriteToDisk(const WeightPlacement& to, const WeightPart& part);
  // `data` has `bytes` rounded up to kDirectAlignment.
  Result<DiskBlock::Tensor> AppendToDisk(const WeightPlacement& to, std::byte* data, int64_t bytes);
  std::vector<UsedTensor> UsedTensors() const;
  // Memory for the zeros of all parts that have rows of them.
  void MakeZeros();
  // The bytes of a part that the host can read, one behind the other; none of what was moved and
  // cannot be read from the source.
  std::vector<std::span<const std::byte>> PiecesOf(const WeightPart& part) const;

  Env* env_;
  std::unique_ptr<WeightSource> source_;  // null: drawn from seed_
  uint64_t seed_ = 0;
  WeightTable table_;
  WeightBytes bytes_;
  std::vector<std::byte> zeros_;  // as many as a part has in its rows
  // Norms and biases, and matrices that are not read where they are mapped, layer by layer.
  std::vector<Owned> owned_;
  std::unique_ptr<Buffer> on_device_;
  std::vector<std::unique_ptr<Buffer>> host_blocks_;  // [layers], null where it is not there
  bool host_code_ = false;                            // what they hold
  // Of layers on disk; the files by their number in the source.
  std::map<size_t, std::unique_ptr<WeightFile>> weight_files_;
  std::unique_ptr<WeightFile> temporary_;                // null until something goes there
  std::vector<Reservation> on_disk_;                     // of the temporary file
  std::vector<std::unique_ptr<DiskBlock>> disk_blocks_;  // [layers], null where it is not there
};

}  // namespace headway

#endif  // HEADWAY_MODEL_WEIGHTS_MODEL_WEIGHTS_H_
