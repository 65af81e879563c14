#include "engine/step/salience.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "engine/step/gather_tokens.h"
#include "engine/step/step_context.h"
#include "kernels/items.h"

namespace headway {
namespace {

// Logits of queries that are weighed at a time.
constexpr int64_t kLogitBytes = int64_t{128} << 20;

// `count` of `tokens`, for a cache of which nobody knows what its tokens are worth.
std::vector<int32_t> Evenly(int64_t tokens, int64_t count) {
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < count; ++i) positions.push_back(static_cast<int32_t>(i * tokens / count));
  return positions;
}

}  // namespace

Salience::Places::Places(const SalienceLimits& limits) {
  const ModelShape& shape = limits.shape;
  const int64_t page_slots = limits.page.page_slots;
  const int64_t tables = int64_t{shape.layers} * shape.kv_heads;
  const auto take = [this](int64_t of) { return std::exchange(bytes, bytes + of); };
  const int64_t most = kv::MostSalient(limits.policy, limits.length);
  pages = CeilDiv(most, page_slots);
  page_stride = static_cast<int64_t>(limits.page.bytes());
  if (limits.policy.reselects()) {
    results = limits.sequences * shape.kv_heads * (BlocksOf(limits.policy, limits.length) + 1) *
              int64_t{sizeof(int32_t)};
    return;
  }
  // A page leaves when it is full behind the window; the next one fills meanwhile.
  ring = RoundUp(limits.policy.window, page_slots) + 2 * page_slots;
  const int64_t row = FloatBytes(shape.group() * limits.length);
  rows = std::clamp<int64_t>(kLogitBytes / row, 1, limits.policy.queries);
  slot_count = std::max(shape.kv_heads * most, limits.sequences * tables * page_slots);
  masses = take(FloatBytes(limits.sequences * tables * ring));
  sums = take(FloatBytes(shape.kv_heads * limits.length));
  row_lse = take(FloatBytes(std::max(limits.sequences * shape.query_heads, rows * shape.group())));
  slots = take(FloatBytes(slot_count));
  logits = take(std::max(rows * row, FloatBytes(limits.sequences * shape.query_heads * ring)));
  decoded_tokens = limits.sequences * shape.kv_heads * RoundUp(limits.length, page_slots);
  decoded = take(KeyLogits::Bytes(limits.page, decoded_tokens));
  page_results = FloatBytes(shape.kv_heads * limits.length);
  slot_results = page_results + FloatBytes(limits.sequences * tables * page_slots);
  results = slot_results + FloatBytes(slot_count);
}

int64_t Salience::TokenBytes(const SalienceLimits& limits) {
  const Places places(limits);
  return limits.sequences * limits.shape.layers * limits.shape.kv_heads * 2 * places.pages *
         places.page_stride;
}

int64_t Salience::DeviceBytes(const SalienceLimits& limits) { return Places(limits).bytes; }

int64_t Salience::ResultBytes(const SalienceLimits& limits) { return Places(limits).results; }

Result<std::unique_ptr<Salience>> Salience::Create(const SalienceParts& parts,
                                                   const SalienceLimits& limits) {
  Result<std::unique_ptr<Buffer>> memory = std::unique_ptr<Buffer>();
  if (const auto bytes = static_cast<size_t>(DeviceBytes(limits)); bytes > 0) {
    memory = parts.device.Allocate(parts.budget, bytes, "salience");
    if (!memory.ok()) return memory.status();
  }
  const auto token_bytes = static_cast<size_t>(TokenBytes(limits));
  Result<std::unique_ptr<Buffer>> tokens =
      limits.on_host ? parts.device.AllocateHost(parts.token_budget, token_bytes, "salient tokens")
                     : parts.device.Allocate(parts.token_budget, token_bytes, "salient tokens");
  if (!tokens.ok()) return tokens.status();
  Result<std::unique_ptr<Buffer>> host = parts.device.AllocateHost(
      parts.result_budget, static_cast<size_t>(ResultBytes(limits)), "salience");
  if (!host.ok()) return host.status();
  return std::unique_ptr<Salience>(
      new Salience(parts, limits, std::move(*memory), std::move(*tokens), std::move(*host)));
}

