// Model: the weights of one decoder and the steps that take a token from its id to its logits. What
// happens between Qkv and AttentionOut (cache and attention) is the engine's.
//
//   Embed -> per layer: Qkv, [attention], AttentionOut, Mlp -> Head
//
// The steps hold no state: all activations are the caller's, in memory that the kernels reach.
// Shapes are in brackets, innermost last, rows contiguous. T is the tokens of the call, of any
// sequences mixed. The steps are in steps.cc, loading is in model.cc.
#ifndef HEADWAY_MODEL_MODEL_H_
#define HEADWAY_MODEL_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/thread_pool.h"
#include "base/types.h"
#include "device/device.h"
#include "headway/status.h"
#include "kernels/kernels.h"
#include "model/config.h"
#include "model/weights/disk_block.h"
#include "model/weights/fingerprint.h"
#include "model/weights/safetensors.h"

namespace headway {

// Where the activations of one call of `tokens` tokens lie in one buffer. gate and up share their
// memory with q, k, v and o, which are dead by the time of the MLP. Pointers to void are of the
// kernels' activation dtype.
struct Activations {
  float* x = nullptr;      // [T, d_model], the residual stream
  void* normed = nullptr;  // [T, d_model]
  void* q = nullptr;       // [T, query_heads, head_dim], tokens qkv_stride elements apart, as k, v:
  void* k = nullptr;       // [T, kv_heads, head_dim], all three columns of one matrix, so that one
  void* v = nullptr;       // [T, kv_heads, head_dim]  product can make them
  void* o = nullptr;       // [T, query_heads, head_dim], attention's output
  void* gate = nullptr;    // [T, d_ff]
  void* up = nullptr;      // [T, d_ff], of a gated MLP
  float* cos = nullptr;    // [T, head_dim / 2]
  float* sin = nullptr;    // [T, head_dim / 2]
  int64_t qkv_stride = 0;

  // Bytes that Place takes; pure, so that a plan can be made without memory. `dtype` is the
  // kernels' activation dtype.
  static int64_t Bytes(const ModelShape& shape, DType dtype, int64_t tokens);
  // `buffer` has Bytes() and is aligned to 64, as every part will be.
  static Activations Place(const ModelShape& shape, DType dtype, int64_t tokens, std::byte* buffer);
};

// Bytes that Head needs besides, for the normed rows and for those of the embedding's width.
int64_t HeadScratchBytes(const ModelShape& shape, DType dtype, int64_t rows);

// Bytes of the logits of `rows` tokens.
int64_t LogitsBytes(const ModelShape& shape, int64_t rows);

// Bytes of all weights of a model of this config whose matrices are of shape.dtype: mapped
// matrices, and the norms and biases that are held as f32.
struct WeightBytes {
  int64_t matrices = 0;
  int64_t vectors = 0;
  int64_t row_tables = 0;  // of the matrices: those of which a step reads a row a token
  int64_t layer = 0;       // of the matrices: those of the largest layer, side by side
  int64_t layer_read = 0;  // host memory that these take on their way from disk
  int64_t total() const { return matrices + vectors; }
};
WeightBytes CountWeightBytes(const ModelConfig& config);

class Model {
 public:
  // Reads config.json and maps the weights of a folder. Every tensor's shape is checked against the
  // config; matrices stay in the mapped files, norms and biases are converted to f32. `env`
  // outlives the model.
  static Result<std::unique_ptr<Model>> Load(Env* env, const std::string& folder);
  // A model of this config with matrices of shape.dtype, normal with a deviation of 0.02, that
  // depend on `seed` only: for measuring speed without a download. `pool` may be null.
  static Result<std::unique_ptr<Model>> Random(Env* env, const ModelConfig& config, uint64_t seed,
                                               ThreadPool* pool);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Where MoveTo puts the weights.
  struct Placement {
    Budget* device_budget = nullptr;     // null: what is not in `streamed` stays where it is
    Budget* host_budget = nullptr;       // for the layers in `streamed`
    std::span<const int> streamed = {};  // layers whose matrices go to host memory
    // Of these, those whose matrices stay on disk: in the model's files; random ones go to a
    // temporary file in `directory`, reserved from `disk_budget`.
    std::span<const int> on_disk = {};
    Budget* disk_budget = nullptr;
    std::string directory = {};
    ThreadPool* pool = nullptr;  // copies on the host, may be null
  };
  // Copies the weights to memory of `device`, where the kernels read them from then on, but for the
  // matrices of streamed layers: these go to host memory that copies to the device reach at full
  // speed, one HostBlock a layer, or stay on disk, one BlockOnDisk a layer. Matrices of a layer lie
  // side by side, so that products of the same rows can be one. Random weights are given back where
  // they were drawn. Device and budgets outlive the model.
  Status MoveTo(Device& device, const Placement& to);
  bool on_device() const { return on_device_ != nullptr; }
  int64_t device_bytes() const { return on_device_ == nullptr ? 0 : on_device_->size(); }
  // The matrices of a streamed layer: a copy of the block, wherever it is, is what the steps of the
  // layer take as `block`. Empty for a layer that is not streamed, or is on disk.
  std::span<const std::byte> HostBlock(int layer) const;
  // The same block of a layer that is on disk; else null.
  const DiskBlock* BlockOnDisk(int layer) const;
  bool Streams(int layer) const {
    return !HostBlock(layer).empty() || BlockOnDisk(layer) != nullptr;
  }
  // Bytes of a layer's block.
  int64_t BlockBytes(int layer) const;

