// Cost model: how long a step takes on a machine. Pure arithmetic over bytes, FLOPs and the order
// in which the lanes must do them; nothing is measured or allocated here.
//
// A step is followed lane by lane and layer by layer: the products of a layer wait for the layer
// before, copies run ahead of them as far as the staging buffers let them, the host's share of a
// layer's attention needs that layer's q, a recomputed range needs W_K, W_V and X on the device,
// and the merge needs all parts. Its time is when the last of it is done.
#ifndef HEADWAY_PLAN_COST_H_
#define HEADWAY_PLAN_COST_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/machine_profile.h"
#include "base/types.h"
#include "plan/communication.h"

namespace headway::plan {

// How much of the closed keys and values of each layer and head takes which path. They sum to 1.
struct CacheSplit {
  double resident = 1.0;
  double stream = 0.0;     // from host memory
  double disk = 0.0;       // streamed from disk through host memory
  double host = 0.0;       // attended to by the CPU in decode, streamed in prefill
  double recompute = 0.0;  // from X in host memory
};

// The same of a sequence that has `keys` keys now and will have `full`: tiers fill one after the
// other, the fastest first, so that a short cache is resident where a long one is not.
CacheSplit SplitAt(const CacheSplit& split, double full, double keys);

// What earlier runs found in a page cache of the chosen keys that lie in host memory.
struct FoundBefore {
  double share = 0.0;
  double tokens = 0.0;  // that decode steps of these runs read for; 0: nothing is known
  double steps = 0.0;   // whose chosen keys the cache held
};

// What a step does with the cache and the weights.
struct Execution {
  int64_t chunk = 1024;
  int group_heads = 1;
  int64_t segment_tokens = 1024;
  int staging_slabs = 2;
  int64_t gather_tokens = 0;  // that one product recomputes; 0: all of a layer
  CacheSplit split;
  double page_cache_steps = 0.0;  // decode steps whose chosen keys the page cache holds
  FoundBefore found = {};         // by such a cache
  double listed_steps = 0.0;      // decode steps whose listed pages on disk host memory holds
  int64_t full_length = 0;        // of a sequence, that the split is of; 0: of any length
  int64_t stretch_tokens = 0;     // CacheChoice's
  // A step is a part of a stretch: so much of the weights is brought for it, and its residual
  // stream comes up and goes down, layer by layer.
  double weights_of_stretch = 1.0;
  bool in_stretch = false;
  double weights_streamed = 0.0;  // share of the layers' weights that is not on the device
  double weights_on_disk = 0.0;   // of all weights, too: read from disk through host memory
  double weight_code = 1.0;       // of the bytes of others that stream, those that cross the bus
  // Of the bytes of all layers' weights, those that cross the bus.
  double weights_sent() const {
    return weights_of_stretch *
           (weights_on_disk + (weights_streamed - weights_on_disk) * weight_code);
  }
};

// Steps that read, where there are more, some keys and a summary of all: of a KV head.
struct KeySelection {
  double keys = 0.0;           // of closed pages; 0: all are read
  double summary_bytes = 0.0;  // of a key
  // That a second look reads of all its candidates, of sketches or of summaries; 0: there is none.
  double sketch_bytes = 0.0, candidate_bytes = 0.0;
  // Of sketch_bytes, what sketches have, the rest being the summaries'; and where they lie.
  double sketch_bits = 0.0;
  Tier sketches = Tier::kDevice;
  double choices = 1.0;  // that one search of all summaries or keys serves
  // Of `keys`, those at the begin and at the end of a sequence, where slabs of these lie on the
  // device before others do, or none does.
  double sink = 0.0, recent = 0.0;
  double refresh = 1.0;  // decode steps that one choice serves
  // That a search without summaries reads of a key, where it lies, and each choice beside it; of
  // prompts, each of their lists.
  double key_bytes = 0.0, survivor_bytes = 0.0, prompt_survivor_bytes = 0.0;
  // Of a sequence, the keys behind its last closed page, on average: a launch of their own.
  double open_keys = 0.0;
  enum class Prompts { kExact, kSelected };
  Prompts prompts = Prompts::kExact;
  // A score is of so many keys, of which all or none are listed. Decode steps read listed ones from
  // disk in pages of so many of a head group; 0: what lies there is read whole.
  double block_keys = 1.0, page_keys = 0.0;
  // Of a prompt's tokens: how many are scored as one query, and how many have one list.
  double pool_tokens = 1.0, list_tokens = 1.0;
  // Where these are at most half of the keys, a first look scores all keys by queries of so many
  // tokens, and what is scored by pool_tokens are these.
  double prompt_candidates = 0.0, search_tokens = 1.0;
  // Recent keys, of which tokens of a chunk need as many less before it as the chunk has before
  // them; 0: all of them list those of the first one.
  double prompt_recent = 0.0;
  // Of a prompt's tokens one of so many reads all keys besides; 0: none does.
  double dense_every = 0.0;
  bool moved = false;  // listed keys are rotated as they are attended to
  int64_t from = 0;    // sequences of up to so many tokens read all
};

// What the model is, as far as time depends on it.
struct Subject {
  ModelShape shape;
  std::vector<int64_t> window = {};  // [layers] or empty; 0: all keys
  double slab_share = 1.0;  // of the KV heads that see everything; the others see a few keys
  // Of K and V of one token and KV head in closed pages, which may be encoded, with what pads them;
  // 0: as many as the model's dtype has.
  double closed_bytes = 0.0;
  KeySelection selection = {};  // in layers without a window
  bool lossless = false;        // closed pages are, which take longer than their bytes
  RankGroup group = {};         // of which one has this part of the model

