// One step, followed lane by lane.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/bytes.h"
#include "plan/attention_cost.h"
#include "plan/cost.h"
#include "plan/selection_cost.h"

namespace headway::plan {
namespace {

constexpr int64_t kFewTokens = 8;    // of a step that decodes: kernels are fused
constexpr int64_t kMostPieces = 64;  // of a layer that are followed one by one

double BytesOf(const ModelShape& shape) { return static_cast<double>(DTypeBytes(shape.dtype)); }

// A layer's keys, by what happens to them: slabs of a sequence and a group of heads each.
struct Pieces {
  int64_t count = 0;  // that are followed
  double each = 1.0;  // real pieces that one followed stands for
  double keys = 0.0;  // of a real piece
  int heads = 0;
};

// Of the `keys` closed ones of all sequences, the longest of which has `longest`, the share that
// takes one path: whole slabs, but for the last one.
Pieces PiecesOf(const ModelShape& shape, const Execution& execution, size_t sequences, double keys,
                double longest, double share) {
  Pieces pieces;
  if (keys * share <= 0.0) return pieces;
  pieces.heads = std::min(execution.group_heads, shape.kv_heads);
  const auto groups = static_cast<double>(CeilDiv(shape.kv_heads, pieces.heads));
  const double segments = std::ceil(longest / static_cast<double>(execution.segment_tokens) - 1e-9);
  const double slabs = groups * std::max(segments, 1.0) * static_cast<double>(sequences);
  const double real = std::max(std::ceil(slabs * share - 1e-9), 1.0);
  pieces.count = static_cast<int64_t>(std::min(real, static_cast<double>(kMostPieces)));
  pieces.each = real / static_cast<double>(pieces.count);
  pieces.keys = keys * share * groups / real;
  return pieces;
}

// The lanes of one step, followed.
class Simulation {
 public:
  Simulation(const MachineProfile& machine, const Subject& subject, const Execution& execution,
             std::span<const SequenceStep> entries)
      : machine_(machine), subject_(subject), shape_(subject.shape), run_(execution) {
    entries_ = entries;
    double prefix = 0.0;
    for (const SequenceStep& entry : entries) {
      prefix += static_cast<double>(entry.prefix);
      tokens_ += static_cast<double>(entry.tokens + entry.drafts);
      prefill_ = prefill_ || entry.tokens > 1;
    }
    const auto full = static_cast<double>(run_.full_length);
    const CacheSplit split =
        SplitAt(run_.split, full, prefix / static_cast<double>(entries.size()));
    run_.split = split;
    stream_ = split.stream + (prefill_ || !machine.own_memory ? split.host : 0.0);
    host_ = prefill_ || !machine.own_memory ? 0.0 : split.host;
    // What a step adds goes where the last tokens do.
    const double behind = prefix + tokens_;
    const double before = prefix * split.resident;
    const double after =
        behind *
        SplitAt(execution.split, full, behind / static_cast<double>(entries.size())).resident;
    down_bytes_ = prefill_ ? std::max(tokens_ - std::max(after - before, 0.0), 0.0) : 0.0;
    // What the bus gives while something else needs the same wires or the same memory.
    const double bus = machine.host_to_device.Peak();
    if (host_ > 0.0)
      bus_slower_ = std::max(1.0, bus / machine.host_to_device_reading);
    else if (down_bytes_ > 0.0 || run_.in_stretch)
      bus_slower_ = std::max(1.0, bus / machine.both_directions);
    buffers_.assign(static_cast<size_t>(std::max(run_.staging_slabs, 1)), 0.0);
    bounces_ = buffers_;
    weights_ = WeightsOf(shape_);
  }

