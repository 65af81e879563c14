// Salience (HGCA: Xu et al., 2025, §3): what decodes go on attending to of the tokens before a
// dense window. Each KV head has its own salient tokens, whose keys and values lie one behind the
// other in memory of the host, for its cores, or of the device. The cache itself stays whole below
// them.
//
// The mass of a token is the moving average of its share of the window's attention, averaged over
// the head's query heads and counted in even shares of the window. It is asked a step before the
// token's page leaves the window, so that the host chooses while the device runs the last step that
// has the page there. When a prompt, or what was appended to it, has been read, all tokens have
// their masses from its last queries, over all keys, and every head's choice is made anew.
//
// Of encoded pages masses are those of the keys that the codes stand for, and what is salient is
// kept as these numbers in the model's dtype: tokens of many pages lie in one, and an encoding's
// parameters are those of a page.
//
// With SaliencePolicy::reselect no token has a mass: steps choose blocks by their queries, and the
// path that does keeps here what is chosen.
#ifndef HEADWAY_ENGINE_STEP_SALIENCE_H_
#define HEADWAY_ENGINE_STEP_SALIENCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/budget.h"
#include "device/device.h"
#include "engine/step/key_logits.h"
#include "engine/step/observed_queries.h"
#include "headway/status.h"
#include "kernels/kernels.h"
#include "kv/policy/salience.h"
#include "kv/policy/salient_blocks.h"
#include "kv/store/store.h"
#include "model/config.h"

namespace headway {

// What it is made for.
struct SalienceLimits {
  ModelShape shape;
  PageFormat page;               // of closed pages
  std::vector<int64_t> windows;  // of layers that have one of their own and choose nothing; or none
  int first_layer = 0;           // of the model's, where these are a run of them
  kv::SaliencePolicy policy;
  int64_t sequences = 0;
  int64_t length = 0;                    // of the longest
  DType activation_dtype = DType::kF32;  // of queries
  bool on_host = false;                  // salient tokens lie in memory of the host
  double by_cores = 1.0;                 // what its cores attend to of them
};

// What it works with; all outlives it.
struct SalienceParts {
  Kernels& kernels;
  Device& device;
  Stream& compute;
  kv::Store& store;
  Budget& budget;        // of the device's memory
  Budget& token_budget;  // of memory for salient tokens
  Budget&
      result_budget;  // of memory that results come to, where the host does not read the device's
};

class Salience {
 public:
  // Bytes that Create takes for salient tokens, of the device's budget beside them, and for
  // results; pure.
  static int64_t TokenBytes(const SalienceLimits& limits);
  static int64_t DeviceBytes(const SalienceLimits& limits);
  static int64_t ResultBytes(const SalienceLimits& limits);
  static Result<std::unique_ptr<Salience>> Create(const SalienceParts& parts,
                                                  const SalienceLimits& limits);

  // --- Between steps
  // The sequence was read to its end by steps of several tokens, whose last queries `observed` may
  // have; of one whose queries it has not, tokens are chosen evenly.
  Status Choose(kv::SequenceId sequence, const ObservedQueries& observed);
  void Forget(kv::SequenceId sequence);

  // --- In a step
  // What was chosen of a sequence of so many tokens; null: nothing was, and it is read whole.
  struct Chosen;
  Chosen* Find(kv::SequenceId sequence, int64_t length);
  bool ChoosesIn(int layer) const {
    return limits_.windows.empty() || limits_.windows[static_cast<size_t>(layer)] == 0;
  }
  bool on_host() const { return limits_.on_host; }
  // Of a head among those of Chosen.
  int64_t HeadIndex(int layer, int head) const {
    return int64_t{layer} * limits_.shape.kv_heads + head;
  }
  // A head's salient tokens, at positions that every query sees.
  KeyRun KeysOf(const Chosen& chosen, int layer, int head) const;
  // Those of them that the host's cores attend to, whole pages of the first ones unless these are
  // all, and those that the device reads: where they lie on the host, over its bus.
  KeyRun OfCores(const KeyRun& keys) const;
  KeyRun OfDevice(const KeyRun& keys) const;
  // Of a head's tokens before the window, of these `slots` from a position on, those that are not
  // salient: bit i is that of the i-th. For contexts whose policy is bounded; the slots lie in one
  // block of 16.
  uint32_t NotSalient(const Chosen& chosen, int layer, int head, int64_t position, int slots) const;
  // Whether the next token's queries choose blocks, and those that a head then has places for.
  bool Reselects(const Chosen& chosen) const;
  int64_t PlacesOf(const Chosen& chosen) const { return BlocksOf(limits_.policy, chosen.before); }
  // Memory of the host for what they list, [sequences, kv_heads] lists and as many counts.
  int32_t* lists() const { return reinterpret_cast<int32_t*>(results_->data()); }
  // Blocks that a head has places for of so many tokens before the window.
  static int64_t BlocksOf(const kv::SaliencePolicy& policy, int64_t before) {
    return kv::SalientBlocks::Places(policy, before / kv::SalientBlocks::kSummary.block_slots);
  }

