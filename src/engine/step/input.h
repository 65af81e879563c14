// What a step is asked for: new tokens of some sequences, and what is wanted of their logits.
#ifndef HEADWAY_ENGINE_STEP_INPUT_H_
#define HEADWAY_ENGINE_STEP_INPUT_H_

#include <cstdint>
#include <functional>
#include <span>

#include "base/types.h"
#include "headway/status.h"
#include "kernels/sampler.h"
#include "kv/store/store.h"
#include "model/rope.h"

namespace headway {

// The tokens of an entry whose logits the sink gets.
enum class LogitsMode : uint8_t { kNone, kAll };

struct StepInput {
  kv::SequenceId sequence = 0;
  std::span<const TokenId> tokens;        // new ones, >= 1
  const RopeFrequencies* rope = nullptr;  // of this sequence
  LogitsMode logits = LogitsMode::kNone;
  bool observed = true;  // its queries are, where ExecutorLimits ask for some
  // So many of the tokens, the last ones, behind one at least, are drafts: guesses that the caller
  // may take back behind the step (kv::StepEntry). The step is a decode step of the tokens
  // together; the limits allow for it, and the page that is open does not close.
  int64_t drafts = 0;
  // The tokens are read to guess what follows: in this step they attend to chosen keys, where the
  // limits have a selection of drafts, and the caller takes them back.
  bool drafting = false;
  // Not null: the token behind the last one is picked on the device, and before it, unless
  // picks_last, those behind each token that a draft follows: [PickedDrafts() + 1] of `sampled`;
  // logits is kNone, and there are no targets.
  Sampler* sampler = nullptr;
  TokenId* sampled = nullptr;
  bool picks_last = false;  // what the drafts should be is known
  // As many as tokens, or none: what comes behind each, and where its -ln p is put, which is taken
  // on the device.
  std::span<const TokenId> targets = {};
  std::span<double> losses = {};

  std::span<const TokenId> Drafts() const { return tokens.last(static_cast<size_t>(drafts)); }
  // Those before each of which a token is picked.
  std::span<const TokenId> PickedDrafts() const {
    return picks_last ? std::span<const TokenId>() : Drafts();
  }
  bool WantsLogits() const {
    return logits != LogitsMode::kNone || sampler != nullptr || !targets.empty();
  }
};

// Gets the logits [vocab] behind token `token` (an index into the entry's tokens). Within an entry
// in ascending order.
using LogitsSink = std::function<Status(int entry, int64_t token, std::span<float> logits)>;

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_INPUT_H_