  StepTime Run(LogitsWanted logits) {
    for (int layer = 0; layer < shape_.layers; ++layer) Layer(layer);
    if (logits == LogitsWanted::kYes) {
      const double rows = prefill_ ? static_cast<double>(entries_.size()) : tokens_;
      Device(&time_.products, ProductSeconds(machine_, shape_, rows, shape_.d_model, shape_.vocab));
      Device(&time_.other, GatherSeconds(machine_, subject_.group, 4.0 * rows * shape_.vocab) +
                               machine_.sync_seconds + machine_.step_seconds +
                               2.0 * machine_.launch_seconds);
    }
    const double keys = down_bytes_ * HeadBytes(subject_) * shape_.kv_heads * subject_.slab_share;
    const double down = machine_.device_to_host.Seconds(keys + HiddenBytes());
    Busy(CostLane::kDeviceToHost) = down * shape_.layers;
    // Closed pages of the last layer go down behind the step, under the next one.
    time_.seconds = std::max(gpu_, Busy(CostLane::kDeviceToHost));
    if (prefill_ && run_.split.disk > 0.0 && machine_.disk_write > 0.0) {
      const double written = tokens_ * run_.split.disk * shape_.layers * shape_.kv_heads *
                             HeadBytes(subject_) * subject_.slab_share;
      Busy(CostLane::kDisk) += written / machine_.disk_write;
      time_.seconds = std::max(time_.seconds, Busy(CostLane::kDisk));
    }
    return time_;
  }

 private:
  double& Busy(CostLane lane) { return time_.busy[static_cast<size_t>(lane)]; }

  void Device(double* what, double seconds) {
    gpu_ += seconds;
    *what += seconds;
    Busy(CostLane::kDevice) += seconds;
  }

  // A copy up that may begin at `from`; when it has ended.
  double CopyUp(double from, double bytes, double pieces) {
    if (bytes <= 0.0) return from;
    const double seconds = pieces * machine_.host_to_device.Seconds(bytes) * bus_slower_;
    bus_ = std::max(bus_, from) + seconds;
    Busy(CostLane::kHostToDevice) += seconds;
    return bus_;
  }

  // Closed keys that the queries of a layer see, of all sequences and of the longest.
  struct Keys {
    double all = 0.0, longest = 0.0;
  };
  const Keys& KeysOf(int layer) {
    const int64_t window = subject_.WindowOf(layer);
    const auto [at, unknown] = keys_.try_emplace(window);
    Keys& keys = at->second;
    if (!unknown) return keys;
    for (const SequenceStep& entry : entries_) {
      const int64_t seen = window > 0 ? std::min(entry.prefix, window) : entry.prefix;
      keys.all += static_cast<double>(seen) * subject_.slab_share;
      keys.longest = std::max(keys.longest, static_cast<double>(seen));
    }
    return keys;
  }

  // Tokens that see a key, on average.
  double Queries() const { return tokens_ / static_cast<double>(entries_.size()); }

  // Of the residual stream of a part of a stretch, each way.
  double HiddenBytes() const {
    return run_.in_stretch ? tokens_ * shape_.d_model * double{sizeof(float)} : 0.0;
  }

