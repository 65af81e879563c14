// Board: where the paths of a layer leave what their ranges contribute, as partial states (o, lse)
// of query heads, and where these are merged. Each entry and KV head has its own number of states.
//
// A decode keeps its states apart, in the order in which they are added, and merges them at the end
// of the layer: kernels of many ranges then run together. A prefill merges each range into one
// state as it comes.
#ifndef HEADWAY_ENGINE_STEP_BOARD_H_
#define HEADWAY_ENGINE_STEP_BOARD_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/step/batch.h"
#include "engine/step/dense_rows.h"
#include "engine/step/reads.h"
#include "engine/step/step_context.h"
#include "kernels/kernels.h"
#include "kv/policy/selection.h"

namespace headway {

// Watches what the queries of a step attend to. Such a step leaves nothing to the host's cores.
class AttentionObserver {
 public:
  virtual ~AttentionObserver() = default;
  // Heads of an entry, which are those of a group, have a state of `keys` on the board now.
  virtual void OnRange(int entry, std::span<const kv::HeadRun> heads, const KeyRun& keys) = 0;
  // The states of a layer are merged; lse() of decode rows is that of all keys.
  virtual Status OnLayer(int layer) = 0;

  // Whether a path that lists blocks is to list them for it, and to leave the ranges to others all
  // the same: lists are then there before the layer's ranges are.
  virtual bool WantsLists() const { return false; }
  // The item's lists are enqueued; its blocks are those of `spans`, one behind the other.
  virtual void OnLists(int entry, const SelectItem& item, std::span<const kv::BlockSpan> spans) {
    (void)entry, (void)item, (void)spans;
  }
};

// Whether a prefill's state of a head is complete with a range.
enum class RangeOrder : uint8_t { kMoreFollow, kLast };

class Board {
 public:
  // Bytes that it takes; pure.
  static int64_t Bytes(const ModelShape& shape, const ExecutorLimits& limits,
                       const KernelSizes& kernels);
  // Takes them from `memory`.
  Board(StepContext& context, const Batch& batch, Reads& reads, Memory* memory);

  // --- A layer: BeginLayer; the paths add ranges; Flush; Merge.
  // No head has a state yet.
  void BeginLayer(int layer);
  // Attends with the queries of an entry to `keys`, which hold the pages of all heads of a group:
  // `heads` are those heads. Enqueued by the next Flush. In decode the range is cut at fixed
  // boundaries, each piece with a state of its own.
  void Attend(int entry, std::span<const kv::HeadRun> heads, const KeyRun& keys, RangeOrder order);
  // The same work as items whose states are the next ones of those heads, appended to *items: for
  // paths that run it by themselves, behind a Flush and before anything else of those heads.
  void MakeItems(int entry, std::span<const kv::HeadRun> heads, const KeyRun& keys,
                 RangeOrder order, std::vector<AttentionItem>* items);
  // The next `parts` states of heads of a decode entry that no other path has added to in the
  // layer, for a path that writes them by itself before the Merge.
  struct States {
    float* o = nullptr;  // [query heads, head_dim], part p at p * o_part_stride
    int64_t o_part_stride = 0;
    float* lse = nullptr;  // [query heads]
    int64_t lse_part_stride = 0;
  };
  States TakeStates(int entry, const kv::HeadRun& heads, int parts);
  // For an observer of a single decode entry: `parts` states of all heads that nobody takes, since
  // the path that lists blocks attends to none. What is in them stays until the next call.
  struct SpareStates : States {
    int parts = 0;
  };
  SpareStates StatesOfObserver() const;
  // Where the attention of a decode entry goes in the end, as activations [query_heads, head_dim]:
  // for a path that attends to all keys which the entry sees in the layer and merges their states
  // by itself. Nobody else adds to the entry.
  void* TakeResult(int entry);
  bool ResultTaken(int entry) const { return results_taken_[static_cast<size_t>(entry)]; }
  // The states of heads of all rows of a prefill entry, to which nothing was added in the layer,
  // for a path that writes them by itself, from chosen keys, before anything else of the entry is
  // enqueued. Where the policy wants dense rows, the entry has them in the layer.
  struct RowStates {
    float* o = nullptr;  // [tokens, query heads, head_dim]
    int64_t o_stride = 0;
    float* lse = nullptr;  // [tokens, query heads]
    int64_t lse_stride = 0;
  };
  RowStates TakeRowStates(int entry, const kv::HeadRun& heads);
  bool HasDenseRows(int entry) const { return dense_.Has(entry); }
  // Attends to `keys`, of which the other rows of an entry see chosen ones, with its dense rows.
  // Enqueued by the next Flush, which comes before these rows' next range. What Attend is given
  // they attend to like all others.
  void AttendWithDenseRows(int entry, std::span<const kv::HeadRun> heads, const KeyRun& keys);
  // Adds items of others to those of the next Flush.
  void Add(const AttentionItem& item) { items_.push_back(item); }
  // One more state of an entry's heads, behind all others: [tokens, query_heads, head_dim] and
  // [tokens, query_heads] of the entry, which are there before the layer's Merge runs. Decode only.
  void AddLastState(int entry, std::span<const kv::HeadRun> heads, const float* o,
                    const float* lse);
  // Enqueues the items so far and gives back the slabs that Reads holds for them.
  void Flush() { FlushWithin(window_); }
  // With a window other than the layer's.
  void FlushWithin(int64_t window);
  // What attention needs beside its items.
  AttentionParams Params(int64_t window) const;
  // Merges the states of decode entries into the activations, but where a path has taken these, and
  // corrects rows of prefills by their dense rows. What ranks have of a head in parts becomes
  // summands of its attention.
  Status Merge();
  // The step is given up.
  void Abort();

