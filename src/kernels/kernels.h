// Kernels: the stateless maths of a step, over views. `ref/` is the plain definition, `cpu/` the
// fast implementation for CPUs; an accelerator adds another. All calls enqueue on a compute stream
// and return; shapes are in brackets, innermost last, rows contiguous unless a stride is given.
//
// The residual stream, norms, sums, softmax and partial states are f32. Weights and KV pages keep
// the dtype of the model. What passes between the steps of a layer (normed rows, q, k, v, the MLP's
// inside) is in the kernels' activation dtype, which ActivationDType names: pointers to it are
// void*, and their strides count elements.
#ifndef HEADWAY_KERNELS_KERNELS_H_
#define HEADWAY_KERNELS_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/types.h"
#include "device/device.h"
#include "headway/status.h"

namespace headway {

// A weight matrix [out, in] as model files hold it, in memory that the kernels can read.
struct WeightView {
  const std::byte* data = nullptr;
  DType dtype = DType::kBF16;
  int64_t out = 0;
  int64_t in = 0;
};

// What becomes of a product: an activation, an activation behind ReLU (negative ones become 0),
// f32 (logits), or f32 added to what is there (the residual stream).
enum class LinearResult : uint8_t { kActivation, kRelu, kFloat, kAddFloat };
constexpr bool IsActivation(LinearResult result) {
  return result == LinearResult::kActivation || result == LinearResult::kRelu;
}

// y [rows, out] = x [rows, in] · weight^T + bias.
struct LinearOp {
  WeightView weight;
  const float* bias = nullptr;  // [out] or null
  void* y = nullptr;
  int64_t y_stride = 0;  // elements between rows of y
  LinearResult result = LinearResult::kActivation;
};

// A norm over the last dimension of the residual stream; sums are f32 or wider.
enum class NormKind : uint8_t {
  kNone,   // y = x
  kRms,    // y = x / sqrt(mean(x²) + eps) * weight
  kLayer,  // y = (x - mean(x)) / sqrt(mean((x - mean(x))²) + eps) * weight + bias
};
struct NormView {
  NormKind kind = NormKind::kRms;
  const float* weight = nullptr;  // [width]; null: ones
  const float* bias = nullptr;    // [width], of kLayer; null: zeros
  float eps = 0.0f;
};

// How the pages of a cache are laid out: page_slots × head_dim elements, slot-major. Closed pages
// may be encoded: then K and V are codes in the same order, and a page's parameters lie apart (see
// page_codec.h). head_dim is even then.
struct PageFormat {
  DType dtype = DType::kBF16;
  int page_slots = kDefaultPageSlots;
  int head_dim = 0;
  Encoding encoding = Encoding::kNone;  // of closed pages