  void Layer(int layer) {
    const double streamed = run_.weights_sent();
    gpu_ = std::max(gpu_, CopyUp(0.0, HiddenBytes(), 1.0));
    // Two buffers of weights: a layer's come while the one before last is done with its own.
    const double buffer = layer >= 2 ? layer_done_[static_cast<size_t>(layer - 2)] : 0.0;
    const double free = std::max(buffer, ReadWeights(layer));
    const double kv_ready = CopyUp(free, streamed * weights_.kv, 1.0);
    double qo_ready = kv_ready, mlp_ready = kv_ready;
    const auto [keys, longest] = KeysOf(layer);
    double x_ready = 0.0;
    const double recomputed = keys * run_.split.recompute;
    if (recomputed > 0.0) {
      // Slabs of a gather are copied as if they were one.
      const double rows = GatherRows(recomputed);
      x_ready = CopyUp(0.0, rows * shape_.d_model * BytesOf(shape_), recomputed / rows);
    }
    if (streamed > 0.0) {
      qo_ready = CopyUp(free, streamed * weights_.qo, 1.0);
      mlp_ready = CopyUp(free, streamed * weights_.mlp, 1.0);
    }
    weights_copied_.push_back(mlp_ready);
    gpu_ = std::max(gpu_, std::max(kv_ready, qo_ready));
    const double width = shape_.query_heads + 2.0 * shape_.kv_heads;
    Device(&time_.products,
           ProductSeconds(machine_, shape_, tokens_, shape_.d_model, width * shape_.head_dim));
    Elementwise();
    const double chosen = ChosenKeys(layer, keys);
    const double host_done = chosen > 0.0 ? 0.0 : HostShare(keys);
    Recompute(recomputed, x_ready);
    if (chosen > 0.0) {
      const bool dense_rows = prefill_ && subject_.selection.dense_every > 0.0;
      const bool whole = prefill_ || subject_.selection.page_keys <= 0.0;
      if (whole && !dense_rows) DiskSlabs(keys, longest);
      Select(keys, chosen);
      if (dense_rows) {
        ClosedKeys(keys, longest, std::ceil(Queries() / subject_.selection.dense_every));
      }
      if (prefill_) Tail(Queries(), shape_.kv_heads, 1.0, keys);
    } else {
      Attention(keys, longest);
    }
    if (host_done > 0.0) {
      // The merge reads the host's states over a busy bus, and cores do not end together.
      gpu_ = std::max(gpu_, host_done);
      Device(&time_.other, 90.0 * machine_.launch_seconds);
    }
    Device(&time_.products, ProductSeconds(machine_, shape_, tokens_,
                                           shape_.query_heads * shape_.head_dim, shape_.d_model));
    gpu_ = std::max(gpu_, mlp_ready);
    Device(&time_.products,
           ProductSeconds(machine_, shape_, tokens_, shape_.d_model,
                          (shape_.gated_mlp ? 2.0 : 1.0) * shape_.d_ff) +
               ProductSeconds(machine_, shape_, tokens_, shape_.d_ff, shape_.d_model));
    layer_done_.push_back(gpu_);
  }

  // When a layer's weights on disk are in their bounce buffer, of which there are two.
  double ReadWeights(int layer) {
    if (run_.weights_on_disk <= 0.0 || machine_.disk_read <= 0.0) return 0.0;
    const double free = layer >= 2 ? weights_copied_[static_cast<size_t>(layer - 2)] : 0.0;
    const double seconds =
        run_.weights_of_stretch * run_.weights_on_disk * weights_.total() / machine_.disk_read;
    disk_ = std::max(disk_, free) + seconds;
    Busy(CostLane::kDisk) += seconds;
    return disk_;
  }

  // Norms, rotation and the store into pages, SwiGLU, the residual stream in f32. In decode they
  // are part of the products but for the rotation.
  void Elementwise() {
    Device(&time_.other, LayerSumSeconds(machine_, subject_, tokens_));
    if (tokens_ <= static_cast<double>(kFewTokens)) {
      // With more than one row norms are kernels of their own.
      Device(&time_.other, (tokens_ > 1.0 ? 3.0 : 1.0) * machine_.launch_seconds);
      return;
    }
    const double a = BytesOf(shape_);
    const double width = (shape_.query_heads + 2.0 * shape_.kv_heads) * shape_.head_dim;
    const double bytes = shape_.d_model * (24.0 + 2.0 * a) +
                         (shape_.gated_mlp ? 3.0 : 0.0) * a * shape_.d_ff + 2.0 * a * width;
    // Norms, rotation, SwiGLU, an upload, merged states, and what products of some rows add up:
    // some 19 µs of a layer of 32 sequences on an H100, whose small kernels take 2.
    const double launches = prefill_ ? 5.0 : 10.0;
    Device(&time_.other,
           tokens_ * bytes / machine_.device_read + launches * machine_.launch_seconds);
  }

