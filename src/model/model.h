// Model: the weights of one decoder and the steps that take a token from its id to its logits. What
// happens between Qkv and AfterAttention (cache and attention) is the engine's.
//
//   Embed -> per layer: Qkv, [attention], AfterAttention -> Head
//
// What these do is said by the program of the model's family (arch/). They hold no state: all
// activations are the caller's, in memory that the kernels reach. Shapes are in brackets, innermost
// last, rows contiguous. T is the tokens of the call, of any sequences mixed.
#ifndef HEADWAY_MODEL_MODEL_H_
#define HEADWAY_MODEL_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/thread_pool.h"
#include "base/types.h"
#include "device/device.h"
#include "headway/status.h"
#include "kernels/kernels.h"
#include "model/activations.h"
#include "model/arch/calls.h"
#include "model/arch/run.h"
#include "model/config.h"
#include "model/weights/disk_block.h"
#include "model/weights/model_weights.h"
#include "model/weights/shard.h"
#include "model/weights/weight_source.h"
#include "model/weights/weight_table.h"

namespace headway {

// Of a model of this config whose matrices are of shape.dtype, or of its shard.
WeightBytes CountWeightBytes(const ModelConfig& config, const Shard* shard = nullptr);

// The dtype of the cache of a model with these weights: that of its keys' projection. The config's
// where the source has no such tensor.
Result<DType> CacheDType(const ModelConfig& config, const WeightSource& source);

// A call of a layer's steps.
struct LayerCall {
  int layer = 0;
  int64_t tokens = 0;
  const std::byte* block = nullptr;  // a copy of the layer's block, from which its matrices are
                                     // read; null: they are read where they are
  arch::ResidualSum* sum = nullptr;  // of a shard: over the ranks; else null
  int pieces = 1;                    // of the tokens, that are added up by themselves (arch::Run)
};

// Where keys and values go.
struct KvRows {
  void* k = nullptr;  // [rows, kv_heads, head_dim], rows `stride` elements apart
  void* v = nullptr;
  int64_t stride = 0;
};

using arch::Normed;

class Model {
 public:
  // A model of a config that was read, with weights from any source, which are mapped; with a
  // shard, the part of the model that it holds, whose shape shape() is. No step runs before Gather
  // or MoveTo. `env` outlives the model.
  static Result<std::unique_ptr<Model>> Map(Env* env, const ModelConfig& config,
                                            std::unique_ptr<WeightSource> source,
                                            const Shard* shard = nullptr);
  // The same from a model folder, and Gather.
  static Result<std::unique_ptr<Model>> Load(Env* env, const std::string& folder);
  // The same of a config and a source.
  static Result<std::unique_ptr<Model>> Load(Env* env, const ModelConfig& config,
                                             std::unique_ptr<WeightSource> source,
                                             const Shard* shard = nullptr);
  // A model of this config with matrices of shape.dtype, normal with a deviation of 0.02, that
  // depend on `seed` only, or a shard's part of such a model: for measuring speed without a
  // download. `pool` and `shard` may be null.
  static Result<std::unique_ptr<Model>> Random(Env* env, const ModelConfig& config, uint64_t seed,
                                               ThreadPool* pool, const Shard* shard = nullptr);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Copies the rows of matrices that do not lie one after the other in their files, but for those
  // that were moved.
  Status Gather() { return weights_->Gather(); }
  // Copies the weights to memory of `device`, where the kernels read them from then on, but for the
  // matrices of streamed layers: these go to host memory that copies to the device reach at full
  // speed, one HostBlock a layer, or stay on disk, one BlockOnDisk a layer. Matrices of a layer lie
  // side by side, so that products of the same rows can be one. Random weights are given back where
  // they were drawn. Device and budgets outlive the model.
  Status MoveTo(Device& device, const WeightPlacement& to) { return weights_->MoveTo(device, to); }
  bool on_device() const { return weights_->on_device(); }
  int64_t device_bytes() const { return weights_->device_bytes(); }
  // The matrices of a streamed layer: a copy of the block, wherever it is, is what the steps of the
  // layer take as `block`. Empty for a layer that is not streamed, or is on disk.
  std::span<const std::byte> HostBlock(int layer) const { return weights_->HostBlock(layer); }
  // Whether HostBlocks are in their lossless form (kernels/weight_code.h).
  bool HostBlocksAreCode() const { return weights_->HostBlocksAreCode(); }
  // The same block of a layer that is on disk; else null.
  const DiskBlock* BlockOnDisk(int layer) const { return weights_->BlockOnDisk(layer); }
  bool Streams(int layer) const { return weights_->Streams(layer); }
  // Bytes of a layer's block.
  int64_t BlockBytes(int layer) const { return weights_->BlockBytes(layer); }