  size_t bytes() const {  // of K, or of V, without padding
    return static_cast<size_t>(page_slots) * static_cast<size_t>(head_dim) * DTypeBytes(dtype);
  }
  // The same of a closed page.
  size_t closed_bytes() const {
    return static_cast<size_t>(EncodedBytes(encoding, dtype, int64_t{page_slots} * head_dim));
  }
};

// `count` consecutive slots of one or more KV heads, `first_slot` slots into the first of their
// pages. The pages of a head lie page_stride bytes apart, the heads head_stride bytes apart.
struct PageRun {
  std::byte* k = nullptr;  // the first page of the first head
  std::byte* v = nullptr;
  int64_t page_stride = 0;
  int64_t head_stride = 0;
  int64_t first_slot = 0;
  int64_t count = 0;
  int64_t readable = 0;  // slots of a head from its first page on that are memory of the cache,
                         // whatever it holds; 0: those up to the last of the count
  // Of closed pages in the format's encoding, the parameters of the first page of the first head;
  // null: the pages are in the dtype.
  std::byte* params = nullptr;
  int64_t params_page_stride = 0;
  int64_t params_head_stride = 0;
};

// Pages of `heads` KV heads that have closed: from.count slots, whole pages, in the dtype, are
// encoded into `to`.
struct EncodePagesItem {
  PageRun from;
  PageRun to;
  int heads = 1;
};

// K and V of `heads` KV heads [to.count, heads, head_dim], tokens kv_stride elements apart, to be
// encoded into their pages.
struct StoreKvItem {
  const void* k = nullptr;
  const void* v = nullptr;
  int64_t kv_stride = 0;
  int heads = 1;
  PageRun to;
};

// The rotation angles of a step's tokens: cos and sin [tokens, rotary_dim / 2], already scaled.
// With a rotary_dim of 0 nothing rotates, and cos and sin are not read.
struct RopeTable {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int rotary_dim = 0;  // the first rotary_dim elements of a head rotate, in halves (i, i + dim / 2)
};

// New q, k and v of the heads of a group: q and k are rotated in place, k and v encoded into pages.
struct RopeStoreItem {
  void* q = nullptr;  // [kv.to.count, query_heads, head_dim], tokens q_stride elements apart
  int64_t q_stride = 0;
  int query_heads = 0;
  RopeTable table;  // of the item's tokens
  StoreKvItem kv;   // its k is written to
};

// Keys with the logical positions of their slots.
struct KeyRun {
  PageRun pages;
  int64_t position = 0;                // of the first key; key i is at position + i
  const int32_t* positions = nullptr;  // [count], ascending, instead, after eviction
};

// RoPE at attention time, for caches that hold keys unrotated: key i is rotated to rotate_to[i].
struct KeyTransform {
  const float* inv_freq = nullptr;  // [rotary_dim / 2]; null: keys are used as they are
  int rotary_dim = 0;
  const int32_t* rotate_to = nullptr;  // [count] of the item; null: the key's own position
};

struct AttentionParams {
  float scale = 1.0f;
  float softcap = 0.0f;  // logits become softcap * tanh(logit / softcap); 0: off
  int64_t window = 0;    // a query at p sees keys at (p - window, p]; 0: all keys up to p
};

// The queries of one sequence and `heads` KV heads (each with its whole group) against one range of
// keys: their partial states (o, lse) are written, or merged into what is there. With `split`,
// every `split` keys make a partial state of their own, part p at p * o_part_stride and p *
// lse_part_stride; such states are not merged.
struct AttentionItem {
  const void* q = nullptr;  // [tokens, heads, group, head_dim]; tokens q_stride elements apart
  int64_t q_stride = 0;
  int64_t tokens = 0;
  int64_t q_position = 0;  // of the first token; a query at p sees keys at positions <= p
  int heads = 1;
  KeyRun keys;
  KeyTransform transform;

  int64_t split = 0;     // keys of a partial state; 0: one state of all
  float* o = nullptr;    // [tokens, heads, group, head_dim], normalised
  int64_t o_stride = 0;  // between tokens
  int64_t o_part_stride = 0;
  float* lse = nullptr;  // [tokens, heads, group], natural log; -inf where no key was seen (o is 0)
  int64_t lse_stride = 0;
  int64_t lse_part_stride = 0;
  bool merge = false;  // merge into (o, lse) instead of writing
  // Not null: this is the last range of a prefill, whose merged output is written here as
  // activations [tokens, heads, group, head_dim], tokens result_stride apart; (o, lse) hold
  // anything afterwards. Only where ActivationDType is not f32.
  void* result = nullptr;
  int64_t result_stride = 0;
  float* key_mass = nullptr;  // [heads, count], or null: += the sum over queries of exp(logit -
                              // lse), where lse is the item's own partial lse
};

// `parts` partial states of the same queries, merged in order into `o`. All [rows, head_dim] and
// [rows], part i at i * o_part_stride and i * lse_part_stride, and behind them one that lies
// elsewhere, if there is one. One part alone is converted.
struct MergeItem {
  const float* part_o = nullptr;
  int64_t o_part_stride = 0;
  const float* part_lse = nullptr;
  int64_t lse_part_stride = 0;
  int parts = 0;
  const float* extra_o = nullptr;    // [rows, head_dim], and [rows]: the last part, or null; in
  const float* extra_lse = nullptr;  // memory of the host if kernels read that
  int64_t rows = 0;
  void* o = nullptr;     // activations, rows head_dim apart
  float* lse = nullptr;  // [rows] or null