  // The CPU's part of a layer: q goes down, the state comes up. When it is there; 0: no part.
  double HostShare(double keys) {
    if (host_ <= 0.0 || keys <= 0.0) return 0.0;
    const RangeWork work =
        WorkOf(RangePath::kHost, subject_, shape_.kv_heads, keys * host_, Queries());
    const bool copying = stream_ + run_.split.disk + run_.split.recompute > 0.0;
    const Curve& read = copying ? machine_.host_read_copying : machine_.host_read;
    const double bytes =
        BytesInTime(subject_, work.host_bytes, shape_.kv_heads * keys * host_, AttendsOn::kHost);
    const double seconds =
        bytes / (read.Peak() * machine_.host_attention * VerifyingHostRate(Queries()));
    cpu_ = std::max(cpu_, gpu_ + machine_.sync_seconds) + seconds;
    Busy(CostLane::kHost) += seconds;
    return cpu_;
  }

  // Of `keys` recomputed ones, those of one product.
  double GatherRows(double keys) const {
    return run_.gather_tokens > 0 ? std::min(keys, static_cast<double>(run_.gather_tokens)) : keys;
  }

  void Recompute(double keys, double x_ready) {
    if (keys <= 0.0) return;
    gpu_ = std::max(gpu_, x_ready);
    const double out = 2.0 * shape_.kv_heads * shape_.head_dim;
    const double rows = GatherRows(keys);
    Device(&time_.products,
           keys / rows * ProductSeconds(machine_, shape_, rows, shape_.d_model, out));
    // A gather is projected, stored into pages and attended to: kernels that wait for each other.
    Device(&time_.other, 2.0 * keys * out * BytesOf(shape_) / machine_.device_read +
                             keys / rows * 30.0 * machine_.launch_seconds);
  }

  // The keys that the queries of a layer choose of `keys`, of all sequences; 0: they read all.
  double ChosenKeys(int layer, double keys) const {
    const double of_each = subject_.selection.keys;
    const bool exact = prefill_ && subject_.selection.prompts == KeySelection::Prompts::kExact;
    const bool whole =
        std::all_of(entries_.begin(), entries_.end(), [&](const SequenceStep& entry) {
          return entry.prefix + entry.tokens <= subject_.selection.from;
        });
    if (!ChoosesIn(subject_, layer) || exact || whole) return 0.0;
    const double chosen = of_each * static_cast<double>(entries_.size());
    return chosen < keys ? chosen : 0.0;
  }

  KeysAway Away(double keys, double chosen) const {
    if (!machine_.own_memory) return {};
    return ChosenAway(subject_.selection, run_, {keys, chosen, Sequences()});
  }
  double Sequences() const { return static_cast<double>(entries_.size()); }

  // Reads the pages that lists of `chosen` keys have on disk; the host looks for each block's,
  // which took it 85 us for 832 of them.
  void ReadListedPages(double keys, double chosen, const KeysAway& listed) {
    if (listed.always + listed.chosen <= 0.0 || machine_.disk_read <= 0.0) return;
    constexpr double kABlock = 1e-7;
    const double blocks = shape_.kv_heads * chosen / subject_.selection.block_keys;
    const double seconds = ListedPageSeconds(machine_, subject_, run_, {keys, listed});
    disk_ = std::max(disk_, gpu_ + machine_.sync_seconds) + blocks * kABlock + seconds;
    Busy(CostLane::kDisk) += seconds;
    gpu_ = disk_;
  }

  // Slabs on disk that all queries of a layer read whole, and exactly.
  void DiskSlabs(double keys, double longest) {
    Stream(keys, longest, 0.0, [&, n = Queries()](int heads, double each, double times) {
      Device(&time_.attention, times * AttentionSeconds(machine_, subject_, heads, each, n, n));
    });
  }