  const ModelConfig& config() const { return config_; }
  const ModelShape& shape() const { return config_.shape; }
  // How many elements of each head of queries and keys rotate, from its start; 0: none.
  int rotary_dim() const { return RotaryDim(config_.rope, config_.shape.head_dim); }
  const ModelWeights& weights() const { return *weights_; }
  // What the weights in use take, by their real types.
  WeightBytes weight_bytes() const { return weights_->bytes(); }
  // A hash of name, shape, dtype and every byte of every tensor in use, for sessions, as they lie
  // in the files; of random weights instead of the bytes the seed that they come from. Reads all
  // weights, wherever MoveTo has put them. `pool` may be null.
  uint64_t Fingerprint(ThreadPool* pool) const { return weights_->Fingerprint(pool); }
  // A hash of what every shard of a model has in full, the norms and the first rows of the
  // embedding: another one tells another model.
  uint64_t SharedFingerprint() const { return weights_->SharedFingerprint(); }
  // What tells without reading them that a fingerprint is still right: the tensors in use and the
  // identities of the files. Empty for random weights, whose fingerprint costs nothing.
  std::string FilesKey() const { return weights_->FilesKey(); }
  // The last time that one of the files was changed, when they were mapped.
  int64_t FilesChangedNanos() const { return weights_->FilesChangedNanos(); }
  // kIo where one of them is not what was mapped.
  Status CheckFilesUnchanged() const { return weights_->CheckFilesUnchanged(); }
  // kCorrupt, naming the first tensor that holds a NaN or an infinity. Reads all weights: for when
  // logits are not finite. `pool` may be null.
  Status CheckFinite(ThreadPool* pool) const { return weights_->CheckFinite(pool); }

  // x = the embeddings of ids [T], each in [0, vocab), at positions [T], which count where the
  // model learned some: each below max_position then. Overwrites normed.
  void Embed(Kernels& kernels, Stream& stream, std::span<const TokenId> ids,
             std::span<const int32_t> positions, const Activations& a) const;
  // From x: q, k, v, with their norms where the model has them, not rotated yet; with kKept also
  // what they are made of in normed [T, d_model], which holds anything otherwise.
  void Qkv(Kernels& kernels, Stream& stream, const LayerCall& call, const Activations& a,
           Normed normed) const;
  // k and v, as Qkv makes them of these rows of normed [call.tokens, d_model].
  void Kv(Kernels& kernels, Stream& stream, const LayerCall& call, const void* normed,
          const KvRows& to) const;
  // x behind the layer, from x and attention's output o, added up by call.sum. Overwrites normed,
  // gate and up (thus q, k, v, o).
  void AfterAttention(Kernels& kernels, Stream& stream, const LayerCall& call,
                      const Activations& a) const;
  // The matrix [d_model, query_heads * head_dim] that attention's output of a layer goes through.
  WeightView OutputProjection(int layer, const std::byte* block) const;
  // logits [rows, vocab] of x [rows, d_model]; of a shard its vocab_rows alone. `scratch` has
  // HeadScratchBytes and is overwritten.
  void Head(Kernels& kernels, Stream& stream, int64_t rows, const float* x, void* scratch,
            float* logits) const;

  // The widest input and output of the steps' Linear calls, Head's output (vocab) left out: for
  // KernelLimits.
  int64_t MaxLinearIn() const;
  int64_t MaxLinearOut() const;
  // The part of the vocabulary whose logits Head makes.
  Interval vocab_rows() const { return vocab_rows_; }

 private:
  // `shard` may be null.
  Model(const ModelConfig& config, const arch::Program& program,
        std::unique_ptr<ModelWeights> weights, const Shard* shard);
  // The frame of steps that work on the activations, in which the caller may fill in more.
  arch::Frame FrameOf(const LayerCall& call, const Activations& a) const;

  ModelConfig config_;
  Interval vocab_rows_;
  std::unique_ptr<ModelWeights> weights_;
  std::vector<arch::Call> embed_;
  std::vector<arch::LayerCalls> layers_;
  std::vector<arch::Call> output_;
};

}  // namespace headway

#endif  // HEADWAY_MODEL_MODEL_H_