Salience::Salience(const SalienceParts& parts, const SalienceLimits& limits,
                   std::unique_ptr<Buffer> memory, std::unique_ptr<Buffer> tokens,
                   std::unique_ptr<Buffer> results)
    : parts_(parts),
      limits_(limits),
      places_(limits),
      memory_(std::move(memory)),
      tokens_(std::move(tokens)),
      results_(std::move(results)),
      asked_(parts.device.NewEvent()),
      key_logits_(parts.kernels, parts.compute, limits.page,
                  memory_ == nullptr ? nullptr : memory_->data() + places_.decoded,
                  places_.decoded_tokens),
      chosen_(static_cast<size_t>(limits.sequences)) {
  for (size_t i = 0; i < chosen_.size(); ++i) chosen_[i].place = static_cast<int>(i);
}

float* Salience::MassesOf(const Chosen& chosen, int layer, int head) const {
  return Floats(places_.masses) + (chosen.place * Tables() + HeadIndex(layer, head)) * places_.ring;
}

KeyRun Salience::KeysOf(const Chosen& chosen, int layer, int head) const {
  const int64_t of_head = places_.pages * places_.page_stride;
  KeyRun keys;
  keys.pages.k = tokens_->data() + (chosen.place * Tables() + HeadIndex(layer, head)) * 2 * of_head;
  keys.pages.v = keys.pages.k + of_head;
  keys.pages.page_stride = places_.page_stride;
  keys.pages.count = chosen.counts[static_cast<size_t>(HeadIndex(layer, head))];
  return keys;
}

KeyRun Salience::OfCores(const KeyRun& keys) const {
  KeyRun first = keys;
  if (!limits_.on_host) {
    first.pages.count = 0;
  } else if (limits_.by_cores < 1.0) {
    const int64_t slots = limits_.page.page_slots;
    first.pages.count =
        static_cast<int64_t>(static_cast<double>(keys.pages.count / slots) * limits_.by_cores) *
        slots;
  }
  return first;
}

KeyRun Salience::OfDevice(const KeyRun& keys) const {
  const int64_t before = OfCores(keys).pages.count;
  return headway::KeysOf(limits_.page, keys, 0, before, keys.pages.count - before);
}

uint32_t Salience::NotSalient(const Chosen& chosen, int layer, int head, int64_t position,
                              int slots) const {
  const uint32_t all = (uint32_t{1} << slots) - 1;
  const auto index = static_cast<size_t>(HeadIndex(layer, head));
  if (limits_.policy.reselects()) {
    constexpr int kBlock = kv::SalientBlocks::kSummary.block_slots;
    return chosen.blocks[index].Has(static_cast<int32_t>(position / kBlock)) ? 0 : all;
  }
  const std::vector<int32_t>& salient = chosen.positions[index];
  uint32_t those = 0;
  for (auto at = std::lower_bound(salient.begin(), salient.end(), position);
       at != salient.end() && *at < position + slots; ++at) {
    those |= uint32_t{1} << (*at - position);
  }
  return all & ~those;
}

Salience::Chosen* Salience::Find(kv::SequenceId sequence, int64_t length) {
  for (Chosen& chosen : chosen_) {
    if (chosen.sequence == sequence && chosen.length == length) return &chosen;
  }
  return nullptr;
}

int64_t Salience::Leaving(const Chosen& chosen, int64_t length) const {
  return kv::TokensBefore(limits_.policy, length, limits_.page.page_slots) - chosen.before -
         chosen.leaving;
}

void Salience::Forget(kv::SequenceId sequence) {
  for (Chosen& chosen : chosen_) {
    if (chosen.sequence == sequence) chosen.sequence = -1;
  }
}

// A sequence that has to give its place up is read whole from then on.
Salience::Chosen& Salience::PlaceFor(kv::SequenceId sequence) {
  for (const kv::SequenceId wanted : {sequence, kv::SequenceId{-1}}) {
    for (Chosen& chosen : chosen_) {
      if (chosen.sequence == wanted) return chosen;
    }
  }
  return chosen_.front();
}