  const ModelConfig& config() const { return config_; }
  const ModelShape& shape() const { return config_.shape; }
  // What the weights in use take, by their real dtypes.
  WeightBytes weight_bytes() const { return weight_bytes_; }
  // A hash of name, shape, dtype and every byte of every tensor in use, for sessions, as they lie
  // in the files; of random weights instead of the bytes the seed that they come from. Reads all
  // weights, wherever MoveTo has put them. `pool` may be null.
  uint64_t Fingerprint(ThreadPool* pool) const;
  // What tells without reading them that a fingerprint is still right: the tensors in use and the
  // identities of the files. Empty for random weights, whose fingerprint costs nothing.
  std::string FilesKey() const;
  // The last time that one of the files was changed, when they were mapped.
  int64_t FilesChangedNanos() const;
  // kIo where one of them is not what was mapped.
  Status CheckFilesUnchanged() const;
  // kCorrupt, naming the first tensor that holds a NaN or an infinity. Reads all weights: for when
  // logits are not finite. `pool` may be null.
  Status CheckFinite(ThreadPool* pool) const;

  // x = the embeddings of ids [T], each in [0, vocab), at positions [T], which count where the
  // model learned some: each below max_position then. Overwrites normed.
  void Embed(Kernels& kernels, Stream& stream, std::span<const TokenId> ids,
             std::span<const int32_t> positions, const Activations& a) const;
  // The steps of a layer read its matrices from `block`, a copy of its block, or, with null, where
  // they are.
  //
  // From x: q, k, v, with their norms where the model has them, not rotated yet; with keep_normed
  // also what they are made of in normed [T, d_model], which holds anything otherwise.
  void Qkv(Kernels& kernels, Stream& stream, int layer, int64_t tokens, const Activations& a,
           bool keep_normed, const std::byte* block = nullptr) const;
  // k and v [rows, kv_heads, head_dim], rows kv_stride elements apart, as Qkv makes them of these
  // rows of normed.
  void Kv(Kernels& kernels, Stream& stream, int layer, const void* normed, int64_t rows, void* k,
          void* v, int64_t kv_stride, const std::byte* block = nullptr) const;
  // x += o · Wo; with norm_behind, x is normed then.
  void AttentionOut(Kernels& kernels, Stream& stream, int layer, int64_t tokens,
                    const Activations& a, const std::byte* block = nullptr) const;
  // x += the MLP of the normed x; with norm_behind, the MLP of x, and x is normed then. Overwrites
  // normed, gate and up (thus q, k, v, o).
  void Mlp(Kernels& kernels, Stream& stream, int layer, int64_t tokens, const Activations& a,
           const std::byte* block = nullptr) const;
  // logits [rows, vocab] of x [rows, d_model]. `scratch` has HeadScratchBytes and is overwritten.
  void Head(Kernels& kernels, Stream& stream, int64_t rows, const float* x, void* scratch,
            float* logits) const;

