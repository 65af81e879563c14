#include "engine/evictor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace headway {
Evictor::Places::Places(const EvictorLimits& limits) {
  const ModelShape& shape = limits.shape;
  const int64_t slots_of_page = limits.page.page_slots;
  const kv::KeptBounds kept = kv::KeptBoundsOf(limits.policy, shape.layers, shape.kv_heads,
                                               limits.length, limits.page.page_slots);
  const int64_t rows = limits.policy.observes() ? limits.policy.window * shape.group() : 0;
  const int64_t columns = rows == 0 ? 0 : shape.kv_heads * limits.length;
  const auto take = [this](int64_t of) { return std::exchange(bytes, bytes + of); };
  sums = take(FloatBytes(columns));
  maxima = take(FloatBytes(columns));
  result_bytes = bytes;
  row_lse = take(FloatBytes(rows));
  slot_stride = kept.head_pages * slots_of_page;
  slots = take(FloatBytes(shape.kv_heads * slot_stride));
  plain.layers = plain.kv_heads = 1;
  plain.page = limits.page;
  plain.segment_pages = static_cast<int>(kept.head_pages);
  closed = plain;
  closed.page.encoding = limits.encoding;
  bytes = RoundUp(bytes, int64_t{4096});
  const int64_t encoded = closed.encoded() ? closed.slab_bytes() : 0;
  scratch = take(std::max(FloatBytes(rows * limits.length), plain.slab_bytes() + encoded));
}

int64_t Evictor::Bytes(const EvictorLimits& limits) { return Places(limits).bytes; }

int64_t Evictor::HostBytes(const EvictorLimits& limits) {
  return limits.host_reads_device ? 0 : Places(limits).result_bytes;
}

Result<std::unique_ptr<Evictor>> Evictor::Create(const EvictorParts& parts,
                                                 const EvictorLimits& limits) {
  const Places places(limits);
  Result<std::unique_ptr<Buffer>> memory =
      parts.device.Allocate(parts.budget, static_cast<size_t>(places.bytes), "eviction");
  if (!memory.ok()) return memory.status();
  std::unique_ptr<Buffer> host_memory;
  if (const int64_t bytes = HostBytes(limits); bytes > 0) {
    Result<std::unique_ptr<Buffer>> made =
        parts.device.AllocateHost(parts.host_budget, static_cast<size_t>(bytes), "eviction");
    if (!made.ok()) return made.status();
    host_memory = std::move(*made);
  }
  return std::unique_ptr<Evictor>(
      new Evictor(parts, limits, std::move(*memory), std::move(host_memory)));
}

Evictor::Evictor(const EvictorParts& parts, const EvictorLimits& limits,
                 std::unique_ptr<Buffer> memory, std::unique_ptr<Buffer> host_memory)
    : parts_(parts),
      limits_(limits),
      places_(limits),
      memory_(std::move(memory)),
      host_memory_(std::move(host_memory)) {}

Result<kv::SequenceId> Evictor::Evict(kv::SequenceId prompt) {
  length_ = parts_.from.Length(prompt);
  HEADWAY_CHECK(length_ <= limits_.length);
  Result<kv::SequenceId> kept = parts_.to.CreateKept(length_);
  if (!kept.ok()) return kept;
  const std::vector<int64_t> budgets =
      kv::LayerBudgets(limits_.policy, limits_.shape.layers, length_);
  Status status;
  for (int layer = 0; status.ok() && layer < limits_.shape.layers; ++layer) {
    status = EvictLayer(layer, prompt, *kept, budgets[static_cast<size_t>(layer)]);
  }
  // Also after an error: kernels read the prompt, and memory of the evictor.
  const Status done = parts_.compute.Synchronize();
  if (status.ok()) status = done;
  if (status.ok()) return kept;
  parts_.to.Drop(*kept);
  return status;
}

Status Evictor::EvictLayer(int layer, kv::SequenceId from, kv::SequenceId to, int64_t budget) {
  const int heads = limits_.shape.kv_heads;
  std::vector<std::vector<KeyRun>> keys;
  for (int head = 0; head < heads; ++head) {
    Result<std::vector<KeyRun>> runs = parts_.from.KeysOf(from, layer, head);
    if (!runs.ok()) return runs.status();
    keys.push_back(std::move(*runs));
  }
  queries_ = 0;
  kv::EvictionPolicy policy = limits_.policy;
  if (policy.observes() && parts_.executor.observed().EndOf(from, length_)) {
    Observe(layer, keys);
  } else {
    if (policy.observes()) policy.sink = 0;  // of a synthetic prompt nothing is observed
    policy.method = kv::EvictionMethod::kStreaming;
  }
  // The slots of the layer before have come to the device, too.
  if (Status s = parts_.compute.Synchronize(); !s.ok()) return s;
  const int64_t closed = keys[0].back().position;
  const std::vector<std::vector<int32_t>> kept =
      kv::ChooseKept(policy, Observed(), closed, budget, limits_.page.page_slots);
  slots_.clear();
  slots_.reserve(static_cast<size_t>(heads * places_.slot_stride));  // copies read them
  for (int head = 0; head < heads; ++head) {
    const auto at = static_cast<size_t>(head);
    if (Status s = KeepHead(layer, head, to, keys[at], kept[at]); !s.ok()) return s;
    parts_.from.FinishKeys(from, layer, head);
  }
  return OkStatus();
}

