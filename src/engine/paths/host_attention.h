// HostAttention: the path `host` (HGCA, §3.3, without its sparsity). Cores of the host attend to
// pages where they lie in its memory while other pages stream to the device. Queries come down and
// one partial state a query head goes up, through memory that the device's kernels read in place.
//
// Keys are cut at boundaries that depend on lengths only, each piece is a task that a core takes
// when it is free, and the pieces' states are merged in order: the number of threads changes no
// bit. Long pieces are handed out first and short ones behind them, so that cores end together.
//
// With a bound of what heads leave out, a work has a second part: heads for which it fails read all
// of their keys, in place of what they had read.
#ifndef HEADWAY_ENGINE_PATHS_HOST_ATTENTION_H_
#define HEADWAY_ENGINE_PATHS_HOST_ATTENTION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"
#include "engine/paths/unread_mass.h"
#include "headway/status.h"
#include "kernels/kernels.h"
#include "kv/pages/format.h"

namespace headway {

struct HostAttentionLimits {
  ModelShape shape;
  PageFormat format;
  int64_t entries = 0;             // of a step
  int64_t tokens = 1;              // of an entry, at most
  int64_t length = 0;              // of any sequence
  int64_t segment_tokens = 0;      // most keys of a range
  DType activation = DType::kF32;  // of the device's queries
  MassBound bound = {};            // of AddAll; without an epsilon there is none
  int64_t near = 0;                // most keys of UnreadKeys::near
};

class HostAttention {
 public:
  // `kernels` compute on the host and are not prepared yet; their activations are f32. `device`
  // gives memory that it can read, of which `budget` counts the bytes; all outlive this.
  static Result<std::unique_ptr<HostAttention>> Create(const HostAttentionLimits& limits,
                                                       std::unique_ptr<Kernels> kernels,
                                                       Device& device, Budget& budget);

  // In memory of the host that copies and kernels of the device reach:
  // room for the queries of an entry and those behind it, of each HostAttentionLimits::tokens times
  // [query_heads, head_dim] activations;
  std::byte* Queries(int entry) { return q_ + RowOf(entry) * QueryBytes(); }
  // what comes of them, [tokens, query_heads, head_dim] and [tokens, query_heads], until the next
  // work runs.
  const float* o(int entry) const { return o_ + RowOf(entry) * Width(); }
  const float* lse(int entry) const { return lse_ + RowOf(entry) * limits_.shape.query_heads; }
  int64_t tokens() const { return limits_.tokens; }

  // --- The work of a layer, put together before its queries are there.
  void Begin();
  // KV heads `run` of an entry, whose queries begin at a position, against ranges of keys (of all
  // heads of their group) in the order of positions, perhaps none. Every head whose state is read
  // comes once.
  struct Queried {
    int entry = 0;
    int64_t position = 0;
    int64_t tokens = 1;
  };
  void Add(const Queried& queried, const kv::HeadRun& run, std::span<const KeyRun> ranges);
  // A KV head that was added as one, of an entry of one token: where the bound of what it leaves
  // out fails, as the sample of it says, it attends to `all` of its keys instead. `queried` is as
  // where these are.
  void AddAll(const Queried& queried, const kv::HeadRun& head, std::span<const KeyRun> all,
              UnreadKeys unread);
  // What it moves and computes but for AddAll, and what does it, once, on a thread of its own.
  WorkCost Cost() const;
  std::function<Status()> Work(int64_t window);
  // `stream` was given all that it does beside the last work, and waits for it next.
  void StreamWaits(Stream& stream);

  // Of AddAll, in all works that have ended: heads, and those that read all of their keys.
  struct Bounded {
    int64_t heads = 0;
    int64_t read_all = 0;
  };
  Bounded bounded() const { return {bounded_heads_, read_all_}; }

  // --- How the works of a step followed each other.
  void ForgetPauses();
  // Of the works since then, all of which have ended: seconds between the end of one and the begin
  // of the next, the median where the stream waited for nothing but the work times the number of
  // works. < 0: it never did.
  double PauseSeconds() const;

 private:
  HostAttention(const HostAttentionLimits& limits, std::unique_ptr<Kernels> kernels);

  // Pieces, and merges of their states.
  struct Tasks {
    std::vector<AttentionItem> items;
    std::vector<MergeItem> merges;
  };
  // A head of AddAll.
  struct BoundedHead {
    int64_t row = 0;
    int head = 0;
    int64_t position = 0;
    UnreadKeys unread;
    Tasks all;
  };

  int64_t RowOf(int entry) const { return entry * limits_.tokens; }
  void AddTo(const Queried& queried, const kv::HeadRun& run, std::span<const KeyRun> ranges,
             Tasks* tasks);
  void AddMerges(const Queried& queried, const kv::HeadRun& run, int64_t parts, Tasks* tasks);
  void Run(const AttentionParams& params, std::span<const AttentionItem> items,
           std::span<const MergeItem> merges);
  // On the thread of a work, behind what its heads read.
  void ReadMore(const AttentionParams& params, std::span<const BoundedHead> heads);
  int64_t QueryBytes() const;  // of a token
  int64_t Width() const { return int64_t{limits_.shape.query_heads} * limits_.shape.head_dim; }
  int64_t MaxParts() const;
  std::vector<ConvertItem> QueriesToLoad() const;
  // The work of this number, on the thread that did it.
  void EndWork(int64_t number, int64_t start_ns);

  const HostAttentionLimits limits_;
  std::unique_ptr<Device> cpu_;
  std::unique_ptr<Stream> at_once_;  // runs what it is given on the calling thread
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Buffer> shared_;  // q, o and lse
  std::unique_ptr<Buffer> own_;
  std::byte* q_ = nullptr;
  float* o_ = nullptr;
  float* lse_ = nullptr;
  float* q_f32_ = nullptr;     // [entries, tokens, query_heads, head_dim]
  float* part_o_ = nullptr;    // [entries, max_parts, tokens, query_heads, head_dim]
  float* part_lse_ = nullptr;  // [entries, max_parts, tokens, query_heads]

  // Of the layer that is put together.
  Tasks tasks_;
  std::vector<BoundedHead> bounds_;

  std::unique_ptr<UnreadMass> unread_;  // null without a bound
  std::atomic<int64_t> bounded_heads_ = 0, read_all_ = 0;

  int64_t works_ = 0;                              // made so far
  std::vector<std::unique_ptr<Event>> stream_at_;  // of work n: number n modulo as many
  std::atomic<int64_t> stream_told_ = 0;           // works whose event was recorded
  struct Span {
    int64_t start_ns, end_ns;
    bool awaited;  // the stream waited for it at its end
  };
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
  int64_t forgotten_ = 0;  // works up to this one are not told of
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_PATHS_HOST_ATTENTION_H_