  // Blocks are scored and listed; listed ones are read in place, there and over the bus at once.
  void Select(double keys, double chosen) {
    if (prefill_) return SelectInPrefill(keys, chosen);
    const KeysAway of_chosen = Away(keys, chosen);
    const double far = of_chosen.always + of_chosen.chosen;
    const double sequences = Sequences();
    const KeySelection& selection = subject_.selection;
    const KeysAway of_disk = ChosenOnDisk(selection, run_, {keys, chosen, sequences});
    const double on_disk = of_disk.always + of_disk.chosen;
    const double away =  // seconds
        shape_.kv_heads * HeadBytes(subject_) / InPlaceRate(machine_) *
        ((machine_.own_memory ? on_disk : 0.0) +
         std::max(far - on_disk, 0.0) * (1.0 - FoundShare(selection, run_)));
    const double scored =
        (keys * selection.key_bytes / selection.choices + sequences * selection.survivor_bytes) *
        shape_.kv_heads / selection.refresh;
    const double scored_away = machine_.own_memory ? scored * (1.0 - run_.split.resident) : 0.0;
    const double on_bus = scored_away / KeyRate(machine_, selection);
    Busy(CostLane::kHostToDevice) += on_bus + away;
    if (scored > 0.0) {
      Device(&time_.attention,
             std::max(on_bus, (scored - scored_away) / KeyChoiceRate(machine_, selection, 1.0)) +
                 ChoiceLaunchSeconds(machine_) / selection.refresh);
    } else {
      const double choices = sequences / selection.refresh;
      Busy(CostLane::kHostToDevice) += choices * SketchBusSeconds(machine_, subject_);
      Device(&time_.attention, choices * ChoiceSeconds(machine_, subject_, keys / sequences));
    }
    ReadListedPages(keys, chosen, of_disk);
    // A launch of each sequence for what is listed, and one for the open pages of all.
    const double here = (chosen - far) / sequences;
    const double whole = AttentionSeconds(machine_, subject_, shape_.kv_heads, here, 1.0, 1.0);
    const double attending = ListedDecodeSeconds(machine_, subject_, here, whole);
    Device(&time_.attention, std::max(away, sequences * attending));
    Device(&time_.attention, AttentionSeconds(machine_, subject_, shape_.kv_heads,
                                              sequences * selection.open_keys, 1.0, 1.0));
  }

  // With a page cache what is listed is brought before it is attended to, without one meanwhile.
  void SelectInPrefill(double keys, double chosen) {
    const double queries = Queries();
    const KeySelection& selection = subject_.selection;
    const ChunkLists lists = ListsOfChunk(subject_, run_, queries);
    const double always = selection.sink + selection.recent;
    const double of_step = chosen - static_cast<double>(entries_.size()) * always;
    const double brought =
        PromptKeysOverBus(Away(keys, chosen), lists, of_step, run_.page_cache_steps);
    const double bus = brought * shape_.kv_heads * HeadBytes(subject_) / InPlaceRate(machine_);
    Busy(CostLane::kHostToDevice) += bus;
    Device(&time_.attention, PromptChoiceSeconds(machine_, subject_, run_, keys, queries));
    for (const SequenceStep& entry : entries_) {
      chosen -= RecentInChunk(selection, static_cast<double>(entry.tokens));
    }
    const double attending = ListedAttentionSeconds(machine_, subject_, chosen, queries);
    Device(&time_.attention,
           run_.page_cache_steps > 0.0 ? bus + attending : std::max(bus, attending));
    Device(&time_.attention, MergeSeconds(machine_, shape_, shape_.kv_heads, queries));
  }

  void Attention(double keys, double longest) {
    // Drafts are decoded, with one read of the keys.
    const double queries = prefill_ ? Queries() : 1.0;
    ClosedKeys(keys, longest, queries);
    const int group = std::min(run_.group_heads, shape_.kv_heads);
    Tail(queries, group, static_cast<double>(CeilDiv(shape_.kv_heads, group)), keys);
  }