void Evictor::Observe(int layer, std::span<const std::vector<KeyRun>> keys) {
  const ModelShape& shape = limits_.shape;
  const int group = shape.group();
  const auto floats = [&](int64_t at) { return reinterpret_cast<float*>(memory_->data() + at); };
  float* const logits = floats(places_.scratch);
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  for (int head = 0; head < shape.kv_heads; ++head) {
    std::vector<KeyLogitsItem> items;
    int64_t row = 0;
    for (const ObservedQueries::Run& run : parts_.executor.observed().Of(layer)) {
      if (run.rows == 0) continue;
      for (const KeyRun& range : keys[static_cast<size_t>(head)]) {
        if (range.pages.count == 0) continue;
        KeyLogitsItem item;
        const int64_t element = int64_t{head} * group * shape.head_dim;
        item.q = run.q + element * static_cast<int64_t>(DTypeBytes(limits_.activation_dtype));
        item.q_stride = int64_t{shape.query_heads} * shape.head_dim;
        item.rows = run.rows;
        item.q_position = run.position;
        item.keys = range;
        item.logits = logits + row * group * length_ + range.position;
        item.stride = length_;
        items.push_back(item);
      }
      row += run.rows;
    }
    queries_ = row * group;
    parts_.kernels.KeyLogits(parts_.compute, limits_.page, group, scale, items);
    const KeyWeightsItem weights = {.logits = logits,
                                    .stride = length_,
                                    .rows = queries_,
                                    .columns = length_,
                                    .sum = floats(places_.sums) + head * length_,
                                    .max = floats(places_.maxima) + head * length_,
                                    .row_lse = floats(places_.row_lse)};
    parts_.kernels.KeyWeights(parts_.compute, {&weights, 1});
  }
  if (host_memory_ == nullptr) return;
  for (const int64_t at : {places_.sums, places_.maxima}) {
    parts_.compute.Copy(host_memory_->data() + at, memory_->data() + at,
                        static_cast<size_t>(shape.kv_heads * length_) * sizeof(float));
  }
}

kv::ObservedWeights Evictor::Observed() const {
  kv::ObservedWeights observed;
  observed.heads = limits_.shape.kv_heads;
  observed.tokens = length_;
  observed.queries = queries_;
  if (queries_ == 0) return observed;
  const std::byte* const data = (host_memory_ == nullptr ? *memory_ : *host_memory_).data();
  const auto all = static_cast<size_t>(observed.heads * length_);
  observed.sum = {reinterpret_cast<const float*>(data + places_.sums), all};
  observed.max = {reinterpret_cast<const float*>(data + places_.maxima), all};
  return observed;
}

kv::ClosedRows Evictor::Close(int pages) {
  const kv::CacheFormat& plain = places_.plain;
  const kv::CacheFormat& closed = places_.closed;
  std::byte* const rows = memory_->data() + places_.scratch;
  if (!closed.encoded()) return {rows, plain.head_stride(), nullptr};
  std::byte* const codes = rows + plain.slab_bytes();
  if (pages > 0) {
    const EncodePagesItem item = {.from = kv::RunIn(plain, rows, 0, pages),
                                  .to = kv::RunIn(closed, codes, 0, pages)};
    parts_.kernels.EncodePages(parts_.compute, closed.page, {&item, 1});
  }
  return {codes, closed.head_stride(), codes + closed.ParamOffset(0)};
}

Status Evictor::KeepHead(int layer, int head, kv::SequenceId to, std::span<const KeyRun> keys,
                         const std::vector<int32_t>& positions) {
  std::byte* const rows = memory_->data() + places_.scratch;
  auto* const slots =
      reinterpret_cast<int32_t*>(memory_->data() + places_.slots) + head * places_.slot_stride;
  HEADWAY_CHECK(std::ssize(positions) <= places_.slot_stride);
  const auto first_slot = std::ssize(slots_);
  std::vector<GatherSlotsItem> items;
  auto next = positions.begin();
  for (const KeyRun& range : keys.first(keys.size() - 1)) {
    const auto end = std::lower_bound(next, positions.end(), range.position + range.pages.count);
    if (next == end) continue;
    const int64_t at = next - positions.begin();
    GatherSlotsItem item;
    item.from = range.pages;
    item.slots = slots + at;
    item.count = end - next;
    item.to = kv::RunIn(places_.plain, rows, static_cast<int>(at / limits_.page.page_slots), 0);
    item.to.first_slot = at % limits_.page.page_slots;
    item.to.count = item.count;
    for (; next != end; ++next) slots_.push_back(static_cast<int32_t>(*next - range.position));
    items.push_back(item);
  }
  HEADWAY_CHECK(next == positions.end());
  if (!positions.empty()) {
    parts_.compute.Copy(reinterpret_cast<std::byte*>(slots),
                        reinterpret_cast<const std::byte*>(slots_.data() + first_slot),
                        positions.size() * sizeof(int32_t));
    parts_.kernels.GatherSlots(parts_.compute, limits_.page, items);
  }
  const kv::ClosedRows closed =
      Close(static_cast<int>(std::ssize(positions) / limits_.page.page_slots));
  if (Status s = parts_.to.Keep(to, layer, head, positions, closed); !s.ok()) return s;
  const PageRun& tail = keys.back().pages;
  const PageRun open = parts_.to.OpenPageOf(to, layer, head);
  const auto bytes = static_cast<size_t>(tail.count) * DTypeBytes(limits_.page.dtype) *
                     static_cast<size_t>(limits_.page.head_dim);
  if (bytes == 0) return OkStatus();
  parts_.compute.Copy(open.k, tail.k, bytes);
  parts_.compute.Copy(open.v, tail.v, bytes);
  return OkStatus();
}

}  // namespace headway
