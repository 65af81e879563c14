#include "engine/paths/host_attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/env.h"
#include "device/cpu/cpu_device.h"
#include "headway/refusal.h"
#include "kernels/cost.h"
#include "kernels/items.h"

namespace headway {
namespace {

// How a head's keys of a layer are cut into tasks: the last quarter into short pieces, the others
// into long ones; those that fit one long piece stay together. A piece has at least `least` keys,
// and `most` would do for a whole sequence: so cores end together but for the time of a short
// piece, and few states are merged.
struct Cut {
  int64_t least;
  int64_t most;

  int64_t Split(int64_t length, int64_t page_slots) const {
    return RoundUp(std::max(least, CeilDiv(length, most)), page_slots);
  }
};
constexpr Cut kLong = {.least = 512, .most = 64};
constexpr Cut kShort = {.least = 256, .most = 256};
constexpr int64_t kShortShare = 4;

constexpr int64_t kFloat = sizeof(float);

// Long pieces first: they are handed out in this order.
void SortByLength(std::vector<AttentionItem>* items) {
  std::stable_sort(
      items->begin(), items->end(),
      [](const AttentionItem& a, const AttentionItem& b) { return a.split > b.split; });
}

UnreadMass::Limits UnreadLimits(const HostAttentionLimits& limits) {
  return {limits.shape, limits.format, limits.bound, limits.entries, limits.near};
}

}  // namespace

HostAttention::HostAttention(const HostAttentionLimits& limits, std::unique_ptr<Kernels> kernels)
    : limits_(limits), cpu_(NewCpuDevice(Env::Default(), nullptr)), kernels_(std::move(kernels)) {}

int64_t HostAttention::QueryBytes() const {
  return Width() * static_cast<int64_t>(DTypeBytes(limits_.activation));
}

int64_t HostAttention::MaxParts() const {
  const int64_t long_parts = std::min(kLong.most, CeilDiv(limits_.length, kLong.least));
  const int64_t short_parts =
      CeilDiv(std::min(kShort.most, CeilDiv(limits_.length, kShort.least)), kShortShare);
  // Each range, and the long pieces of all, may end in a piece that is cut off; a page more may go
  // into long ones.
  return long_parts + short_parts + CeilDiv(limits_.length, limits_.segment_tokens) + 2;
}

Result<std::unique_ptr<HostAttention>> HostAttention::Create(const HostAttentionLimits& limits,
                                                             std::unique_ptr<Kernels> kernels,
                                                             Device& device, Budget& budget) {
  if (!kernels->SupportsAttention({.dtype = limits.format.dtype,
                                   .encoding = limits.format.encoding,
                                   .head_dim = limits.format.head_dim,
                                   .group = limits.shape.group()})) {
    return Status(StatusCode::kUnsupported,
                  Refusal{{Option::kHostAttention, ": the host's cores do not attend to heads of " +
                                                       std::to_string(limits.format.head_dim) +
                                                       " elements in this cache; turn it off"}});
  }
  std::unique_ptr<HostAttention> host(new HostAttention(limits, std::move(kernels)));
  Result<std::unique_ptr<Stream>> at_once = host->cpu_->NewStream(Lane::kCompute);
  if (!at_once.ok()) return at_once.status();
  host->at_once_ = std::move(*at_once);
  const int64_t rows = limits.entries * limits.tokens;
  const int64_t heads = rows * limits.shape.query_heads;
  const int64_t width = rows * host->Width();
  const int64_t q_bytes = RoundUp(rows * host->QueryBytes(), 64);
  Result<std::unique_ptr<Buffer>> shared = device.AllocateHost(
      budget, static_cast<size_t>(q_bytes + (width + heads) * kFloat), "host attention");
  if (!shared.ok()) return shared.status();
  if (!device.kernels_read_host_memory()) {
    return Status(StatusCode::kUnsupported,
                  Refusal{{Option::kHostAttention,
                           " needs pinned host memory, which the system did not give; raise the "
                           "limit on locked memory, or turn it off"}});
  }
  host->shared_ = std::move(*shared);
  host->q_ = host->shared_->data();
  host->o_ = reinterpret_cast<float*>(host->q_ + q_bytes);
  host->lse_ = host->o_ + width;
  const int64_t parts = host->MaxParts();
  const bool bounded = limits.bound.epsilon > 0.0;
  const int64_t unread = bounded ? UnreadMass::Bytes(UnreadLimits(limits)) : 0;
  Result<std::unique_ptr<Buffer>> own = host->cpu_->Allocate(
      budget, static_cast<size_t>(unread + (width + parts * (width + heads)) * kFloat),
      "host attention");
  if (!own.ok()) return own.status();
  host->own_ = std::move(*own);
  host->q_f32_ = reinterpret_cast<float*>(host->own_->data() + unread);
  if (bounded) {
    host->unread_ = std::make_unique<UnreadMass>(UnreadLimits(limits), *host->kernels_,
                                                 *host->at_once_, host->own_->data());
  }
  host->part_o_ = host->q_f32_ + width;
  host->part_lse_ = host->part_o_ + parts * width;
  KernelLimits kernel_limits;
  kernel_limits.rows = rows;
  kernel_limits.max_in = limits.shape.head_dim;
  kernel_limits.max_out = limits.shape.head_dim;
  kernel_limits.head_dim = limits.shape.head_dim;
  kernel_limits.group = limits.shape.group();
  kernel_limits.query_heads = limits.shape.query_heads;
  if (Status s = host->kernels_->Prepare(kernel_limits, *host->cpu_, budget); !s.ok()) return s;
  // A step has a work a layer at most, and ends before the next begins.
  for (int layer = 0; layer < limits.shape.layers; ++layer) {
    host->stream_at_.push_back(device.NewEvent());
  }
  return host;
}

void HostAttention::Begin() {
  tasks_.items.clear();
  tasks_.merges.clear();
  bounds_.clear();
}

void HostAttention::Add(const Queried& queried, const kv::HeadRun& run,
                        std::span<const KeyRun> ranges) {
  AddTo(queried, run, ranges, &tasks_);
}

void HostAttention::AddAll(const Queried& queried, const kv::HeadRun& head,
                           std::span<const KeyRun> all, UnreadKeys unread) {
  HEADWAY_CHECK(unread_ != nullptr && head.heads == 1 && queried.tokens == 1);
  BoundedHead& bounded = bounds_.emplace_back();
  bounded.row = RowOf(queried.entry);
  bounded.head = head.head;
  bounded.position = queried.position;
  bounded.unread = std::move(unread);
  // Where their states lie is free again by then.
  AddTo(queried, head, all, &bounded.all);
}

void HostAttention::AddTo(const Queried& queried, const kv::HeadRun& run,
                          std::span<const KeyRun> ranges, Tasks* tasks) {
  const int64_t end = queried.position + queried.tokens;
  HEADWAY_CHECK(queried.entry < limits_.entries && queried.tokens <= limits_.tokens &&
                end <= limits_.length);
  const int64_t heads = limits_.shape.query_heads;
  const int64_t head = int64_t{run.head} * limits_.shape.group();  // query head
  const int64_t row = RowOf(queried.entry);
  const int64_t slots = limits_.format.page_slots;
  int64_t keys = 0;
  for (const KeyRun& range : ranges) keys += range.pages.count;
  int64_t long_keys = keys <= kLong.least ? keys : RoundUp(keys - keys / kShortShare, slots);
  int64_t parts = 0;
  const auto add = [&](const KeyRun& part, const Cut& cut) {
    if (part.pages.count == 0) return;
    const int64_t first = row * MaxParts() + parts * limits_.tokens;
    AttentionItem item;
    item.q = q_f32_ + row * Width() + head * limits_.shape.head_dim;
    item.q_stride = Width();
    item.tokens = queried.tokens;
    item.q_position = queried.position;
    item.heads = run.heads;
    item.keys = part;
    item.split = cut.Split(end, slots);
    item.o = part_o_ + first * Width() + head * limits_.shape.head_dim;
    item.o_stride = Width();
    item.o_part_stride = limits_.tokens * Width();
    item.lse = part_lse_ + first * heads + head;
    item.lse_stride = heads;
    item.lse_part_stride = limits_.tokens * heads;
    parts += PartsOf(item);
    tasks->items.push_back(item);
  };
  for (KeyRun range : ranges) {
    range.pages = kv::PagesOf(range.pages, run);
    const int64_t count = range.pages.count;
    const int64_t in_long = std::min(long_keys, count);
    long_keys -= in_long;
    add(KeysOf(limits_.format, range, 0, 0, in_long), kLong);
    add(KeysOf(limits_.format, range, 0, in_long, count - in_long), kShort);
  }
  HEADWAY_CHECK(parts <= MaxParts());
  AddMerges(queried, run, parts, tasks);
}

// Of the last `parts` states, which are those of the run.
void HostAttention::AddMerges(const Queried& queried, const kv::HeadRun& run, int64_t parts,
                              Tasks* tasks) {
  const int64_t heads = limits_.shape.query_heads;
  const int64_t head = int64_t{run.head} * limits_.shape.group();  // query head
  float* const o = o_ + RowOf(queried.entry) * Width() + head * limits_.shape.head_dim;
  float* const lse = lse_ + RowOf(queried.entry) * heads + head;
  if (parts == 1) {  // nothing to merge
    tasks->items.back().o = o;
    tasks->items.back().lse = lse;
    return;
  }
  const int64_t first = RowOf(queried.entry) * MaxParts();
  for (int64_t token = 0; token < queried.tokens; ++token) {
    MergeItem merge;
    merge.part_o = part_o_ + (first + token) * Width() + head * limits_.shape.head_dim;
    merge.o_part_stride = limits_.tokens * Width();
    merge.part_lse = part_lse_ + (first + token) * heads + head;
    merge.lse_part_stride = limits_.tokens * heads;
    merge.parts = static_cast<int>(parts);
    merge.rows = int64_t{run.heads} * limits_.shape.group();
    merge.o = o + token * Width();
    merge.lse = lse + token * heads;
    tasks->merges.push_back(merge);
  }
}

WorkCost HostAttention::Cost() const {
  WorkCost cost = AttendCost(limits_.format, limits_.shape.group(), {}, tasks_.items, kFloat);
  cost.name = "host attention";
  return cost;
}

// The queries of the entries that have keys here, or leave some out, neighbours together.
std::vector<ConvertItem> HostAttention::QueriesToLoad() const {
  std::vector<bool> wanted(static_cast<size_t>(limits_.entries * limits_.tokens) + 1);  // rows
  for (const AttentionItem& item : tasks_.items) {
    const int64_t row = (static_cast<const float*>(item.q) - q_f32_) / Width();
    std::fill_n(wanted.begin() + static_cast<std::ptrdiff_t>(row), item.tokens, true);
  }
  for (const BoundedHead& head : bounds_) wanted[static_cast<size_t>(head.row)] = true;
  std::vector<ConvertItem> loads;
  for (int64_t row = 0, end = 0; row < std::ssize(wanted); row = std::max(row + 1, end)) {
    for (end = row; wanted[static_cast<size_t>(end)];) ++end;
    if (end == row) continue;
    loads.push_back({.from = q_ + row * QueryBytes(),
                     .from_dtype = limits_.activation,
                     .from_stride = Width(),
                     .to = q_f32_ + row * Width(),
                     .to_dtype = DType::kF32,
                     .to_stride = Width(),
                     .rows = end - row,
                     .width = Width()});
  }
  return loads;
}

std::function<Status()> HostAttention::Work(int64_t window) {
  AttentionParams params;
  params.scale = 1.0f / std::sqrt(static_cast<float>(limits_.shape.head_dim));
  params.window = window;
  SortByLength(&tasks_.items);
  // Taken apart before the queries are there.
  return [this, params, number = ++works_, loads = QueriesToLoad(),
          items = SingleStates(limits_.format, limits_.shape.group(), tasks_.items),
          merges = std::move(tasks_.merges), bounds = std::move(bounds_)] {
    const int64_t start_ns = Env::Default()->NowNanos();
    for (const ConvertItem& load : loads) kernels_->Convert(*at_once_, load);
    Run(params, items, merges);
    if (!bounds.empty()) ReadMore(params, bounds);
    EndWork(number, start_ns);
    return at_once_->status();
  };
}

void HostAttention::Run(const AttentionParams& params, std::span<const AttentionItem> items,
                        std::span<const MergeItem> merges) {
  kernels_->Attend(*at_once_, limits_.format, limits_.shape.group(), params, items);
  kernels_->Merge(*at_once_, limits_.shape.head_dim, merges);
}

void HostAttention::ReadMore(const AttentionParams& params, std::span<const BoundedHead> heads) {
  const int64_t group = limits_.shape.group();
  std::vector<UnreadMass::Head> read;
  for (const BoundedHead& head : heads) {
    const int64_t query_head = head.head * group;
    read.push_back({&head.unread, q_f32_ + head.row * Width() + query_head * limits_.shape.head_dim,
                    lse_ + head.row * limits_.shape.query_heads + query_head, head.position});
  }
  const std::vector<bool> too_much = unread_->LeaveTooMuch(read);
  Tasks all;
  int64_t read_all = 0;
  for (size_t i = 0; i < heads.size(); ++i) {
    if (!too_much[i]) continue;
    ++read_all;
    const Tasks& of_head = heads[i].all;
    all.items.insert(all.items.end(), of_head.items.begin(), of_head.items.end());
    all.merges.insert(all.merges.end(), of_head.merges.begin(), of_head.merges.end());
  }
  bounded_heads_ += std::ssize(heads);
  read_all_ += read_all;
  if (read_all == 0) return;
  SortByLength(&all.items);
  Run(params, SingleStates(limits_.format, limits_.shape.group(), all.items), all.merges);
}

void HostAttention::StreamWaits(Stream& stream) {
  stream.Record(*stream_at_[static_cast<size_t>(works_) % stream_at_.size()]);
  stream_told_.store(works_, std::memory_order_release);
}

void HostAttention::EndWork(int64_t number, int64_t start_ns) {
  const std::lock_guard lock(mutex_);
  if (number <= forgotten_) return;  // of a step that was given up, whose events are used again
  // Where the stream was not told yet it has other things to do, too.
  const bool awaited = stream_told_.load(std::memory_order_acquire) >= number &&
                       stream_at_[static_cast<size_t>(number) % stream_at_.size()]->Reached();
  spans_.push_back({start_ns, Env::Default()->NowNanos(), awaited});
}

void HostAttention::ForgetPauses() {
  const std::lock_guard lock(mutex_);
  spans_.clear();
  forgotten_ = works_;
}

double HostAttention::PauseSeconds() const {
  const std::lock_guard lock(mutex_);
  std::vector<int64_t> pauses;
  for (size_t i = 1; i < spans_.size(); ++i) {
    if (spans_[i - 1].awaited) pauses.push_back(spans_[i].start_ns - spans_[i - 1].end_ns);
  }
  if (pauses.empty()) return -1.0;
  const auto middle = pauses.begin() + static_cast<std::ptrdiff_t>(pauses.size() / 2);
  std::nth_element(pauses.begin(), middle, pauses.end());
  return static_cast<double>(*middle) * 1e-9 * static_cast<double>(spans_.size());
}

}  // namespace headway