  int64_t WindowOf(int layer) const {
    return window.empty() ? 0 : window[static_cast<size_t>(layer)];
  }
};

// Whether a layer's queries choose their keys: those of layers with a window do not.
bool ChoosesIn(const Subject& subject, int layer);

// Bytes and FLOPs of one path for `keys` keys of `heads` KV heads of a layer against `queries`
// tokens that all see them.
struct RangeWork {
  double device_bytes = 0.0;   // read by attention on the device
  double flops = 0.0;          // of attention on the device
  double product_flops = 0.0;  // recomputing keys and values
  double bus_bytes = 0.0;
  double host_bytes = 0.0;  // read by attention on the host
};
// Of K and V of one token and KV head in closed pages.
double HeadBytes(const Subject& subject);

enum class RangePath { kResident, kStream, kRecompute, kHost };
RangeWork WorkOf(RangePath path, const Subject& subject, int heads, double keys, double queries);

// Bytes of a layer's matrices.
struct LayerWeights {
  double kv = 0.0;   // W_K and W_V
  double qo = 0.0;   // W_Q and W_O
  double mlp = 0.0;  // gate (where there is one), up and down
  double total() const { return kv + qo + mlp; }
};
LayerWeights WeightsOf(const ModelShape& shape);

// x [rows, in] · [in, out]: as long as its weights take to be read, or as it takes to compute.
double ProductSeconds(const MachineProfile& machine, const ModelShape& shape, double rows,
                      double in, double out);

// What a layer of `tokens` tokens waits for as ranks add up the residual stream, twice and in f32.
double LayerSumSeconds(const MachineProfile& machine, const Subject& subject, double tokens);

// One sequence of a step: `tokens` new ones behind `prefix` cached ones, and behind one that is
// decoded so many drafts, which the step verifies.
struct SequenceStep {
  int64_t prefix = 0;
  int64_t tokens = 1;
  int64_t drafts = 0;
};

enum class CostLane { kDevice, kHostToDevice, kDeviceToHost, kHost, kDisk };
inline constexpr int kCostLanes = 5;
const char* CostLaneName(CostLane lane);  // "GPU", "bus to the GPU", ... ; for people

struct StepTime {
  double seconds = 0.0;
  double busy[kCostLanes] = {};
  // Where the device's time goes.
  double products = 0.0, attention = 0.0, other = 0.0;

  CostLane limit() const;  // the lane that is busy longest
};

// A step of `entries`; with logits the head is computed for the last token of each, sampled from,
// and waited for.
enum class LogitsWanted { kNo, kYes };
StepTime PredictStep(const MachineProfile& machine, const Subject& subject,
                     const Execution& execution, std::span<const SequenceStep> entries,
                     LogitsWanted logits);

// Reading `tokens` tokens behind `prefix` in chunks. Long prompts are integrated from a few chunks.
StepTime PredictPrefill(const MachineProfile& machine, const Subject& subject,
                        const Execution& execution, int64_t prefix, int64_t tokens);

// Reading sequences of these lengths: several in a step where they are shorter than a chunk.
StepTime PredictPrefills(const MachineProfile& machine, const Subject& subject,
                         const Execution& execution, std::span<const int64_t> lengths);

// One decode step of sequences that have these lengths.
StepTime PredictDecode(const MachineProfile& machine, const Subject& subject,
                       const Execution& execution, std::span<const int64_t> lengths);

// KVPR's optimum (Eq. 12): of `keys` tokens of a layer, how many to recompute from X so that
// X / bus + max(recomputing, the other keys / bus) is least. 0 where X is no smaller than K and V.
// The sum falls until both are equal, so the least is where they meet.
double RecomputeSplit(const ModelShape& shape, double keys, double bus_bytes_per_second,
                      double flops_per_second);

// The share of closed keys in host memory for the CPU so that it ends with the bus: both lanes
// begin together, and each has the rate that it has while the other runs.
double BalancedHostShare(const MachineProfile& machine);
// The same where kernels of the device read the rest where it lies. All where they cannot.
double BalancedInPlaceShare(const MachineProfile& machine);

}  // namespace headway::plan

#endif  // HEADWAY_PLAN_COST_H_
