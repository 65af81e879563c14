// Demoted: the tokens that heads let go of when prompts were read, where they are not dropped
// (kv/policy/demotion.h). Keys and values of each head lie one behind the other in host memory,
// whole pages of them, and the summaries of their blocks on the device, with what steps list of
// them. It is kept beside the sequences of the store that has what heads keep.
#ifndef HEADWAY_ENGINE_STEP_DEMOTED_H_
#define HEADWAY_ENGINE_STEP_DEMOTED_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/budget.h"
#include "device/device.h"
#include "engine/step/batch.h"
#include "headway/status.h"
#include "kernels/kernels.h"
#include "kv/policy/demotion.h"
#include "kv/policy/eviction.h"
#include "kv/store/store.h"

namespace headway {

// What it is made for.
struct DemotedLimits {
  ModelShape shape;
  PageFormat page;  // of closed pages
  kv::DemotionPolicy policy;
  int64_t sequences = 0;
  int64_t length = 0;  // of the longest prompt
  int64_t pages = 0;   // that all heads let go of it, at most: kv::LetGoPages

  bool encoded() const { return page.encoding != Encoding::kNone; }
  // Of pages as they are computed.
  PageFormat plain() const { return {page.dtype, page.page_slots, page.head_dim}; }
};

// What it works with; all outlives it.
struct DemotedParts {
  Kernels& kernels;
  Device& device;
  Stream& compute;
  Budget& budget;          // of the device beside the cache
  Budget& summary_budget;  // of the cache on the device
  Budget& host_budget;     // of the cache in host memory
};

class Demoted {
 public:
  // Bytes that Create takes from each of these budgets; pure.
  static int64_t DeviceBytes(const DemotedLimits& limits);
  static int64_t SummaryBytes(const DemotedLimits& limits);
  static int64_t HostBytes(const DemotedLimits& limits);
  static Result<std::unique_ptr<Demoted>> Create(const DemotedParts& parts,
                                                 const DemotedLimits& limits);

  // --- Between steps
  // A sequence of which nothing is held yet.
  void Begin(kv::SequenceId sequence);
  // Its heads have let go of what they do not keep of the first `closed` tokens of a prompt, whose
  // keys these are [kv_heads]. What is enqueued has run before the next call; layers ascend.
  void Hold(kv::SequenceId sequence, int layer, std::span<const std::vector<KeyRun>> keys,
            std::span<const kv::KeptOfHead> kept, int64_t closed);
  void Forget(kv::SequenceId sequence);
  // Of host memory, that hold tokens.
  int64_t bytes() const;
  // What steps have read so far.
  struct Reads {
    int64_t steps = 0;    // of sequences of which something is held, that decode
    int64_t choices = 0;  // of these, those that chose
    int64_t bytes = 0;
  };
  const Reads& reads() const { return reads_; }

  // --- In a step
  struct Held {
    int place = 0;
    kv::SequenceId sequence = -1;  // -1: of none
    // The position of the decode that chose last, behind which there were others alone; -1: none.
    int64_t made = -1;
    struct Head {
      int64_t blocks = 0;
      int64_t tokens_at = 0;     // in the sequence's host memory
      int64_t summaries_at = 0;  // in that of its summaries
    };
    std::vector<Head> heads;                     // [layers, kv_heads], as far as layers have come
    int64_t token_bytes = 0, summary_bytes = 0;  // of all of these
  };
  // What is held of a sequence; null: nothing is.
  Held* Find(kv::SequenceId sequence);
  // Whether a decode at a position chooses.
  bool Chooses(const Held& held, int64_t position) const {
    return held.made < 0 || position <= held.made || position >= held.made + limits_.policy.refresh;
  }
  int64_t BlocksOf(const Held& held, int layer, int head) const {
    return HeadOf(held, layer, head).blocks;
  }
  // Where a head's blocks lie: a segment of them all.
  SegmentPlace PlaceOf(const Held& held, int layer, int head) const;
  // How they lie where neighbouring heads have equally many; segments are not set.
  BlockedKeys KeysOf(int heads, int64_t blocks) const;
  // A step of these rows, which chose or did not, is done.
  void Stepped(const BatchEntry& rows, bool chose, Held* held);
  // What heads list of them in decode, [kv_heads, capacity], and how many [kv_heads]: device
  // memory, which holds the lists until others are made.
  int64_t capacity() const { return limits_.policy.blocks(); }
  int32_t* ListsOf(const Held& held, int layer) const;
  int32_t* CountsOf(const Held& held, int layer) const;

  const DemotedLimits& limits() const { return limits_; }

 private:
  // Where things lie in the device's memory.
  struct Places {
    explicit Places(const DemotedLimits& limits);

    int64_t lists = 0;   // [sequences, layers, kv_heads, capacity]
    int64_t counts = 0;  // [sequences, layers, kv_heads]
    int64_t slots = 0;   // [kv_heads, length]: on their way to be gathered
    int64_t rows = 0;    // K and V of pages that are encoded, before they are
    int64_t bytes = 0;
  };

  Demoted(const DemotedParts& parts, const DemotedLimits& limits, std::unique_ptr<Buffer> memory,
          std::unique_ptr<Buffer> summaries, std::unique_ptr<Buffer> tokens);

  const Held::Head& HeadOf(const Held& held, int layer, int head) const {
    return held.heads[static_cast<size_t>(layer * limits_.shape.kv_heads + head)];
  }
  int64_t TableOf(const Held& held, int layer) const {
    return (int64_t{held.place} * limits_.shape.layers + layer) * limits_.shape.kv_heads;
  }
  // The pages of a head, all of them.
  PageRun PagesOf(const Held& held, int layer, int head) const;
  int32_t* slots() const { return reinterpret_cast<int32_t*>(memory_->data() + places_.slots); }
  SummarizeItem SummaryOf(const Held& held, int layer, int head, const PageRun& keys,
                          int64_t first) const;
  void Encode(const Held& held, int layer, int head, std::span<const KeyRun> keys,
              std::span<const int32_t> let_go, int64_t first);
  void RunGathers();

  const DemotedParts parts_;
  const DemotedLimits limits_;
  const Places places_;
  std::unique_ptr<Buffer> memory_, summaries_, tokens_;
  std::vector<Held> held_;  // [sequences]
  // Of the layer at hand:
  std::vector<int32_t> slots_;  // on their way to the device
  std::vector<GatherSlotsItem> gathers_;
  std::vector<SummarizeItem> summaries_of_;
  Reads reads_;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_DEMOTED_H_
