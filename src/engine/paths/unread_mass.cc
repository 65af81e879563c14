#include "engine/paths/unread_mass.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "engine/step/step_context.h"
#include "kernels/selection_bound.h"

namespace headway {
namespace {

constexpr float kRead = -std::numeric_limits<float>::infinity();

int64_t MostHeads(const UnreadMass::Limits& limits) {
  return limits.entries * limits.shape.kv_heads;
}
int64_t MostBlocks(const UnreadMass::Limits& limits) {
  return MostHeads(limits) * selection::kBoundSamples;
}

// A block lies in one page, and is decoded to a page of its own.
int64_t DecodedTokens(const UnreadMass::Limits& limits) {
  return std::max(MostBlocks(limits) * limits.page.page_slots, MostHeads(limits) * limits.near);
}

int64_t FloatsOf(const UnreadMass::Limits& limits) {
  const int64_t group = limits.shape.group(), slots = kv::BoundSlots(limits.page.page_slots);
  return MostBlocks(limits) * (group * slots + group + slots) +
         MostHeads(limits) * (group * limits.near + group + limits.near);
}

// ln(e^a + e^b).
float SumOf(float a, float b) {
  const float top = std::max(a, b);
  if (top == kRead) return top;
  return top + std::log(std::exp(a - top) + std::exp(b - top));
}

}  // namespace

int64_t UnreadMass::Bytes(const Limits& limits) {
  return KeyLogits::Bytes(limits.page, DecodedTokens(limits)) +
         FloatsOf(limits) * int64_t{sizeof(float)};
}

UnreadMass::UnreadMass(const Limits& limits, Kernels& kernels, Stream& stream, std::byte* memory)
    : limits_(limits),
      slots_(kv::BoundSlots(limits.page.page_slots)),
      stream_(stream),
      kernels_(kernels),
      key_logits_(kernels, stream, limits.page, memory, DecodedTokens(limits)),
      logits_(
          reinterpret_cast<float*>(memory + KeyLogits::Bytes(limits.page, DecodedTokens(limits)))),
      masses_(logits_ + MostBlocks(limits) * Logits()),
      sums_(masses_ + MostBlocks(limits) * limits.shape.group()),
      near_logits_(sums_ + MostBlocks(limits) * slots_),
      near_masses_(near_logits_ + MostHeads(limits) * limits.shape.group() * limits.near),
      near_sums_(near_masses_ + MostHeads(limits) * limits.shape.group()) {}

KeyLogitsItem UnreadMass::ItemFor(const Head& head, const KeyRun& keys) const {
  KeyLogitsItem item;
  item.q = head.q;
  item.q_stride = int64_t{limits_.shape.group()} * limits_.shape.head_dim;
  item.rows = 1;
  item.q_position = head.position;
  item.keys = keys;
  return item;
}

// The masses of the keys that are not before the window.
void UnreadMass::WeighNear(std::span<const Head> heads) {
  const int group = limits_.shape.group();
  std::vector<KeyLogitsItem> logits;
  std::vector<KeyWeightsItem> weights;
  for (size_t i = 0; i < heads.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    std::fill_n(near_masses_ + at * group, group, kRead);
    KeyWeightsItem weigh;
    weigh.logits = near_logits_ + at * group * limits_.near;
    weigh.stride = limits_.near;
    weigh.rows = group;
    weigh.sum = near_sums_ + at * limits_.near;
    weigh.row_lse = near_masses_ + at * group;
    for (const KeyRun& keys : heads[i].keys->near) {
      KeyLogitsItem item = ItemFor(heads[i], keys);
      item.logits = near_logits_ + at * group * limits_.near + weigh.columns;
      item.stride = limits_.near;
      logits.push_back(item);
      weigh.columns += keys.pages.count;
    }
    HEADWAY_CHECK(weigh.columns <= limits_.near);
    if (weigh.columns > 0) weights.push_back(weigh);
  }
  if (weights.empty()) return;
  key_logits_.Run(group, AttentionScale(limits_.shape), logits);
  kernels_.KeyWeights(stream_, weights);
}

// The masses of all sampled blocks of these heads, one behind the other.
void UnreadMass::WeighBlocks(std::span<const Head> heads) {
  const int group = limits_.shape.group();
  std::vector<KeyLogitsItem> logits;
  std::vector<KeyWeightsItem> weights;
  for (const Head& head : heads) {
    for (const UnreadKeys::Block& block : head.keys->sample) {
      const int64_t at = std::ssize(weights);
      KeyLogitsItem& item = logits.emplace_back(ItemFor(head, block.keys));
      item.logits = logits_ + at * Logits();
      item.stride = slots_;
      KeyWeightsItem& weigh = weights.emplace_back();
      weigh.logits = item.logits;
      weigh.stride = slots_;
      weigh.rows = group;
      weigh.columns = slots_;
      weigh.sum = sums_ + at * slots_;
      weigh.row_lse = masses_ + at * group;
    }
  }
  HEADWAY_CHECK(std::ssize(weights) <= MostBlocks(limits_));
  if (weights.empty()) return;
  key_logits_.Run(group, AttentionScale(limits_.shape), logits);
  // Keys of a block that are read have no part in its mass.
  float* of_block = logits_;
  for (const Head& head : heads) {
    for (const UnreadKeys::Block& block : head.keys->sample) {
      for (int64_t i = 0; i < Logits(); ++i) {
        if ((block.unread >> (i % slots_) & 1) == 0) of_block[i] = kRead;
      }
      of_block += Logits();
    }
  }
  kernels_.KeyWeights(stream_, weights);
}

std::vector<bool> UnreadMass::LeaveTooMuch(std::span<const Head> heads) {
  HEADWAY_CHECK(std::ssize(heads) <= MostHeads(limits_));
  WeighBlocks(heads);
  WeighNear(heads);
  const int group = limits_.shape.group();
  std::vector<bool> too_much;
  std::vector<kv::UnreadBlock> sample;
  const float *masses = masses_, *near = near_masses_;
  for (const Head& head : heads) {
    const auto blocks = std::ssize(head.keys->sample);
    bool holds = true;
    for (int member = 0; holds && member < group; ++member) {
      sample.clear();
      for (int64_t i = 0; i < blocks; ++i) {
        sample.push_back(
            {head.keys->sample[static_cast<size_t>(i)].stratum, masses[i * group + member]});
      }
      const float read = SumOf(head.lse[member], near[member]);
      holds = kv::BoundHolds(limits_.bound, head.keys->blocks, read, sample);
    }
    near += group;
    too_much.push_back(!holds);
    masses += blocks * group;
  }
  return too_much;
}

}  // namespace headway