  // Whether the next token's queries of a layer are weighed.
  bool Weighs(const Chosen& chosen, int layer) const {
    return limits_.policy.has_masses() &&
           limits_.policy.weighs(chosen.length, limits_.first_layer + layer);
  }
  // Enqueues what the queries of a decode add to the masses of the tokens that are not before the
  // window: q is that of the layer's first head, `keys` are of each KV head in the order of
  // positions, the new one the last.
  struct WindowKeys {
    int entry = 0;  // of the step
    const Chosen* chosen = nullptr;
    const std::byte* q = nullptr;  // activations [query_heads, head_dim]
    std::vector<std::vector<KeyRun>> keys;
  };
  void Weigh(int layer, std::span<const WindowKeys> entries);
  // All layers of a step are enqueued, and so are their masses: chooses from what leaves windows
  // with it, while the device runs it, and asks the masses of what leaves them with the next one.
  Status ChooseFromLeaving(std::span<Chosen* const> all);
  // The sequence has the step's token.
  void Append(Chosen* chosen);

  struct Chosen {
    int place = 0;
    kv::SequenceId sequence = -1;  // -1: of none
    int64_t length = 0;
    int64_t before = 0;            // tokens before the window
    int64_t leaving = 0;           // those that the next step adds to them
    std::vector<int64_t> weighed;  // [layers]: the first so many tokens have masses
    std::vector<int64_t> counts;   // [layers, kv_heads]
    // Of policies that are bounded and have masses: the salient tokens, ascending.
    std::vector<std::vector<int32_t>> positions;  // [layers, kv_heads]
    // Of blocks that are chosen anew, by the query at position `made`, before the window of then.
    std::vector<kv::SalientBlocks> blocks;  // [layers, kv_heads]
    int64_t made = -1;
    int64_t made_before = 0;
  };

 private:
  // Where things lie in the device's memory.
  struct Places {
    explicit Places(const SalienceLimits& limits);

    int64_t ring = 0;          // slots of a head's masses
    int64_t rows = 0;          // of queries that are weighed at a time
    int64_t pages = 0;         // of a head's salient tokens
    int64_t page_stride = 0;   // of these
    int64_t masses = 0;        // [sequences, layers, kv_heads, ring]
    int64_t sums = 0;          // [kv_heads, length]
    int64_t row_lse = 0;       // [sequences, query_heads], or of queries that are weighed at once
    int64_t slots = 0;         // those of a layer that are gathered, or of a page in all layers
    int64_t page_results = 0;  // of the results: [sequences, layers, kv_heads, page_slots]
    int64_t slot_results = 0;  // of the results: slots on their way to the device
    int64_t logits = 0;        // [rows * group, length], or [sequences, query_heads, ring]
    int64_t decoded = 0;       // of KeyLogits, for so many tokens
    int64_t decoded_tokens = 0;
    int64_t bytes = 0;
    int64_t slot_count = 0;
    int64_t results = 0;
  };

  Salience(const SalienceParts& parts, const SalienceLimits& limits, std::unique_ptr<Buffer> memory,
           std::unique_ptr<Buffer> tokens, std::unique_ptr<Buffer> results);

  int64_t Tables() const { return int64_t{limits_.shape.layers} * limits_.shape.kv_heads; }
  // Tokens that leave the window as the sequence comes to `length`, behind those that are leaving.
  int64_t Leaving(const Chosen& chosen, int64_t length) const;
  // Where the masses of its page are, among the results.
  int64_t PageMasses(const Chosen& chosen) const {
    return places_.page_results / int64_t{sizeof(float)} +
           chosen.place * Tables() * limits_.page.page_slots;
  }
  void AskMasses(const Chosen& chosen, int64_t tokens);
  Status ChooseFromLeaving(Chosen* chosen, std::vector<GatherSlotsItem>* items);
  float* Floats(int64_t at) const { return reinterpret_cast<float*>(memory_->data() + at); }
  float* MassesOf(const Chosen& chosen, int layer, int head) const;
  Chosen& PlaceFor(kv::SequenceId sequence);
  Status ChooseInLayer(int layer, bool observed, const ObservedQueries& queries, Chosen* chosen);
  void Observe(int layer, const ObservedQueries& queries, const Chosen& chosen,
               std::span<const std::vector<KeyRun>> keys);
  void AddObserved(int layer, int head, int64_t rows, bool first, const Chosen& chosen);
  void Gather(int layer, int head, std::span<const KeyRun> keys, std::span<const int32_t> positions,
              Chosen* chosen, std::vector<GatherSlotsItem>* items);
  void RunGathers(std::span<const GatherSlotsItem> items);
  std::span<const float> ResultsAt(int64_t first, int64_t count) const;

  const SalienceParts parts_;
  const SalienceLimits limits_;
  const Places places_;
  std::unique_ptr<Buffer> memory_, tokens_;
  // Sums of a layer, masses of pages that leave, slots on their way to the device.
  std::unique_ptr<Buffer> results_;
  std::unique_ptr<Event> asked_;  // masses of pages that leave have come
  KeyLogits key_logits_;
  std::vector<Chosen> chosen_;  // [sequences]
  std::vector<int32_t> slots_;  // that items of GatherSlots take
  int64_t observed_rows_ = 0;   // of each KV head
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_SALIENCE_H_
