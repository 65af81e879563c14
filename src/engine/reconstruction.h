// Reconstruction: has the model repeat a prompt that it has read, chunk by chunk, so that an
// evictor sees how much attention each token has while it is repeated (KVzip: Kim et al., 2025). It
// costs what reading the prompt did, and what weighing all of these queries takes.
#ifndef HEADWAY_ENGINE_RECONSTRUCTION_H_
#define HEADWAY_ENGINE_RECONSTRUCTION_H_

#include <atomic>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/evictor.h"
#include "engine/executor.h"
#include "engine/repeat_prompt.h"
#include "headway/status.h"
#include "kv/store/store.h"
#include "model/rope.h"

namespace headway {

class Reconstruction {
 public:
  // All outlive it. `executor` reads prompts, which `store` has.
  Reconstruction(Executor& executor, kv::Store& store, Evictor& evictor, RepeatPrompt words)
      : executor_(executor), store_(store), evictor_(evictor), words_(std::move(words)) {}

  // Of a sequence that has the prompt, whose keys `rope` has rotated, and has it again when this is
  // done. The evictor may then evict. After an error the sequence has a part of it.
  Status Repeat(kv::SequenceId sequence, std::span<const TokenId> prompt,
                const RopeFrequencies& rope, const std::atomic<bool>* cancel);

 private:
  // What is behind the prompt while tokens [begin, end) of it are repeated.
  std::vector<TokenId> InputFor(std::span<const TokenId> prompt, int64_t begin, int64_t end) const;

  Executor& executor_;
  kv::Store& store_;
  Evictor& evictor_;
  const RepeatPrompt words_;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_RECONSTRUCTION_H_
