// Evictor: when a prompt has been read, lets each KV head keep the tokens that an EvictionPolicy
// chooses, in a cache of their own; the prompt's whole cache may then go. What they let go of is
// dropped, or demoted (engine/step/demoted.h).
#ifndef HEADWAY_ENGINE_EVICTOR_H_
#define HEADWAY_ENGINE_EVICTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/evictor_parts.h"
#include "engine/prompt_weights.h"
#include "engine/rank_sums.h"
#include "headway/status.h"
#include "kernels/kernels.h"
#include "kv/policy/sharing_heads.h"

namespace headway {

class Evictor {
 public:
  // Bytes that Create takes from the device's budget; pure.
  static int64_t Bytes(const EvictorLimits& limits);
  // And from the host's.
  static int64_t HostBytes(const EvictorLimits& limits);
  static Result<std::unique_ptr<Evictor>> Create(const EvictorParts& parts,
                                                 const EvictorLimits& limits);

  // A sequence of the other store with what is kept of `prompt`, which the executor read last and
  // which stays as it is. It will have place `at` among those that live at a time, by which ranks
  // divide heads that several of them have. After an error there is no such sequence.
  Result<kv::SequenceId> Evict(kv::SequenceId prompt, int at = 0);
  // The sequence of the other store is dropped.
  void Forget(kv::SequenceId kept) {
    if (parts_.demoted != nullptr) parts_.demoted->Forget(kept);
  }
  // Of host memory, that all sequences have let go of.
  int64_t demoted_bytes() const { return parts_.demoted == nullptr ? 0 : parts_.demoted->bytes(); }

  // Tokens that heads were given of the last prompt, before pages were filled: [layers * KV heads]
  // of the model; right of those that this rank has.
  const std::vector<int64_t>& budgets() const { return budgets_; }

  // Of these, tokens that every head keeps.
  int64_t anyway() const { return limits_.policy.AnywayOf(length_); }
  const kv::EvictionPolicy& policy() const { return limits_.policy; }

  // Where the policy adds attention up: that of the step that the executor made last.
  Status AddUp(kv::SequenceId sequence, int64_t position) {
    return weights_->AddUp(sequence, position);
  }
  // Where it has prompts repeated, that of a step behind the prompt.
  Status SeeRepeated(kv::SequenceId sequence, int64_t position,
                     const PromptWeights::Repeated& repeated) {
    return weights_->SeeRepeated(sequence, position, repeated);
  }

 private:
  // Where things lie in the memory: of the tokens that a head keeps.
  struct Places {
    explicit Places(const EvictorLimits& limits);

    int64_t slots = 0;  // [kv_heads, kept slots]
    int64_t rows = 0;   // a head's kept pages: as they were, then as they are closed, if that
                        // differs
    int64_t bytes = 0;
    int64_t slot_stride = 0;  // of a head, in slots
    kv::CacheFormat plain;    // of a slab with a head's kept pages as they were
    kv::CacheFormat closed;   // the same as they are closed
  };

  Evictor(const EvictorParts& parts, const EvictorLimits& limits, std::unique_ptr<Buffer> memory,
          std::unique_ptr<PromptWeights> weights);

  // Of the heads of a layer that this rank has, by slot, those that it chooses for: of several
  // ranks that have a head the first one.
  std::vector<int> ChosenHere(int layer) const;
  // Their rows of the weights [heads that this rank has, tokens]; `memory` has copies of them where
  // they are not all.
  struct OwnWeights {
    std::vector<float> sum, max, norms;
  };
  kv::ObservedWeights WeightsOf(std::span<const int> slots, OwnWeights* memory) const;
  // What heads have of a prompt before they choose: budgets_.
  Status FindBudgets(kv::SequenceId prompt);
  // Budgets become those that heads were given.
  Status EvictLayer(int layer, kv::SequenceId from, kv::SequenceId to);
  // What the heads of a layer keep that this rank has, by slot, of the first `closed` tokens.
  Result<std::vector<kv::KeptOfHead>> Choose(int layer, kv::SequenceId from, int64_t closed,
                                             std::span<const std::vector<KeyRun>> keys);
  // Tells the other ranks what heads keep that they have, too, and learns what they chose.
  Status TellHolders(int layer, int64_t closed, std::vector<kv::KeptOfHead>* kept);
  // Leaves this rank's part of what a head keeps.
  kv::KeptTokens PartOf(int layer, int slot, std::vector<int32_t> positions) const;
  // Holds what a layer's heads let go of; zeros let go of nothing.
  void Demote(kv::SequenceId to, int layer, std::span<const std::vector<KeyRun>> keys,
              std::vector<kv::KeptOfHead> kept);
  // Of a head of the model.
  int64_t* BudgetOf(int layer, int head) {
    return &budgets_[static_cast<size_t>(layer * limits_.heads.kv_heads + head)];
  }
  Status KeepHead(int layer, int head, kv::SequenceId to, std::span<const KeyRun> keys,
                  kv::KeptTokens tokens);
  // The pages that were gathered, as the store has closed ones.
  kv::ClosedRows Close(int pages);

  // The heads of a layer, or of all, that share a budget.
  kv::SharingHeads HeadsOf(int layer);
  kv::SharingHeads HeadsOfAll();

  const EvictorParts parts_;
  const EvictorLimits limits_;
  const Places places_;
  std::unique_ptr<Buffer> memory_;
  std::unique_ptr<PromptWeights> weights_;
  int64_t length_ = 0;            // of the prompt at hand
  int at_ = 0;                    // its place among those that live
  std::vector<int64_t> budgets_;  // of its heads
  std::vector<int32_t> slots_;    // of the layer at hand, all heads: on their way
  std::optional<HostRankSums> sums_;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_EVICTOR_H_