  int AllParts() const { return parts + (extra_o == nullptr ? 0 : 1); }
  const float* PartO(int part) const {
    return part < parts ? part_o + part * o_part_stride : extra_o;
  }
  const float* PartLse(int part) const {
    return part < parts ? part_lse + part * lse_part_stride : extra_lse;
  }
};

// Rows of activations, or of what a cache keeps of them, in another dtype.
struct ConvertItem {
  const void* from = nullptr;  // [rows, width], rows from_stride elements apart
  DType from_dtype = DType::kF32;
  int64_t from_stride = 0;
  void* to = nullptr;  // the same, rounded to the nearest, ties to even
  DType to_dtype = DType::kF32;
  int64_t to_stride = 0;
  int64_t rows = 0;
  int64_t width = 0;
};

// A token that penalties count: after the repetition penalty, `subtract` comes off its logit.
struct TokenPenalty {
  TokenId token = 0;
  float subtract = 0.0f;
};

// What was picked, and its logit after the penalties. A model that is broken shows in the logit:
// the first that is NaN or +infinity, with its token, or -infinity, where none is finite.
struct Sampled {
  TokenId token = 0;
  float logit = 0.0f;
};

// The next token of one sequence from its logits; Sampler (sampler.h) fills in the options and says
// what they do.
struct SampleItem {
  float* logits = nullptr;  // [vocab], changed by the penalties
  int64_t vocab = 0;
  float temperature = 0.0f;  // 0: greedy
  int top_k = 0;             // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  std::span<const TokenPenalty> penalties;  // each token once; read before the call returns
  uint64_t draw = 0;                        // random bits
  Sampled* result = nullptr;
};

// What the negative log-likelihood of a token is made of (NegativeLogLikelihood in scoring.h). All
// 0 where a logit is NaN or +infinity, or none is finite.
struct Scored {
  float largest = 0.0f;  // logit
  float target = 0.0f;   // the token's
  uint64_t sum = 0;  // of ScoreWeight(largest - logit) over all tokens, which are fewer than 2^24
};

// A token whose likelihood is asked for.
struct ScoreItem {
  const float* logits = nullptr;  // [vocab]
  int64_t vocab = 0;
  TokenId target = 0;
  Scored* result = nullptr;
};

// What one engine will ask of its kernels at most; their scratch memory is sized by it.
struct KernelLimits {
  int64_t rows = 0;     // of activations in one call
  int64_t max_in = 0;   // widest input of a Linear
  int64_t max_out = 0;  // widest output
  int64_t head_dim = 0;
  int64_t group = 0;
  int64_t query_heads = 0;
  int64_t vocab = 0;                    // of logits that are sampled from
  DType activation = DType::kF32;       // ActivationDType of the model
  Encoding encoding = Encoding::kNone;  // of closed pages
};

// What a plan must know of kernels, which it can without the processor that they run on.
class KernelSizes {
 public:
  virtual ~KernelSizes() = default;
  // The activation dtype of a model whose weights are `weights`.
  virtual DType ActivationDType(DType weights) const = 0;
  // Keys that one partial state of a decode item best covers: enough to hide the start of the work,
  // few enough that a short context still feeds the whole processor.
  // Depends on the sequence's length alone, and never falls as that grows.
  virtual int64_t DecodeSplit(int64_t length) const = 0;

  // Scratch memory that Prepare will take from the budget.
  virtual int64_t WorkspaceBytes(const KernelLimits& limits) const = 0;
  // Whether EncodePages and Attend know pages in an encoding.
  virtual bool TakesEncoding(Encoding encoding) const { return encoding == Encoding::kNone; }
};

class Kernels : public KernelSizes {
 public:
  virtual std::string name() const = 0;  // "cpu avx512", "cpu amx", "ref"
  // Takes the scratch memory. Before the first step.
  virtual Status Prepare(const KernelLimits& limits, Device& device, Budget& budget) = 0;

