#include "engine/step/demoted.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "engine/step/gather_tokens.h"
#include "engine/step/step_context.h"

namespace headway {
namespace {

constexpr const SummaryFormat& kSummary = kv::DemotionPolicy::kSummary;
// Where the tokens and the summaries of a head begin.
constexpr int64_t kLine = 256;
// Pages that are encoded at a time.
constexpr int64_t kRoundPages = 64;

// Of K, or of V.
int64_t PageBytes(const DemotedLimits& limits) {
  return static_cast<int64_t>(limits.page.closed_bytes());
}

// Of the parameters of both.
int64_t ParamStride(const DemotedLimits& limits) {
  return limits.encoded() ? RoundUp(ParamBytes(limits.page), 16) : 0;
}

int64_t PageBlocks(const DemotedLimits& limits) {
  return limits.page.page_slots / kSummary.block_slots;
}

int64_t Tables(const DemotedLimits& limits) {
  return int64_t{limits.shape.layers} * limits.shape.kv_heads;
}

// Of a sequence, at most.
int64_t TokenBytesOf(const DemotedLimits& limits) {
  return limits.pages * (2 * PageBytes(limits) + ParamStride(limits)) + Tables(limits) * kLine;
}

int64_t SummaryBytesOf(const DemotedLimits& limits) {
  return RoundUp(limits.pages * PageBlocks(limits) * kSummary.bytes(limits.page.head_dim), kLine) +
         Tables(limits) * kLine;
}

}  // namespace

Demoted::Places::Places(const DemotedLimits& limits) {
  const auto take = [this](int64_t count) {
    return std::exchange(bytes, bytes + RoundUp(count * int64_t{sizeof(int32_t)}, kLine));
  };
  const int64_t tables = limits.sequences * Tables(limits);
  lists = take(tables * limits.policy.blocks());
  counts = take(tables);
  slots = take(limits.shape.kv_heads * limits.length);
  rows = bytes;
  if (limits.encoded()) bytes += kRoundPages * 2 * static_cast<int64_t>(limits.plain().bytes());
}

int64_t Demoted::DeviceBytes(const DemotedLimits& limits) { return Places(limits).bytes; }

int64_t Demoted::SummaryBytes(const DemotedLimits& limits) {
  return limits.sequences * SummaryBytesOf(limits);
}

int64_t Demoted::HostBytes(const DemotedLimits& limits) {
  return limits.sequences * RoundUp(TokenBytesOf(limits), kLine);
}

Result<std::unique_ptr<Demoted>> Demoted::Create(const DemotedParts& parts,
                                                 const DemotedLimits& limits) {
  Result<std::unique_ptr<Buffer>> memory = parts.device.Allocate(
      parts.budget, static_cast<size_t>(DeviceBytes(limits)), "lists of demoted tokens");
  if (!memory.ok()) return memory.status();
  Result<std::unique_ptr<Buffer>> summaries =
      parts.device.Allocate(parts.summary_budget, static_cast<size_t>(SummaryBytes(limits)),
                            "summaries of demoted tokens");
  if (!summaries.ok()) return summaries.status();
  Result<std::unique_ptr<Buffer>> tokens = parts.device.AllocateHost(
      parts.host_budget, static_cast<size_t>(HostBytes(limits)), "demoted tokens");
  if (!tokens.ok()) return tokens.status();
  return std::unique_ptr<Demoted>(
      new Demoted(parts, limits, std::move(*memory), std::move(*summaries), std::move(*tokens)));
}

Demoted::Demoted(const DemotedParts& parts, const DemotedLimits& limits,
                 std::unique_ptr<Buffer> memory, std::unique_ptr<Buffer> summaries,
                 std::unique_ptr<Buffer> tokens)
    : parts_(parts),
      limits_(limits),
      places_(limits),
      memory_(std::move(memory)),
      summaries_(std::move(summaries)),
      tokens_(std::move(tokens)),
      held_(static_cast<size_t>(limits.sequences)) {
  for (size_t i = 0; i < held_.size(); ++i) held_[i].place = static_cast<int>(i);
  slots_.reserve(static_cast<size_t>(limits.shape.kv_heads * limits.length));  // copies read them
}

Demoted::Held* Demoted::Find(kv::SequenceId sequence) {
  for (Held& held : held_) {
    if (held.sequence == sequence) return &held;
  }
  return nullptr;
}

void Demoted::Begin(kv::SequenceId sequence) {
  Held* const held = Find(-1);
  HEADWAY_CHECK(held != nullptr);  // the store has as many sequences at most
  const int place = held->place;
  *held = Held();
  held->place = place;
  held->sequence = sequence;
}

void Demoted::Forget(kv::SequenceId sequence) {
  if (Held* const held = Find(sequence); held != nullptr) held->sequence = -1;
}

int64_t Demoted::bytes() const {
  int64_t bytes = 0;
  for (const Held& held : held_) bytes += held.sequence < 0 ? 0 : held.token_bytes;
  return bytes;
}

void Demoted::Stepped(const BatchEntry& rows, bool chose, Held* held) {
  if (chose) held->made = rows.decode ? rows.position : -1;
  if (!rows.decode) return;
  ++reads_.steps;
  reads_.choices += chose ? 1 : 0;
  const int64_t block = 2 * PageBytes(limits_) / PageBlocks(limits_);
  for (const Held::Head& head : held->heads) {
    reads_.bytes += std::min(head.blocks, capacity()) * block;
  }
}

PageRun Demoted::PagesOf(const Held& held, int layer, int head) const {
  const Held::Head& of = HeadOf(held, layer, head);
  const int64_t pages = of.blocks / PageBlocks(limits_);
  PageRun run;
  run.k = tokens_->data() + held.place * RoundUp(TokenBytesOf(limits_), kLine) + of.tokens_at;
  run.v = run.k + pages * PageBytes(limits_);
  run.page_stride = PageBytes(limits_);
  run.count = pages * limits_.page.page_slots;
  if (limits_.encoded()) {
    run.params = run.v + pages * PageBytes(limits_);
    run.params_page_stride = ParamStride(limits_);
  }
  return run;
}

SegmentPlace Demoted::PlaceOf(const Held& held, int layer, int head) const {
  SegmentPlace place;
  place.slab = PagesOf(held, layer, head).k;
  place.summary = summaries_->data() + held.place * SummaryBytesOf(limits_) +
                  HeadOf(held, layer, head).summaries_at;
  return place;
}

BlockedKeys Demoted::KeysOf(int heads, int64_t blocks) const {
  BlockedKeys keys;
  keys.heads = heads;
  keys.blocks = keys.segment_blocks = blocks;
  keys.page_stride = PageBytes(limits_);
  keys.v_offset = blocks / PageBlocks(limits_) * PageBytes(limits_);
  keys.params_offset = 2 * keys.v_offset;
  keys.params_page_stride = ParamStride(limits_);
  keys.codes_head_stride = blocks * kSummary.code_bytes(limits_.page.head_dim);
  keys.scales_offset = keys.codes_head_stride;
  keys.scales_head_stride = 2 * blocks;
  return keys;
}

int32_t* Demoted::ListsOf(const Held& held, int layer) const {
  return reinterpret_cast<int32_t*>(memory_->data() + places_.lists) +
         TableOf(held, layer) * capacity();
}

int32_t* Demoted::CountsOf(const Held& held, int layer) const {
  return reinterpret_cast<int32_t*>(memory_->data() + places_.counts) + TableOf(held, layer);
}

void Demoted::Hold(kv::SequenceId sequence, int layer, std::span<const std::vector<KeyRun>> keys,
                   std::span<const kv::KeptOfHead> kept, int64_t closed) {
  Held& held = *Find(sequence);
  slots_.clear();
  gathers_.clear();
  summaries_of_.clear();
  for (int head = 0; head < limits_.shape.kv_heads; ++head) {
    const auto at = static_cast<size_t>(head);
    const std::vector<int32_t> let_go = kv::LetGoOf(kept[at].positions, closed);
    HEADWAY_CHECK(std::ssize(let_go) % limits_.page.page_slots == 0);
    const int64_t pages = std::ssize(let_go) / limits_.page.page_slots;
    held.heads.push_back({pages * PageBlocks(limits_), held.token_bytes, held.summary_bytes});
    held.token_bytes += RoundUp(pages * (2 * PageBytes(limits_) + ParamStride(limits_)), kLine);
    held.summary_bytes +=
        RoundUp(pages * PageBlocks(limits_) * kSummary.bytes(limits_.page.head_dim), kLine);
    HEADWAY_CHECK(held.token_bytes <= TokenBytesOf(limits_) &&
                  held.summary_bytes <= SummaryBytesOf(limits_));
    if (limits_.encoded()) {
      for (int64_t page = 0; page < pages; page += kRoundPages) {
        Encode(held, layer, head, keys[at], let_go, page);
      }
    } else if (pages > 0) {
      const PageRun run = PagesOf(held, layer, head);
      GatherTokens(keys[at], let_go, slots() + slots_.size(), run, &slots_, &gathers_);
      summaries_of_.push_back(SummaryOf(held, layer, head, run, 0));
    }
  }
  RunGathers();
}

// What is enqueued for some heads, or some pages of one.
void Demoted::RunGathers() {
  if (gathers_.empty()) return;
  const auto first = gathers_[0].slots - slots();
  parts_.compute.Copy(reinterpret_cast<std::byte*>(slots() + first),
                      reinterpret_cast<const std::byte*>(slots_.data() + first),
                      (slots_.size() - static_cast<size_t>(first)) * sizeof(int32_t));
  parts_.kernels.GatherSlots(parts_.compute, limits_.plain(), gathers_);
  parts_.kernels.Summarize(parts_.compute, limits_.plain(), kSummary, summaries_of_);
  gathers_.clear();
  summaries_of_.clear();
}

// Pages of a head from `first` on go through memory of the device, where they are summarised as
// they were computed.
void Demoted::Encode(const Held& held, int layer, int head, std::span<const KeyRun> keys,
                     std::span<const int32_t> let_go, int64_t first) {
  const PageFormat plain = limits_.plain();
  const auto page_bytes = static_cast<int64_t>(plain.bytes());
  const auto slots_of_page = static_cast<int64_t>(plain.page_slots);
  EncodePagesItem item;
  item.to = PagesOf(held, layer, head);
  item.to.count = std::min(kRoundPages * slots_of_page, item.to.count - first * slots_of_page);
  item.to.k += first * item.to.page_stride;
  item.to.v += first * item.to.page_stride;
  item.to.params += first * item.to.params_page_stride;
  item.from.k = memory_->data() + places_.rows;
  item.from.v = item.from.k + kRoundPages * page_bytes;
  item.from.page_stride = page_bytes;
  item.from.count = item.to.count;
  GatherTokens(keys,
               let_go.subspan(static_cast<size_t>(first * slots_of_page),
                              static_cast<size_t>(item.to.count)),
               slots() + slots_.size(), item.from, &slots_, &gathers_);
  summaries_of_.push_back(SummaryOf(held, layer, head, item.from, first * PageBlocks(limits_)));
  RunGathers();
  parts_.kernels.EncodePages(parts_.compute, limits_.page, {&item, 1});
}

// Of a head's blocks from `first` on, whose keys these are.
SummarizeItem Demoted::SummaryOf(const Held& held, int layer, int head, const PageRun& keys,
                                 int64_t first) const {
  const BlockedKeys lie = KeysOf(1, HeadOf(held, layer, head).blocks);
  auto* const summary = const_cast<std::byte*>(PlaceOf(held, layer, head).summary);
  SummarizeItem item;
  item.keys = keys;
  item.codes = summary + first * kSummary.code_bytes(limits_.page.head_dim);
  item.scales = reinterpret_cast<float*>(summary + lie.scales_offset) + 2 * first;
  item.codes_head_stride = lie.codes_head_stride;
  item.scales_head_stride = lie.scales_head_stride;
  return item;
}

}  // namespace headway