  // The widest input and output of the steps' Linear calls, Head's output (vocab) left out: for
  // KernelLimits.
  int64_t MaxLinearIn() const;
  int64_t MaxLinearOut() const;

 private:
  // Pointers are null where the model has no such part.
  struct Layer {
    NormView input_norm;  // of [d_model]; with norm_behind, that behind attention
    WeightView q, k, v, o;
    const float* q_bias = nullptr;
    const float* k_bias = nullptr;
    const float* v_bias = nullptr;
    const float* o_bias = nullptr;
    const float* q_norm = nullptr;  // [head_dim]
    const float* k_norm = nullptr;
    NormView mlp_norm;          // of [d_model]; with norm_behind, that behind the MLP
    WeightView gate, up, down;  // an MLP that is not gated has gate and down
    const float* gate_bias = nullptr;
    const float* up_bias = nullptr;
    const float* down_bias = nullptr;
  };
  // A tensor that the model uses, under its name in the files.
  struct Part;

  friend WeightBytes CountWeightBytes(const ModelConfig& config);

  static constexpr int kNoLayer = -1;  // of what belongs to none
  // Rows of a table of learned positions before the first one's.
  static constexpr int64_t kPositionOffset = 2;

  Model(Env* env, ModelConfig config);
  // The tensors of the config and, with files, of what they hold; pointing into this object.
  std::vector<Part> Parts();
  std::vector<Part> LayerParts(int layer);
  std::string Prefix() const;
  void CountMatrix(const Part& part, WeightBytes* bytes) const;
  int64_t LargestBlock() const;
  Layer LayerAt(int layer, const std::byte* block) const;
  void AddNorm(const std::string& name, int64_t width, NormView* norm,
               std::vector<Part>* parts) const;
  Status MapParts(const std::string& folder);
  // Memory for weights on the host; `layer`: that Disown gives back.
  Result<std::byte*> Own(int64_t bytes, int layer);
  void Disown(int layer);
  Status MoveToHost(Device& device, const Placement& to, int layer);
  Status MoveToDisk(const Placement& to, int layer);
  Result<const WeightFile*> FileOf(size_t file);
  Result<DiskBlock::Tensor> WriteToDisk(const Placement& to, int layer);
  std::vector<UsedTensor> UsedTensors() const;
  void TieEmbeddings();

  Env* env_;
  ModelConfig config_;
  std::optional<Weights> files_;  // Load
  struct Owned {
    int layer = kNoLayer;
    std::byte* data = nullptr;
    size_t bytes = 0;
  };
  std::vector<Owned> owned_;  // norms and biases; with Random the matrices, too, layer by layer
  WeightBytes weight_bytes_;

  WeightView embed_;
  WeightView positions_;    // [max_position + offset, d_model], with learned_positions
  WeightView project_in_;   // [d_model, embed_width], with an embed_width
  WeightView project_out_;  // [embed_width, d_model]
  std::vector<Layer> layers_;
  NormView final_norm_;
  WeightView head_;
  std::vector<Part> parts_;
  uint64_t seed_ = 0;  // Random
  std::unique_ptr<Buffer> on_device_;
  std::vector<std::unique_ptr<Buffer>> host_blocks_;  // [layers], null where it is not there
  // Of layers on disk; the files by their number in files_, or the temporary one.
  std::map<size_t, std::unique_ptr<WeightFile>> weight_files_;
  std::vector<Reservation> on_disk_;                     // of the temporary file
  std::vector<std::unique_ptr<DiskBlock>> disk_blocks_;  // [layers], null where it is not there
};

}  // namespace headway

#endif  // HEADWAY_MODEL_MODEL_H_
