#include "engine/evictor.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "engine/step/gather_tokens.h"
#include "engine/step/step_context.h"
#include "kv/policy/eviction_budgets.h"
#include "kv/policy/held_part.h"

namespace headway {

Evictor::Places::Places(const EvictorLimits& limits) {
  const ModelShape& shape = limits.shape;
  slot_stride = limits.head_pages * limits.page.page_slots;
  plain.layers = plain.kv_heads = 1;
  plain.page = limits.page;
  plain.segment_pages = static_cast<int>(limits.head_pages);
  closed = plain;
  closed.page.encoding = limits.encoding;
  rows = RoundUp(FloatBytes(shape.kv_heads * slot_stride), int64_t{4096});
  bytes = rows + plain.slab_bytes() + (closed.encoded() ? closed.slab_bytes() : 0);
}

int64_t Evictor::Bytes(const EvictorLimits& limits) {
  return Places(limits).bytes + PromptWeights::Bytes(limits);
}

int64_t Evictor::HostBytes(const EvictorLimits& limits) { return PromptWeights::HostBytes(limits); }

Result<std::unique_ptr<Evictor>> Evictor::Create(const EvictorParts& parts,
                                                 const EvictorLimits& limits) {
  Result<std::unique_ptr<Buffer>> memory =
      parts.device.Allocate(parts.budget, static_cast<size_t>(Places(limits).bytes), "eviction");
  if (!memory.ok()) return memory.status();
  Result<std::unique_ptr<PromptWeights>> weights = PromptWeights::Create(parts, limits);
  if (!weights.ok()) return weights.status();
  return std::unique_ptr<Evictor>(
      new Evictor(parts, limits, std::move(*memory), std::move(*weights)));
}

Evictor::Evictor(const EvictorParts& parts, const EvictorLimits& limits,
                 std::unique_ptr<Buffer> memory, std::unique_ptr<PromptWeights> weights)
    : parts_(parts),
      limits_(limits),
      places_(limits),
      memory_(std::move(memory)),
      weights_(std::move(weights)) {
  if (parts.communicator != nullptr) sums_.emplace(*parts.communicator);
}

std::vector<int> Evictor::ChosenHere(int layer) const {
  std::vector<int> slots(limits_.heads.In(layer).heads.size());
  std::iota(slots.begin(), slots.end(), 0);
  if (parts_.shared == nullptr) return slots;
  for (const SharedHead& head : parts_.shared->In(layer)) {
    if (!head.first()) std::erase(slots, head.slot);
  }
  return slots;
}

kv::ObservedWeights Evictor::WeightsOf(std::span<const int> slots, OwnWeights* memory) const {
  kv::ObservedWeights weights = weights_->weights();
  if (weights.heads == std::ssize(slots)) return weights;
  const auto only = [&](std::span<const float> all, std::vector<float>* some) {
    const auto row = static_cast<size_t>(weights.tokens);
    for (const int slot : slots) {
      if (all.empty()) break;
      const std::span<const float> of_head = all.subspan(static_cast<size_t>(slot) * row, row);
      some->insert(some->end(), of_head.begin(), of_head.end());
    }
    return std::span<const float>(*some);
  };
  weights.sum = only(weights.sum, &memory->sum);
  weights.max = only(weights.max, &memory->max);
  weights.norms = only(weights.norms, &memory->norms);
  weights.heads = static_cast<int>(slots.size());
  return weights;
}

kv::SharingHeads Evictor::HeadsOf(int layer) {
  kv::SharingHeads heads = {limits_.heads.kv_heads, {}, sums_ ? &*sums_ : nullptr};
  for (const int slot : ChosenHere(layer)) {
    heads.here.push_back(limits_.heads.In(layer).heads[static_cast<size_t>(slot)]);
  }
  return heads;
}

kv::SharingHeads Evictor::HeadsOfAll() {
  const int layers = limits_.shape.layers;
  kv::SharingHeads all = {layers * limits_.heads.kv_heads, {}, sums_ ? &*sums_ : nullptr};
  for (int layer = 0; layer < layers; ++layer) {
    for (const int head : HeadsOf(layer).here) {
      all.here.push_back(layer * limits_.heads.kv_heads + head);
    }
  }
  return all;
}

Result<kv::SequenceId> Evictor::Evict(kv::SequenceId prompt, int at) {
  length_ = parts_.from.Length(prompt);
  at_ = at;
  HEADWAY_CHECK(length_ <= limits_.length);
  Result<kv::SequenceId> kept = parts_.to.CreateKept(length_);
  if (!kept.ok()) return kept;
  if (parts_.demoted != nullptr) parts_.demoted->Begin(*kept);
  Status status = FindBudgets(prompt);
  for (int layer = 0; status.ok() && layer < limits_.shape.layers; ++layer) {
    status = EvictLayer(layer, prompt, *kept);
  }
  // Also after an error: kernels read the prompt, and memory of the evictor.
  const Status done = parts_.compute.Synchronize();
  if (status.ok()) status = done;
  if (status.ok()) return kept;
  Forget(*kept);
  parts_.to.Drop(*kept);
  return status;
}

Status Evictor::FindBudgets(kv::SequenceId prompt) {
  const kv::EvictionPolicy& policy = limits_.policy;
  const ModelShape& shape = limits_.shape;
  budgets_ = kv::HeadBudgets(policy, shape.layers, limits_.heads.kv_heads, length_);
  if (!policy.spans_layers() || !weights_->Saw(prompt, length_)) return OkStatus();
  std::vector<float> scores;
  scores.reserve(budgets_.size() * static_cast<size_t>(length_));
  for (int layer = 0; layer < shape.layers; ++layer) {
    if (Status s = weights_->Weigh(layer, length_, {}); !s.ok()) return s;
    if (Status s = parts_.compute.Synchronize(); !s.ok()) return s;
    OwnWeights memory;
    const std::span<const float> of_layer = WeightsOf(ChosenHere(layer), &memory).sum;
    scores.insert(scores.end(), of_layer.begin(), of_layer.end());
  }
  const int slots = limits_.page.page_slots;
  const kv::SharingHeads all = HeadsOfAll();
  const Result<std::vector<int64_t>> shared =
      kv::BudgetsOverLayers(policy, scores, length_, length_ / slots * slots, all);
  if (!shared.ok()) return shared.status();
  for (size_t i = 0; i < all.here.size(); ++i) {
    budgets_[static_cast<size_t>(all.here[i])] = (*shared)[i];
  }
  return OkStatus();
}

Result<std::vector<kv::KeptOfHead>> Evictor::Choose(int layer, kv::SequenceId from, int64_t closed,
                                                    std::span<const std::vector<KeyRun>> keys) {
  const std::vector<int> slots = ChosenHere(layer);
  const kv::SharingHeads heads = HeadsOf(layer);
  kv::EvictionPolicy policy = limits_.policy;
  kv::ObservedWeights weights;
  weights.heads = static_cast<int>(slots.size());
  weights.tokens = length_;
  OwnWeights memory;
  const bool seen = policy.scores() && weights_->Saw(from, length_);
  if (seen) {
    if (Status s = weights_->Weigh(layer, length_, keys); !s.ok()) return s;
  } else {
    if (policy.scores()) policy.sink = 0;  // of a synthetic prompt nothing is known
    policy.method = kv::EvictionMethod::kStreaming;
  }
  // The slots of the layer before have come to the device, too.
  if (Status s = parts_.compute.Synchronize(); !s.ok()) return s;
  if (seen) weights = WeightsOf(slots, &memory);
  const std::span<const int64_t> budgets(BudgetOf(layer, 0), static_cast<size_t>(heads.all));
  Result<std::vector<kv::KeptOfHead>> chosen =
      kv::ChooseKept(policy, weights, closed, budgets, limits_.page.page_slots, heads);
  if (!chosen.ok() || parts_.shared == nullptr) return chosen;
  std::vector<kv::KeptOfHead> kept(limits_.heads.In(layer).heads.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    kept[static_cast<size_t>(slots[i])] = std::move((*chosen)[i]);
  }
  if (Status s = TellHolders(layer, closed, &kept); !s.ok()) return s;
  return kept;
}

// Of each shared head a word is its budget, and a bit of others whether it keeps a token. What the
// first holder says is added to the zeros of all others.
Status Evictor::TellHolders(int layer, int64_t closed, std::vector<kv::KeptOfHead>* kept) {
  if (!parts_.shared->AnyIn(layer)) return OkStatus();
  constexpr int64_t kBits = 63;  // so that sums stay in a word
  const int64_t words = 1 + CeilDiv(closed, kBits);
  std::vector<int64_t> told(static_cast<size_t>(limits_.heads.kv_heads * words));
  const auto word_of = [&](const SharedHead& shared, int64_t word) -> int64_t& {
    const int head = limits_.heads.In(layer).heads[static_cast<size_t>(shared.slot)];
    return told[static_cast<size_t>(head * words + word)];
  };
  for (const SharedHead& shared : parts_.shared->In(layer)) {
    if (!shared.first()) continue;
    const kv::KeptOfHead& own = (*kept)[static_cast<size_t>(shared.slot)];
    word_of(shared, 0) = own.budget;
    for (const int32_t position : own.positions) {
      word_of(shared, 1 + position / kBits) |= int64_t{1} << (position % kBits);
    }
  }
  if (Status s = sums_->AddUp(std::span<int64_t>(told)); !s.ok()) return s;
  for (const SharedHead& shared : parts_.shared->In(layer)) {
    kv::KeptOfHead& own = (*kept)[static_cast<size_t>(shared.slot)];
    own = {{}, word_of(shared, 0)};
    for (int64_t position = 0; position < closed; ++position) {
      if ((word_of(shared, 1 + position / kBits) >> (position % kBits) & 1) == 0) continue;
      own.positions.push_back(static_cast<int32_t>(position));
    }
  }
  return OkStatus();
}

kv::KeptTokens Evictor::PartOf(int layer, int slot, std::vector<int32_t> positions) const {
  if (parts_.shared == nullptr) return {std::move(positions)};
  for (const SharedHead& shared : parts_.shared->In(layer)) {
    if (shared.slot != slot) continue;
    const int64_t slots = limits_.page.page_slots;
    const int head = limits_.heads.In(layer).heads[static_cast<size_t>(slot)];
    const kv::HeldPart part = kv::HeldPartOf(limits_.heads.split, shared.holders, shared.own,
                                             {head, at_}, std::ssize(positions) / slots);
    return {{positions.begin() + part.first * slots, positions.begin() + part.last * slots},
            part.grows};
  }
  return {std::move(positions)};
}

Status Evictor::EvictLayer(int layer, kv::SequenceId from, kv::SequenceId to) {
  const std::vector<int>& own = limits_.heads.In(layer).heads;
  const int slots = limits_.shape.kv_heads;
  std::vector<std::vector<KeyRun>> keys;
  for (int head = 0; head < slots; ++head) {
    Result<std::vector<KeyRun>> runs = parts_.from.KeysOf(from, layer, head);
    if (!runs.ok()) return runs.status();
    keys.push_back(std::move(*runs));
  }
  Result<std::vector<kv::KeptOfHead>> kept = Choose(layer, from, keys[0].back().position, keys);
  if (!kept.ok()) return kept.status();
  if (parts_.demoted != nullptr) Demote(to, layer, keys, *kept);
  slots_.clear();
  slots_.reserve(own.size() * static_cast<size_t>(places_.slot_stride));  // copies read them
  for (int head = 0; head < slots; ++head) {
    const auto at = static_cast<size_t>(head);
    kv::KeptTokens tokens;  // none of zeros
    if (at < own.size()) {
      *BudgetOf(layer, own[at]) = (*kept)[at].budget;
      tokens = PartOf(layer, head, std::move((*kept)[at].positions));
    }
    if (Status s = KeepHead(layer, head, to, keys[at], std::move(tokens)); !s.ok()) return s;
    parts_.from.FinishKeys(from, layer, head);
  }
  return OkStatus();
}

void Evictor::Demote(kv::SequenceId to, int layer, std::span<const std::vector<KeyRun>> keys,
                     std::vector<kv::KeptOfHead> kept) {
  const int64_t closed = keys[0].back().position;
  std::vector<int32_t> all(static_cast<size_t>(closed));
  std::iota(all.begin(), all.end(), 0);
  kept.resize(keys.size(), {all, 0});
  parts_.demoted->Hold(to, layer, keys, kept, closed);
}

kv::ClosedRows Evictor::Close(int pages) {
  const kv::CacheFormat& plain = places_.plain;
  const kv::CacheFormat& closed = places_.closed;
  std::byte* const rows = memory_->data() + places_.rows;
  if (!closed.encoded()) return {rows, plain.head_stride(), nullptr};
  std::byte* const codes = rows + plain.slab_bytes();
  if (pages > 0) {
    const EncodePagesItem item = {.from = kv::RunIn(plain, rows, 0, pages),
                                  .to = kv::RunIn(closed, codes, 0, pages),
                                  .unfit = parts_.to.unfit()};
    parts_.kernels.EncodePages(parts_.compute, closed.page, {&item, 1});
  }
  return {codes, closed.head_stride(), codes + closed.ParamOffset(0)};
}

Status Evictor::KeepHead(int layer, int head, kv::SequenceId to, std::span<const KeyRun> keys,
                         kv::KeptTokens tokens) {
  const std::vector<int32_t>& positions = tokens.positions;
  std::byte* const rows = memory_->data() + places_.rows;
  auto* const slots =
      reinterpret_cast<int32_t*>(memory_->data() + places_.slots) + head * places_.slot_stride;
  HEADWAY_CHECK(std::ssize(positions) <= places_.slot_stride);
  const auto first_slot = std::ssize(slots_);
  std::vector<GatherSlotsItem> items;
  GatherTokens(keys.first(keys.size() - 1), positions, slots, kv::RunIn(places_.plain, rows, 0, 0),
               &slots_, &items);
  if (!positions.empty()) {
    parts_.compute.Copy(reinterpret_cast<std::byte*>(slots),
                        reinterpret_cast<const std::byte*>(slots_.data() + first_slot),
                        positions.size() * sizeof(int32_t));
    parts_.kernels.GatherSlots(parts_.compute, limits_.page, items);
  }
  const kv::ClosedRows closed =
      Close(static_cast<int>(std::ssize(positions) / limits_.page.page_slots));
  if (Status s = parts_.to.Keep(to, layer, head, std::move(tokens), closed); !s.ok()) return s;
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