  // x [n, table.in] = rows of table [vocab, table.in] chosen by ids; with `add` they are added to
  // x.
  virtual void Embed(Stream& stream, const WeightView& table, std::span<const TokenId> ids,
                     bool add, float* x) = 0;
  // y = activations of the normed x [rows, width].
  virtual void Norm(Stream& stream, const float* x, const NormView& norm, int64_t rows,
                    int64_t width, void* y) = 0;
  // x [rows, width] = the normed x, which stays f32.
  virtual void NormInPlace(Stream& stream, const NormView& norm, int64_t rows, int64_t width,
                           float* x) = 0;
  // NormKind::kRms in place over each head of x [tokens, heads, head_dim], tokens x_stride apart.
  virtual void HeadNorm(Stream& stream, const float* weight, float eps, int64_t tokens, int heads,
                        int head_dim, void* x, int64_t x_stride) = 0;
  // All ops read the same x [rows, in].
  virtual void Linear(Stream& stream, const void* x, int64_t rows,
                      std::span<const LinearOp> ops) = 0;
  // Linear of Norm's result: x is the residual stream [rows, in]. normed [rows, in] may be
  // overwritten.
  virtual void NormLinear(Stream& stream, const float* x, const NormView& norm, int64_t rows,
                          void* normed, std::span<const LinearOp> ops);
  // GatedLinear of Norm's result.
  virtual void NormGatedLinear(Stream& stream, const float* x, const NormView& norm, int64_t rows,
                               void* normed, const LinearOp& gate, const LinearOp& up);
  // The first half of a gated MLP: gate.y [rows, out] = silu(x · gate) * (x · up), rows contiguous.
  // up.y may be overwritten.
  virtual void GatedLinear(Stream& stream, const void* x, int64_t rows, const LinearOp& gate,
                           const LinearOp& up);
  // y = silu(gate) * up; y may be gate.
  virtual void SwiGlu(Stream& stream, const void* gate, const void* up, int64_t count, void* y) = 0;
  // Where both dtypes are the same, as they are on a GPU, a copy.
  virtual void Convert(Stream& stream, const ConvertItem& item);
  // Fills cos and sin [tokens, rotary_dim / 2] with scale * cos and sin of f32(position) *
  // inv_freq, the product rounded to f32 as Transformers does.
  virtual void RopeAngles(Stream& stream, std::span<const int32_t> positions, const float* inv_freq,
                          int rotary_dim, float scale, float* cos, float* sin) = 0;
  // Rotates x [tokens, heads, head_dim] in place, tokens x_stride apart.
  virtual void Rope(Stream& stream, const RopeTable& table, int64_t tokens, int heads, int head_dim,
                    void* x, int64_t x_stride) = 0;
  virtual void StoreKv(Stream& stream, const PageFormat& format,
                       std::span<const StoreKvItem> items) = 0;
  // Rope and StoreKv, which an implementation may do at once.
  virtual void RopeStoreKv(Stream& stream, const PageFormat& format,
                           std::span<const RopeStoreItem> items);

  // Only where TakesEncoding says so of the format's encoding.
  virtual void EncodePages(Stream& stream, const PageFormat& format,
                           std::span<const EncodePagesItem> items);
  virtual void Attend(Stream& stream, const PageFormat& format, int group,
                      const AttentionParams& params, std::span<const AttentionItem> items) = 0;
  virtual void Merge(Stream& stream, int head_dim, std::span<const MergeItem> items) = 0;
  // Lets a logit that no key owns take its share of the softmax: o and lse of head h [tokens,
  // heads] are merged with (0, sink_logits[h]).
  virtual void AddSinks(Stream& stream, const float* sink_logits, int64_t tokens, int heads,
                        int head_dim, float* o, float* lse) = 0;

  // Picks tokens. Every implementation picks the same one from the same bits.
  virtual void Sample(Stream& stream, std::span<const SampleItem> items) = 0;
  // Every implementation finds the same bits.
  virtual void Score(Stream& stream, std::span<const ScoreItem> items) = 0;
};

}  // namespace headway

#endif  // HEADWAY_KERNELS_KERNELS_H_
