// PromptWeights: how much attention the tokens of a prompt had, or are to expect, in each layer,
// and how large their values are, as an EvictionPolicy asks.
#ifndef HEADWAY_ENGINE_PROMPT_WEIGHTS_H_
#define HEADWAY_ENGINE_PROMPT_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/evictor_parts.h"
#include "headway/status.h"
#include "kv/policy/eviction.h"

namespace headway {

class PromptWeights {
 public:
  // Bytes that Create takes from the device's budget; pure.
  static int64_t Bytes(const EvictorLimits& limits);
  // And from that of host memory.
  static int64_t HostBytes(const EvictorLimits& limits);
  static Result<std::unique_ptr<PromptWeights>> Create(const EvictorParts& parts,
                                                       const EvictorLimits& limits);

  // Whether the executor saw the queries of a prompt of this length: not those of a synthetic one.
  bool Saw(kv::SequenceId prompt, int64_t length) const;
  // Adds up what the queries of the step that the executor made last, whose first position this
  // was, give to the tokens so far; where the policy asks for that.
  Status AddUp(kv::SequenceId sequence, int64_t position);
  // Where the policy has prompts repeated: of the step that the executor made last, from this
  // position on, the largest weights that its queries behind the prompt give to the tokens of a
  // chunk, among these and what is behind the prompt.
  struct Repeated {
    int64_t prompt = 0;          // tokens
    int64_t begin = 0, end = 0;  // the chunk
  };
  Status SeeRepeated(kv::SequenceId sequence, int64_t position, const Repeated& repeated);
  // Weighs the prompt's tokens in a layer, whose keys and values are in these runs [kv_heads].
  Status Weigh(int layer, int64_t length, std::span<const std::vector<KeyRun>> keys);
  // What came of it, once the compute stream was waited for. Until then the next.
  kv::ObservedWeights weights() const;

 private:
  // Where things lie in the memory. What the host reads comes first.
  struct Places {
    explicit Places(const EvictorLimits& limits);

    int64_t sums = 0;     // [kv_heads, length]
    int64_t maxima = 0;   // the same, as norms, or nothing
    int64_t norms = 0;    //
    int64_t moments = 0;  // means, then covariances, of rotated queries
    int64_t host_bytes = 0;
    int64_t masses = 0;  // [layers, kv_heads, length], or nothing: what was added up, or is largest
    int64_t row_lse = 0;  // [rows * group]
    int64_t logits = 0;   // [rows * group, length]
    int64_t bytes = 0;
  };

  PromptWeights(const EvictorParts& parts, const EvictorLimits& limits,
                std::unique_ptr<Buffer> memory, std::unique_ptr<Buffer> host_memory);

  float* Floats(int64_t place) const { return reinterpret_cast<float*>(memory_->data() + place); }
  // Where the host reads and writes what lies there.
  float* OnHost(int64_t place) const;
  // Of those of a layer, that are not zeros.
  int HeadsIn(int layer) const { return limits_.heads.In(layer).size(); }
  // What was seen of a head before it is weighed.
  float* MassesOf(int layer, int head) const {
    const int64_t at = int64_t{layer} * limits_.shape.kv_heads + head;
    return Floats(places_.masses) + at * limits_.all();
  }
  // Adds what queries [begin, end) of a layer give to a head's keys.
  void AddUpHead(int layer, int head, std::span<const KeyRun> keys, int64_t begin, int64_t end);
  // The same of the largest weights, while a chunk is repeated.
  void RaiseHead(int layer, int head, std::span<const KeyRun> keys, int64_t begin, int64_t end,
                 const Repeated& repeated);
  // Logits of the observed queries [begin, end) of one KV head's group, a row each; how many rows.
  int64_t LogitsOf(int layer, int head, std::span<const KeyRun> keys, int64_t begin, int64_t end);
  void ExpectedLogits(int head, std::span<const KeyRun> keys);
  // How queries to come are distributed, from how those of the prompt were.
  Status Expect(int layer);
  void Norms(int layer, std::span<const std::vector<KeyRun>> keys);

  const EvictorParts parts_;
  const EvictorLimits limits_;
  const Places places_;
  std::unique_ptr<Buffer> memory_;
  std::unique_ptr<Buffer> host_memory_;  // null where the host reads the device's
  int64_t length_ = 0;                   // of the prompt at hand
  int heads_ = 0;                        // of the layer that was weighed last
  kv::SequenceId added_ = -1;            // whose first tokens were added up, or repeated
  int64_t added_end_ = 0;                // so many
  int64_t queries_ = 0;                  // weighed of each KV head
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_PROMPT_WEIGHTS_H_
