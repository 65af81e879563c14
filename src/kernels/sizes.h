// What a plan must know of kernels: how much memory they take, how they cut work, and what they can
// do.
#ifndef HEADWAY_KERNELS_SIZES_H_
#define HEADWAY_KERNELS_SIZES_H_

#include <cstdint>

#include "base/types.h"
#include "kernels/attention.h"
#include "kernels/selection.h"

namespace headway {

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
  // Depends on the model and on the keys of all sequences of the step alone, and never falls as
  // these grow.
  virtual int64_t DecodeSplit(int64_t keys, int kv_heads) const = 0;
  // The same where each of `heads` KV heads lists `keys` keys, more or less, and all lists of a
  // layer are attended to at once.
  virtual int64_t ListedSplit(int heads, int64_t keys) const { return DecodeSplit(keys, heads); }

  // Scratch memory that Prepare will take from the budget.
  virtual int64_t WorkspaceBytes(const KernelLimits& limits) const = 0;
  // Whether EncodePages and Attend know pages in an encoding.
  virtual bool TakesEncoding(Encoding encoding) const { return encoding == Encoding::kNone; }
  // Whether Attend can do what is requested. An implementation that does not say otherwise attends
  // to plain pages alone.
  virtual bool SupportsAttention(const AttentionRequest& request) const {
    return TakesEncoding(request.encoding) && !request.softcap && !request.positions &&
           !request.key_transform && !request.key_mass;
  }
  // Whether the calls of SelectionKernels know these pages and blocks.
  virtual bool SupportsSelection(const PageFormat& format, const SummaryFormat& summary,
                                 int group) const {
    (void)format, (void)summary, (void)group;
    return false;
  }
  // Whether they take rows of prompts, turned summaries and queries, and blocks that are moved.
  virtual bool SelectsInPrompts() const { return false; }
};

}  // namespace headway

#endif  // HEADWAY_KERNELS_SIZES_H_
