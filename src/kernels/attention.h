// Attention over runs of pages, and its partial states: attend to a range, merge states of ranges.
//
// For one query, the state (o, lse) of a range is the normalised output and the natural logarithm
// of the sum of exponentials over the keys that the query sees there; lse is -inf, and o is 0,
// where it sees none. States of disjoint ranges merge exactly (Milakov and Gimelshein, "Online
// normalizer calculation for softmax", 2018). A sink logit, which belongs to no key and takes its
// share of the softmax, is one more state: o is 0, and lse is the logit.
#ifndef HEADWAY_KERNELS_ATTENTION_H_
#define HEADWAY_KERNELS_ATTENTION_H_

#include <cstdint>
#include <span>

#include "base/types.h"
#include "device/device.h"
#include "kernels/pages.h"

namespace headway {

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

// Holders of a KV head are the ranks that each have a part of its keys; one has this many at most.
inline constexpr int kMostHolders = 64;

// The output of a KV head's query heads over the keys of one of its holders becomes its summand of
// the output over the keys of all: it is scaled by e^(lse - lse of all), and is 0 where the holder
// saw no key, whatever `o` is then.
struct ScaleHeldItem {
  const float* from = nullptr;  // [rows, group, head_dim], rows from_stride apart; null: o
  int64_t from_stride = 0;
  void* o = nullptr;  // activations, the same, rows o_stride apart
  int64_t o_stride = 0;
  // Natural logarithms of all holders, rows lse_stride apart: holder i's of the group from column
  // columns[i] on.
  const float* lse = nullptr;
  int64_t lse_stride = 0;
  int32_t columns[kMostHolders] = {};
  int holders = 0;
  int own = 0;  // which of them this one is
  int64_t rows = 0;
};

// What a caller asks of Attend, as far as implementations differ in what they can do. A planner
// fills it in before it relies on a feature; RequestOf (items.h) makes it of an item.
struct AttentionRequest {
  DType dtype = DType::kBF16;           // of the pages that are not encoded
  Encoding encoding = Encoding::kNone;  // of closed pages
  int head_dim = 0;
  int group = 1;
  bool softcap = false;        // AttentionParams::softcap is not 0
  bool positions = false;      // KeyRun::positions is given
  bool key_transform = false;  // KeyTransform::inv_freq is given
  bool key_mass = false;       // AttentionItem::key_mass is given
  // Every address and stride of pages and heads is a multiple of so many bytes, and every one of
  // parameters.
  int64_t page_alignment = 16;
  int64_t param_alignment = 4;
};

class AttentionKernels {
 public:
  virtual ~AttentionKernels() = default;
  // Only what KernelSizes::SupportsAttention allows: another item is an error of the stream,
  // kUnsupported, and nothing is written for it.
  virtual void Attend(Stream& stream, const PageFormat& format, int group,
                      const AttentionParams& params, std::span<const AttentionItem> items) = 0;
  virtual void Merge(Stream& stream, int head_dim, std::span<const MergeItem> items) = 0;
  virtual void ScaleHeld(Stream& stream, int head_dim, int group,
                         std::span<const ScaleHeldItem> items) = 0;
};

}  // namespace headway

#endif  // HEADWAY_KERNELS_ATTENTION_H_