Status Salience::Choose(kv::SequenceId sequence, const ObservedQueries& observed) {
  Chosen& chosen = PlaceFor(sequence);
  chosen.sequence = sequence;
  chosen.length = parts_.store.Length(sequence);
  chosen.before = kv::TokensBefore(limits_.policy, chosen.length, limits_.page.page_slots);
  chosen.leaving = 0;
  chosen.weighed.assign(static_cast<size_t>(limits_.shape.layers), chosen.length);
  chosen.counts.assign(static_cast<size_t>(Tables()), 0);
  if (limits_.policy.is_bounded()) chosen.positions.assign(static_cast<size_t>(Tables()), {});
  if (limits_.policy.reselects()) {  // the next step chooses
    chosen.blocks.assign(static_cast<size_t>(Tables()), {});
    chosen.made = -1;
    return OkStatus();
  }
  const bool known = observed.EndOf(sequence, chosen.length);
  const std::vector<float> none(known ? 0 : static_cast<size_t>(Tables() * places_.ring));
  if (!known) {
    parts_.compute.Copy(reinterpret_cast<std::byte*>(MassesOf(chosen, 0, 0)),
                        reinterpret_cast<const std::byte*>(none.data()),
                        none.size() * sizeof(float));
  }
  Status status;
  for (int layer = 0; status.ok() && layer < limits_.shape.layers; ++layer) {
    if (ChoosesIn(layer)) status = ChooseInLayer(layer, known, observed, &chosen);
  }
  const int64_t leaving = Leaving(chosen, chosen.length + 1);
  AskMasses(chosen, leaving);
  chosen.leaving = leaving;
  // Also after an error: kernels read the cache, and memory that is here.
  const Status done = parts_.compute.Synchronize();
  if (status.ok()) status = done;
  if (!status.ok()) chosen.sequence = -1;
  return status;
}

Status Salience::ChooseInLayer(int layer, bool observed, const ObservedQueries& queries,
                               Chosen* chosen) {
  const int heads = limits_.shape.kv_heads;
  std::vector<std::vector<KeyRun>> keys;
  for (int head = 0; head < heads; ++head) {
    Result<std::vector<KeyRun>> runs = parts_.store.KeysOf(chosen->sequence, layer, head);
    if (!runs.ok()) return runs.status();
    keys.push_back(std::move(*runs));
  }
  if (observed) Observe(layer, queries, *chosen, keys);
  // The slots of the layer before have come to the device, too.
  if (Status s = parts_.compute.Synchronize(); !s.ok()) return s;
  const int64_t most = kv::MostSalient(limits_.policy, chosen->before);
  const double even = static_cast<double>(observed_rows_) / static_cast<double>(chosen->length);
  std::vector<GatherSlotsItem> items;
  slots_.clear();
  for (int head = 0; head < heads; ++head) {
    const std::span<const float> sums = ResultsAt(head * limits_.length, chosen->before);
    const std::vector<int32_t> positions =
        observed ? kv::ChooseSalient(sums, limits_.policy.beta * even, most)
                 : Evenly(chosen->before, most);
    Gather(layer, head, keys[static_cast<size_t>(head)], positions, chosen, &items);
  }
  RunGathers(items);
  for (int head = 0; head < heads; ++head) parts_.store.FinishKeys(chosen->sequence, layer, head);
  return OkStatus();
}

// Sums over all keys, on their way to the host, and masses of the window.
void Salience::Observe(int layer, const ObservedQueries& queries, const Chosen& chosen,
                       std::span<const std::vector<KeyRun>> keys) {
  const int heads = limits_.shape.kv_heads, group = limits_.shape.group();
  observed_rows_ = (queries.end() - queries.begin()) * group;
  for (int head = 0; head < heads; ++head) {
    for (int64_t begin = queries.begin(); begin < queries.end(); begin += places_.rows) {
      const int64_t end = std::min(begin + places_.rows, queries.end());
      key_logits_.Run(group, AttentionScale(limits_.shape),
                      queries.LogitsItems(layer, head, keys[static_cast<size_t>(head)], begin, end,
                                          {Floats(places_.logits), chosen.length}));
      AddObserved(layer, head, (end - begin) * group, begin == queries.begin(), chosen);
    }
  }
  parts_.compute.Copy(results_->data(), memory_->data() + places_.sums,
                      static_cast<size_t>(heads * limits_.length) * sizeof(float));
}

