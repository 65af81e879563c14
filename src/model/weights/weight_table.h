// WeightTable: the tensors that a model uses, by layer and TensorId: their names, the parts of them
// that are held, and where the kernels read these. It owns no memory of theirs.
#ifndef HEADWAY_MODEL_WEIGHTS_WEIGHT_TABLE_H_
#define HEADWAY_MODEL_WEIGHTS_WEIGHT_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "model/arch/program.h"
#include "model/arch/run.h"
#include "model/config.h"
#include "model/weights/shard.h"
#include "model/weights/weight_source.h"
#include "model/weights/weight_type.h"

namespace headway {

// A cache line, and the widest vector of any CPU here: what a tensor in memory begins at.
inline constexpr int64_t kWeightAlignment = 64;

inline constexpr int kNoLayer = -1;  // of tensors that belong to none

// Bytes of all weights of a model: matrices as they are stored, and the norms and biases that are
// held as f32.
struct WeightBytes {
  int64_t matrices = 0;
  int64_t vectors = 0;
  int64_t row_tables = 0;   // of the matrices: those of which a step reads a row a token
  int64_t layer = 0;        // of the matrices: those of the largest layer, side by side
  int64_t layer_read = 0;   // host memory that these take on their way from disk
  int64_t layer_apart = 0;  // the most that a layer of a source there takes besides its files
  int64_t layer_code = 0;   // these in their lossless form; 0: not all of any layer's are bf16
  int64_t total() const { return matrices + vectors; }
};

// A tensor in use, or the slice of it that is held.
struct WeightPart {
  std::string name = {};  // in the files
  int layer = kNoLayer;
  arch::TensorId id = arch::kNoTensor;
  arch::Use use = arch::Use::kMatrix;
  bool first_of_file = true;  // of the tensors that the files hold as one
  int64_t file_rows = 0;
  int64_t file_columns = 0;  // 0: a vector
  Slice slice = {};
  int64_t zero_rows = 0;     // HeldPart's
  int64_t zero_columns = 0;  // the same
  int64_t rows = 0;          // 0: nothing is held
  int64_t columns = 0;
  WeightType type = WeightType::kF32;  // of a matrix; vectors are held as f32
  const std::byte* on_host = nullptr;  // where the host reads it, if it can
  bool mapped = false;                 // there is the source

  bool is_matrix() const { return file_columns != 0; }
  int64_t count() const { return is_matrix() ? rows * columns : rows; }
  DType dtype() const { return is_matrix() ? ElementDType(type) : DType::kF32; }
  int64_t bytes() const { return count() * static_cast<int64_t>(DTypeBytes(dtype())); }
  bool InLayerBlock() const { return is_matrix() && layer != kNoLayer; }
  // Whether some of what is held lies nowhere in the files as it is needed: columns, and zeros.
  bool IsApart() const { return !slice.columns.empty() || zero_rows > 0; }
  bool MatchesShape(const std::vector<int64_t>& shape) const;
};

class WeightTable {
 public:
  // Of the tensors that the source has or, with null, should have. `program` is the config's.
  WeightTable(const ModelConfig& config, const arch::Program& program, const WeightSource* source);

  // Narrows all parts to what the shard holds of them. Before anything is pointed to.
  void Cut(const arch::Program& program, const ModelShape& whole, const Shard& shard);

  size_t layers() const { return lists_.size() - 1; }
  // Whose types are set by who knows them, before LayOutBlocks.
  std::vector<WeightPart>& parts() { return parts_; }
  const std::vector<WeightPart>& parts() const { return parts_; }

  // Finds where each matrix lies in the block of its layer.
  void LayOutBlocks();
  // From now on the kernels read the part at `data`. Nothing is read of a part that is not held.
  void Point(const WeightPart& part, const std::byte* data);
  // Of a layer, or of kNoLayer; the matrices in `block`, a copy of the layer's block, unless null.
  arch::TensorViews Views(int layer, const std::byte* block) const;

  // Of the matrices of a layer, each on kWeightAlignment, in the order of the parts.
  int64_t BlockBytes(int layer) const;
  WeightBytes Count() const;

 private:
  struct List {
    std::vector<WeightView> matrices;  // by TensorId, as the rest
    std::vector<const float*> vectors;
    std::vector<int64_t> in_block;
  };
  List& ListOf(int layer) { return lists_[static_cast<size_t>(layer + 1)]; }
  // Whether a part is the head and the embedding.
  bool IsBoth(const WeightPart& part) const;
  // The rows of the head that are held, of a view of the whole.
  WeightView HeadOf(const WeightView& whole) const;
  void AddParts(const arch::TensorList& tensors, int layer, const std::string& prefix);

  arch::TensorId embedding_;
  arch::TensorId head_;
  bool has_embedding_ = true;  // else it is the head
  bool has_head_ = true;       // else it is the embedding
  Interval head_rows_;         // of the whole head, where it is cut
  std::vector<WeightPart> parts_;
  std::vector<List> lists_;  // [layers + 1], that of the model first
};

}  // namespace headway

#endif  // HEADWAY_MODEL_WEIGHTS_WEIGHT_TABLE_H_
