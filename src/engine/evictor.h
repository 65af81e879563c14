// Evictor: when a prompt has been read, lets each KV head keep the tokens that an EvictionPolicy
// chooses, in a cache of their own; the prompt's whole cache may then go.
#ifndef HEADWAY_ENGINE_EVICTOR_H_
#define HEADWAY_ENGINE_EVICTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/budget.h"
#include "device/device.h"
#include "engine/executor.h"
#include "headway/status.h"
#include "kernels/kernels.h"
#include "kv/pages/format.h"
#include "kv/policy/eviction.h"
#include "kv/store/store.h"
#include "model/config.h"

namespace headway {

// What an evictor is made for.
struct EvictorLimits {
  ModelShape shape;
  PageFormat page;                      // of prompts
  Encoding encoding = Encoding::kNone;  // of closed pages of what is kept
  kv::EvictionPolicy policy;
  int64_t length = 0;                    // of the longest prompt
  DType activation_dtype = DType::kF32;  // of queries
  bool host_reads_device = true;
};

// What it works with; all outlives it.
struct EvictorParts {
  Kernels& kernels;
  Device& device;
  Stream& compute;
  const Executor& executor;  // that reads prompts
  kv::Store& from;           // where their tokens are
  kv::Store& to;             // where those that are kept go
  Budget& budget;            // of the device's memory
  Budget& host_budget;       // of memory that results come to, where the host does not read that
};

class Evictor {
 public:
  // Bytes that Create takes from the device's budget; pure.
  static int64_t Bytes(const EvictorLimits& limits);
  // And from the host's.
  static int64_t HostBytes(const EvictorLimits& limits);
  static Result<std::unique_ptr<Evictor>> Create(const EvictorParts& parts,
                                                 const EvictorLimits& limits);

  // A sequence of the other store with what is kept of `prompt`, which the executor read last and
  // which stays as it is. After an error there is no such sequence.
  Result<kv::SequenceId> Evict(kv::SequenceId prompt);

 private:
  // Where things lie in the memory. What is observed, and the tokens that a head keeps, are there
  // one after the other.
  struct Places {
    explicit Places(const EvictorLimits& limits);

    int64_t sums = 0;     // [kv_heads, length]
    int64_t maxima = 0;   // the same
    int64_t row_lse = 0;  // [rows * group]
    int64_t slots = 0;    // [kv_heads, kept slots]
    int64_t scratch = 0;  // logits [rows * group, length], or a head's kept pages: as they were,
                          // then as they are closed, if that differs
    int64_t bytes = 0;
    int64_t slot_stride = 0;   // of a head, in slots
    kv::CacheFormat plain;     // of a slab with a head's kept pages as they were
    kv::CacheFormat closed;    // the same as they are closed
    int64_t result_bytes = 0;  // of sums and maxima
  };

  Evictor(const EvictorParts& parts, const EvictorLimits& limits, std::unique_ptr<Buffer> memory,
          std::unique_ptr<Buffer> host_memory);

  Status EvictLayer(int layer, kv::SequenceId from, kv::SequenceId to, int64_t budget);
  // Weights of the layer's observed queries, on their way to the host.
  void Observe(int layer, std::span<const std::vector<KeyRun>> keys);
  Status KeepHead(int layer, int head, kv::SequenceId to, std::span<const KeyRun> keys,
                  const std::vector<int32_t>& positions);
  // The pages that were gathered, as the store has closed ones.
  kv::ClosedRows Close(int pages);
  kv::ObservedWeights Observed() const;

  const EvictorParts parts_;
  const EvictorLimits limits_;
  const Places places_;
  std::unique_ptr<Buffer> memory_;
  std::unique_ptr<Buffer> host_memory_;  // null where the host reads the device's
  int64_t length_ = 0;                   // of the prompt at hand
  int64_t queries_ = 0;                  // observed of each KV head
  std::vector<int32_t> slots_;           // of the layer at hand, all heads: on their way
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_EVICTOR_H_
