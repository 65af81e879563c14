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
  // Not null: the token behind the last one is picked on the device and put into *sampled; logits
  // is kNone, and there are no targets.
  Sampler* sampler = nullptr;
  TokenId* sampled = nullptr;
  // As many as tokens, or none: what comes behind each, and where its -ln p is put, which is taken
  // on the device.
  std::span<const TokenId> targets = {};
  std::span<double> losses = {};

  bool WantsLogits() const {
    return logits != LogitsMode::kNone || sampler != nullptr || !targets.empty();
  }
};

// Gets the logits [vocab] behind token `token` (an index into the entry's tokens). Within an entry
// in ascending order.
using LogitsSink = std::function<Status(int entry, int64_t token, std::span<float> logits)>;

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_INPUT_H_