// Adds so many rows of logits to a head's sums and masses, or begins these with them.
void Salience::AddObserved(int layer, int head, int64_t rows, bool first, const Chosen& chosen) {
  const int64_t length = chosen.length, window = length - chosen.before;
  KeyWeightsItem all;
  all.logits = Floats(places_.logits);
  all.stride = length;
  all.rows = rows;
  all.columns = length;
  all.sum = Floats(places_.sums) + head * limits_.length;
  all.average = {.kept = first ? 0 : length, .keep = 1.0f};
  all.row_lse = Floats(places_.row_lse);
  KeyWeightsItem near = all;
  near.logits += chosen.before;
  near.columns = window;
  near.sum = MassesOf(chosen, layer, head);
  near.average = {places_.ring, chosen.before, first ? 0 : window, 1.0f,
                  static_cast<float>(window) / static_cast<float>(observed_rows_)};
  parts_.kernels.KeyWeights(parts_.compute, {&all, 1});
  parts_.kernels.KeyWeights(parts_.compute, {&near, 1});
}

std::span<const float> Salience::ResultsAt(int64_t first, int64_t count) const {
  return {reinterpret_cast<const float*>(results_->data()) + first, static_cast<size_t>(count)};
}

// What copies tokens at these positions behind the head's salient ones; slots_ grows by their
// slots.
void Salience::Gather(int layer, int head, std::span<const KeyRun> keys,
                      std::span<const int32_t> positions, Chosen* chosen,
                      std::vector<GatherSlotsItem>* items) {
  int64_t& count = chosen->counts[static_cast<size_t>(HeadIndex(layer, head))];
  HEADWAY_CHECK(count + std::ssize(positions) <= places_.pages * limits_.page.page_slots);
  PageRun to = KeysOf(*chosen, layer, head).pages;
  to.first_slot = count;
  count += std::ssize(positions);
  if (limits_.policy.is_bounded()) {
    std::vector<int32_t>& all = chosen->positions[static_cast<size_t>(HeadIndex(layer, head))];
    all.insert(all.end(), positions.begin(), positions.end());
  }
  GatherTokens(keys, positions,
               reinterpret_cast<const int32_t*>(memory_->data() + places_.slots) + slots_.size(),
               to, &slots_, items);
}

void Salience::RunGathers(std::span<const GatherSlotsItem> items) {
  if (items.empty()) return;
  HEADWAY_CHECK(std::ssize(slots_) <= places_.slot_count);
  // From pinned memory, or the copy would wait for the step.
  const size_t bytes = slots_.size() * sizeof(int32_t);
  std::memcpy(results_->data() + places_.slot_results, slots_.data(), bytes);
  parts_.compute.Copy(memory_->data() + places_.slots, results_->data() + places_.slot_results,
                      bytes);
  parts_.kernels.GatherSlots(parts_.compute, limits_.page, items);
}

void Salience::Weigh(int layer, std::span<const WindowKeys> entries) {
  const ModelShape& shape = limits_.shape;
  const int group = shape.group();
  const auto head_bytes =
      int64_t{group} * shape.head_dim * static_cast<int64_t>(DTypeBytes(limits_.activation_dtype));
  std::vector<KeyLogitsItem> logits;
  std::vector<KeyWeightsItem> weights;
  for (const WindowKeys& entry : entries) {
    const Chosen& chosen = *entry.chosen;
    const int64_t columns = chosen.length + 1 - chosen.before;  // the new token among them
    HEADWAY_CHECK(columns <= places_.ring);
    for (int head = 0; head < shape.kv_heads; ++head) {
      const int64_t query_head = entry.entry * shape.query_heads + int64_t{head} * group;
      KeyWeightsItem weigh;
      float* const at = Floats(places_.logits) + query_head * places_.ring;
      weigh.logits = at;
      weigh.stride = places_.ring;
      weigh.rows = group;
      weigh.columns = columns;
      weigh.sum = MassesOf(chosen, layer, head);
      weigh.average.ring = places_.ring;
      weigh.average.first = chosen.before;
      weigh.average.kept = chosen.weighed[static_cast<size_t>(layer)] - chosen.before;
      weigh.average.keep = static_cast<float>(1.0 - limits_.policy.alpha);
      weigh.average.share =
          static_cast<float>(limits_.policy.alpha * static_cast<double>(columns) / group);
      weigh.row_lse = Floats(places_.row_lse) + query_head;
      weights.push_back(weigh);
      for (const KeyRun& range : entry.keys[static_cast<size_t>(head)]) {
        KeyLogitsItem item;
        item.q = entry.q + head * head_bytes;
        item.q_stride = int64_t{shape.query_heads} * shape.head_dim;
        item.rows = 1;
        item.q_position = chosen.length;
        item.keys = range;
        item.logits = at + (range.position - chosen.before);
        item.stride = places_.ring;
        logits.push_back(item);
      }
    }
  }
  if (weights.empty()) return;
  key_logits_.Run(group, AttentionScale(shape), logits);
  parts_.kernels.KeyWeights(parts_.compute, weights);
}

