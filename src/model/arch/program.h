// Program: the tensors of a model and the steps that take a token through it, as data. calls.h
// turns the steps into calls of kernels; weights/ loads the tensors.
#ifndef HEADWAY_MODEL_ARCH_PROGRAM_H_
#define HEADWAY_MODEL_ARCH_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "kernels/kernels.h"

namespace headway::arch {

// What a tensor is to the steps. Norm weights and biases are vectors.
enum class Use : uint8_t {
  kMatrix,      // of products, which read all of it
  kRowTable,    // a step reads one row a token
  kNormWeight,  // near one
  kBias,        // near zero
};

// Which part of a tensor a rank holds that has some of a layer's heads and some of its MLP's inner
// rows (weights/shard.h).
enum class Split : uint8_t {
  kWhole,         // every rank has all of it
  kQueryRows,     // the rows of its query heads
  kKvRows,        // the rows of its KV heads
  kInnerRows,     // its rows of d_ff
  kQueryColumns,  // the columns of its query heads; the ranks' products add up
  kInnerColumns,  // its columns of d_ff; the ranks' products add up
  kOnce,          // a bias of such a sum, which one rank adds
  kVocabRows,     // its rows of the vocabulary, of the head
};

// What a rank's products of split columns are: parts of sums over the ranks.
enum class SumRole : uint8_t {
  kAlone,  // there is one rank, which has all
  kFirst,  // the first part of each sum, with what it is added to and the bias
  kOther,  // a part and nothing else
};

// Tensors that the files hold as one, some rows of each by turns.
struct Fused {
  int tensors = 1;
  int at = 0;        // which of them this one is
  int64_t rows = 0;  // of a turn
};

struct TensorSpec {
  std::string name = {};  // in the files, behind the prefix
  int64_t rows = 0;
  int64_t columns = 0;  // 0: a vector of `rows`
  Use use = Use::kMatrix;
  Split split = Split::kWhole;
  bool has_prefix = true;  // the model's or the layer's
  Fused fused = {};
};

// A tensor by its index in the list of its layer, or in that of the model.
using TensorId = int;
inline constexpr TensorId kNoTensor = -1;

// A norm with its tensors, of which there may be none.
struct Norm {
  NormKind kind = NormKind::kNone;
  float eps = 0.0f;
  TensorId weight = kNoTensor;
  TensorId bias = kNoTensor;
};

// A matrix [out, in] with its bias, if it has one.
struct Linear {
  TensorId weight = kNoTensor;
  TensorId bias = kNoTensor;
};

// What the norms of a family have in common.
struct NormTraits {
  NormKind kind = NormKind::kRms;
  float eps = 0.0f;
  bool affine = true;  // has weights, and biases where it is a LayerNorm
};

struct LinearTraits {
  std::string name = {};  // without ".weight"
  int64_t out = 0;
  int64_t in = 0;
  Split split = Split::kWhole;
  bool has_bias = false;
  Fused fused = {};  // and so is its bias
};

// The tensors of a layer or of the model, in the order in which fingerprints and random weights
// take them.
struct TensorList {
  std::vector<TensorSpec> specs;

  TensorId Add(TensorSpec spec);
  // NAME.weight, and NAME.bias where there is one.
  Norm AddNorm(const std::string& name, int64_t width, const NormTraits& traits);
  Linear AddLinear(const LinearTraits& traits);
};

// Where steps read and write. All are activations of the step's tokens but for the residual stream
// and the logits, which are f32.
enum class Slot : uint8_t {
  kResidual,   // [T, d_model]
  kNormed,     // [T, d_model]
  kQuery,      // [T, query_heads, head_dim]
  kKey,        // [T, kv_heads, head_dim]
  kValue,      // [T, kv_heads, head_dim]
  kAttended,   // [T, query_heads, head_dim]
  kInner,      // [T, d_ff]; shares its memory with q, k, v and the attended
  kUp,         // [T, d_ff], of a gated MLP; in the same way
  kProjected,  // of the head: [T, embed_width]
  kLogits,     // of the head: [T, vocab]
};
inline constexpr size_t kSlots = 10;

// Rows of a table: those of the tokens' ids become the residual stream, those of their positions
// are added to it.
enum class RowBy : uint8_t { kId, kPosition };
struct EmbedStep {
  TensorId table = kNoTensor;
  RowBy by = RowBy::kId;
  int64_t first_row = 0;  // of position 0
};

// The norm of the residual stream, as activations or in its place.
struct NormStep {
  Norm norm = {};
  Slot to = Slot::kNormed;
};

// What becomes of a product. Only the residual stream is added to.
enum class Into : uint8_t { kSet, kAdd };
struct Product {
  Linear linear = {};
  Slot to = Slot::kResidual;
  Into into = Into::kSet;
};
// Products of the same rows.
struct LinearStep {
  Slot from = Slot::kNormed;
  std::vector<Product> products = {};
};

// RMSNorm in place over each head of kQuery or kKey.
struct HeadNormStep {
  Slot heads = Slot::kQuery;
  TensorId weight = kNoTensor;
  float eps = 0.0f;
};

// Rotates queries and keys; the engine does it as it stores the keys.
struct RopeStep {};

// The cut of a layer's program: cache and attention, from kQuery, kKey and kValue to kAttended, are
// the engine's. Beside kAttended only the residual stream lives on.
struct AttendStep {};

// The MLP's inside, in place. What is between the two products of an MLP.
enum class Activation : uint8_t {
  kRelu,      // inner = max(inner, 0)
  kGelu,      // inner = gelu(inner)
  kGeluTanh,  // the same by its tanh formula
  kSwiGlu,    // inner = silu(inner) * up
};
struct ActivateStep {
  Activation activation = Activation::kSwiGlu;
};

using Step =
    std::variant<EmbedStep, NormStep, LinearStep, HeadNormStep, RopeStep, AttendStep, ActivateStep>;

struct LayerProgram {
  TensorList tensors;
  std::vector<Step> steps;  // one AttendStep among them
};

struct Program {
  // Of the tensors' names. Some of the published files hold the model without its head, under names
  // that begin with bare_prefix instead. A layer's names have "layers.0." behind it.
  std::string prefix = "model.";
  std::string bare_prefix;
  std::string layer_prefix = "layers.";

  TensorList tensors;  // those of no layer
  size_t front = 0;    // of them, the number that come before the layers' in the order of all
  TensorId embedding = kNoTensor;
  TensorId head = kNoTensor;  // the same matrix as the embedding where the configuration ties them
  std::vector<Step> embed;    // from ids to the residual stream
  std::vector<LayerProgram> layers;
  std::vector<Step> output;  // from the residual stream to logits
};

}  // namespace headway::arch

#endif  // HEADWAY_MODEL_ARCH_PROGRAM_H_