  // Attention of so many tokens to all keys of closed pages, where they lie.
  void ClosedKeys(double keys, double longest, double queries) {
    const double here = keys * (run_.split.resident + run_.split.recompute);
    const int group = std::min(run_.group_heads, shape_.kv_heads);
    const auto groups = static_cast<double>(CeilDiv(shape_.kv_heads, group));
    const auto attend = [&](int heads, double n, double times) {
      double seconds = AttentionSeconds(machine_, subject_, heads, n, queries, queries);
      if (queries > 1.0 && seconds > 0.0) seconds += MergeSeconds(machine_, shape_, heads, queries);
      if (!prefill_) seconds *= VerifyingTimes(shape_, Queries());
      Device(&time_.attention, times * seconds);
    };
    // Resident slabs come first in the order of reading, each a launch of its own in prefill.
    if (here > 0.0) {
      const Pieces resident = PiecesOf(shape_, run_, entries_.size(), keys, longest, here / keys);
      if (queries > 1.0) {
        attend(resident.heads, resident.keys, static_cast<double>(resident.count) * resident.each);
      } else {
        const double recomputed = keys * run_.split.recompute;
        attend(group, here - recomputed, groups);
        if (recomputed > 0.0) {
          const double rows = GatherRows(recomputed);
          attend(group, rows, groups * recomputed / rows);
        }
      }
    }
    Stream(keys, longest, stream_, attend);
  }

  // Of the keys, those on disk and `from_host` of them.
  template <typename Attend>
  void Stream(double keys, double longest, double from_host, const Attend& attend) {
    const double share = from_host + run_.split.disk;
    const Pieces pieces = PiecesOf(shape_, run_, entries_.size(), keys, longest, share);
    const double bytes = pieces.keys * pieces.heads * HeadBytes(subject_);
    const double of_disk = share > 0.0 ? run_.split.disk / share : 0.0;
    // Where one stands for several, they fill as many buffers.
    const auto room = static_cast<size_t>(static_cast<double>(buffers_.size()) / pieces.each);
    const size_t buffers =
        std::clamp<size_t>(room, std::min<size_t>(2, buffers_.size()), buffers_.size());
    for (int64_t i = 0; i < pieces.count; ++i) {
      next_buffer_ = (next_buffer_ + 1) % buffers;
      double& buffer = buffers_[next_buffer_];
      double& bounce = bounces_[next_buffer_];
      double there = buffer;
      if (of_disk > 0.0 && machine_.disk_read > 0.0) {
        const double seconds = of_disk * pieces.each * bytes / machine_.disk_read;
        disk_ = std::max(disk_, bounce) + seconds;
        Busy(CostLane::kDisk) += seconds;
        there = std::max(there, disk_);
      }
      const double copied = CopyUp(there, bytes, pieces.each);
      bounce = copied;
      gpu_ = std::max(gpu_, copied);
      attend(pieces.heads, pieces.keys, pieces.each);
      buffer = gpu_;
    }
  }

  // The step's own tokens: each sees those before it.
  void Tail(double queries, int group, double groups, double keys) {
    const auto sequences = static_cast<double>(entries_.size());
    if (queries > 1.0) {
      // The first queries are done early.
      const double seconds = AttentionSeconds(machine_, subject_, group, (queries + 1.0) / 2.0,
                                              queries, queries / 2.0);
      Device(&time_.attention, sequences * groups * seconds);
    } else if (keys * (run_.split.resident + run_.split.recompute) <= 0.0) {
      Device(&time_.attention,
             groups * AttentionSeconds(machine_, subject_, group, sequences, queries, queries));
    }
  }

  const MachineProfile& machine_;
  const Subject& subject_;
  const ModelShape& shape_;
  Execution run_;
  std::span<const SequenceStep> entries_;
  LayerWeights weights_;
  std::map<int64_t, Keys> keys_;  // by the window of a layer: there may be thousands of sequences
  double tokens_ = 0.0;
  bool prefill_ = false;
  double stream_ = 0.0, host_ = 0.0, down_bytes_ = 0.0, bus_slower_ = 1.0;
  double gpu_ = 0.0, bus_ = 0.0, cpu_ = 0.0, disk_ = 0.0;
  std::vector<double> buffers_, bounces_;  // when each is free again
  size_t next_buffer_ = 0;
  std::vector<double> layer_done_, weights_copied_;
  StepTime time_;
};

}  // namespace

StepTime PredictStep(const MachineProfile& machine, const Subject& subject,
                     const Execution& execution, std::span<const SequenceStep> entries,
                     LogitsWanted logits) {
  if (entries.empty()) return {};
  return Simulation(machine, subject, execution, entries).Run(logits);
}

}  // namespace headway::plan