  // [step_tokens, query_heads, head_dim] and [step_tokens, query_heads]: the states of prefill, and
  // the lse of decode where there is an observer.
  float* o() const { return o_; }
  float* lse() const { return lse_; }

  void set_observer(AttentionObserver* observer) { observer_ = observer; }
  AttentionObserver* observer() const { return observer_; }

 private:
  // Of one entry and KV head.
  struct HeadStates {
    int parts = 0;                  // decode: states so far
    bool started = false;           // prefill: (o, lse) hold a state
    bool elsewhere = false;         // another rank attends for the head
    bool part = false;              // other ranks attend to other parts of the head's tokens
    const float* last_o = nullptr;  // of the entry: AddLastState
    const float* last_lse = nullptr;

    bool operator==(const HeadStates&) const = default;
  };
  HeadStates& StatesOf(int entry, int head) {
    return states_[static_cast<size_t>(entry * context_.shape.kv_heads + head)];
  }
  AttentionItem MakeItem(int entry, const kv::HeadRun& run, const KeyRun& keys, RangeOrder order);
  MergeItem MakeMerge(int entry, int64_t token, const kv::HeadRun& run);
  void* ResultAt(int entry, int64_t token, int64_t query_head) const;
  States StatesFrom(int entry, int64_t part) const;
  float* LseAt(int64_t row, int64_t query_head) const {
    return lse_ + row * lse_stride_ + query_head;
  }
  void JoinTail(int entry);
  void ScaleParts();

  StepContext& context_;
  const Batch& batch_;
  Reads& reads_;
  const int64_t max_parts_;
  float* o_;  // act.o where that is f32
  // [step_tokens, query_heads], or of all ranks that share heads: [step_tokens, ranks,
  // query_heads], and this is where the rank's own begin.
  float* lse_;
  const int64_t lse_stride_;
  float* part_o_;    // [entries, max_parts, decode_tokens, query_heads, head_dim]
  float* part_lse_;  // [entries, max_parts, decode_tokens, query_heads]
  DenseRows dense_;
  AttentionObserver* observer_ = nullptr;

  int layer_ = 0;
  int64_t window_ = 0;
  bool scales_parts_ = false;         // in the layer
  std::vector<HeadStates> states_;    // [entries, kv_heads]
  std::vector<bool> results_taken_;   // [entries]
  std::vector<AttentionItem> items_;  // of the next Flush
  std::vector<size_t> tails_;         // [entries]: behind the last item of its open page; 0: none
  std::vector<MergeItem> merges_;
  std::vector<ScaleHeldItem> scales_;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_BOARD_H_