bool Salience::Reselects(const Chosen& chosen) const {
  const int64_t reselect = limits_.policy.reselect;
  return reselect > 0 && PlacesOf(chosen) > 0 &&
         (chosen.made < 0 || chosen.made_before != chosen.before ||
          chosen.length >= chosen.made + reselect);
}

// Has the masses of so many tokens come to the host, from the first on that is not leaving yet.
void Salience::AskMasses(const Chosen& chosen, int64_t tokens) {
  if (tokens == 0) return;
  const auto width = static_cast<size_t>(tokens) * sizeof(float);
  HEADWAY_CHECK(tokens == limits_.page.page_slots);
  const float* const masses =
      MassesOf(chosen, 0, 0) + (chosen.before + chosen.leaving) % places_.ring;
  parts_.compute.Copy2D(results_->data() + PageMasses(chosen) * int64_t{sizeof(float)}, width,
                        reinterpret_cast<const std::byte*>(masses),
                        static_cast<size_t>(places_.ring) * sizeof(float), width,
                        static_cast<size_t>(Tables()));
  parts_.compute.Record(*asked_);
}

Status Salience::ChooseFromLeaving(std::span<Chosen* const> all) {
  std::vector<GatherSlotsItem> items;
  slots_.clear();
  for (Chosen* chosen : all) {
    const Status status = ChooseFromLeaving(chosen, &items);
    if (status.ok()) continue;
    for (Chosen* each : all) each->sequence = -1;  // read whole from now on
    return status;
  }
  RunGathers(items);
  for (const Chosen* chosen : all) {
    for (int layer = 0; chosen->leaving > 0 && layer < limits_.shape.layers; ++layer) {
      for (int head = 0; head < limits_.shape.kv_heads; ++head) {
        parts_.store.FinishKeys(chosen->sequence, layer, head);
      }
    }
    AskMasses(*chosen, Leaving(*chosen, chosen->length + 2));
  }
  return OkStatus();
}

// What gathers the salient ones of the tokens that leave a sequence's window.
Status Salience::ChooseFromLeaving(Chosen* chosen, std::vector<GatherSlotsItem>* items) {
  const int64_t leaving = chosen->leaving;
  if (leaving == 0) return OkStatus();
  asked_->Wait();
  const int64_t most = kv::MostSalient(limits_.policy, chosen->before + leaving);
  for (int layer = 0; layer < limits_.shape.layers; ++layer) {
    for (int head = 0; ChoosesIn(layer) && head < limits_.shape.kv_heads; ++head) {
      const int64_t index = HeadIndex(layer, head);
      const int64_t room = most - chosen->counts[static_cast<size_t>(index)];
      std::vector<int32_t> positions = kv::ChooseSalient(
          ResultsAt(PageMasses(*chosen) + index * leaving, leaving), limits_.policy.beta, room);
      if (positions.empty()) continue;
      for (int32_t& position : positions) position += static_cast<int32_t>(chosen->before);
      const Result<std::vector<KeyRun>> keys =
          parts_.store.KeysOf(chosen->sequence, layer, head, chosen->before);
      if (!keys.ok()) return keys.status();
      Gather(layer, head, *keys, positions, chosen, items);
    }
  }
  return OkStatus();
}

void Salience::Append(Chosen* chosen) {
  if (limits_.policy.reselects()) {
    if (Reselects(*chosen)) {
      chosen->made = chosen->length;
      chosen->made_before = chosen->before;
    }
    ++chosen->length;
    chosen->before = kv::TokensBefore(limits_.policy, chosen->length, limits_.page.page_slots);
    return;
  }
  for (int layer = 0; layer < limits_.shape.layers; ++layer) {
    if (Weighs(*chosen, layer)) chosen->weighed[static_cast<size_t>(layer)] = chosen->length + 1;
  }
  const int64_t leaving = Leaving(*chosen, chosen->length + 2);
  chosen->before += std::exchange(chosen->leaving, leaving);
  ++chosen->length;
}

}  // namespace headway
