#include "kv/testing/store_test_util.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "device/cpu/cpu_device.h"
#include "kv/testing/slab_test_util.h"

namespace headway::kv {
namespace {

class SlowStream : public Stream {
 public:
  SlowStream(std::unique_ptr<Stream> stream, int delay_us, const std::atomic<bool>* broken)
      : stream_(std::move(stream)), delay_us_(delay_us), broken_(broken) {}

  Lane lane() const override { return stream_->lane(); }
  void Copy(std::byte* to, const std::byte* from, size_t bytes) override {
    Delay();
    if (Works()) stream_->Copy(to, from, bytes);
  }
  void Copy2D(std::byte* to, size_t to_stride, const std::byte* from, size_t from_stride,
              size_t row_bytes, size_t rows) override {
    Delay();
    if (Works()) stream_->Copy2D(to, to_stride, from, from_stride, row_bytes, rows);
  }
  void HostWork(const WorkCost& cost, std::function<Status()> work) override {
    Delay();
    stream_->HostWork(cost, std::move(work));
  }
  void Record(Event& event) override { stream_->Record(event); }
  void Wait(Event& event) override { stream_->Wait(event); }
  Status Synchronize() override {
    Status status = stream_->Synchronize();
    return failed_ ? this->status() : status;
  }
  Status status() override {
    return failed_ ? Status(StatusCode::kIo, "a copy: the bus is gone") : stream_->status();
  }

 private:
  bool Works() {
    failed_ = failed_ || *broken_;
    return !failed_;
  }
  void Delay() {
    stream_->HostWork(WorkCost{"delay", 0, 0}, [delay = delay_us_] {
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
      return OkStatus();
    });
  }

  std::unique_ptr<Stream> stream_;
  int delay_us_;
  const std::atomic<bool>* broken_;
  bool failed_ = false;
};

uint16_t Element(uint64_t tag, int layer, int head, bool v, int64_t i) {
  uint64_t x = tag + (static_cast<uint64_t>(layer) << 40) + (static_cast<uint64_t>(head) << 24) +
               (static_cast<uint64_t>(i) << 1) + (v ? 1 : 0);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return static_cast<uint16_t>(x >> 40);
}

constexpr int kHeadOfX = 1000;  // no head has that number

// The heads of the model that a group has, in order.
std::vector<int> HeadsOf(const CacheFormat& format, int layer, int group) {
  std::vector<int> heads;
  for (const HeadRun& run : format.Runs(layer, group)) {
    EXPECT_EQ(run.index, static_cast<int>(heads.size()));
    for (int i = 0; i < run.heads; ++i) heads.push_back(run.head + i);
  }
  EXPECT_EQ(static_cast<int>(heads.size()), format.HeadsIn(layer, group));
  return heads;
}

template <typename Visit>  // (head, tag, bytes of the slot's K or V, is V)
void ForEachSlot(const PageRun& run, const std::vector<int>& heads, const PageFormat& page,
                 std::span<const uint64_t> tags, const Visit& visit) {
  const size_t slot_bytes = page.bytes() / static_cast<size_t>(page.page_slots);
  for (size_t at = 0; at < heads.size(); ++at) {
    const int head = heads[at];
    for (int64_t i = 0; i < run.count; ++i) {
      const int64_t slot = run.first_slot + i;
      const int64_t offset = static_cast<int64_t>(at) * run.head_stride +
                             slot / page.page_slots * run.page_stride +
                             slot % page.page_slots * static_cast<int64_t>(slot_bytes);
      visit(head, tags[static_cast<size_t>(i)], run.k + offset, false);
      visit(head, tags[static_cast<size_t>(i)], run.v + offset, true);
    }
  }
}

}  // namespace

Result<std::unique_ptr<Stream>> SlowDevice::NewStream(Lane lane) {
  Result<std::unique_ptr<Stream>> stream = device_->NewStream(lane);
  if (lane != slow_lane_ || !stream.ok()) return stream;
  return std::unique_ptr<Stream>(
      std::make_unique<SlowStream>(std::move(*stream), delay_us_, broken_));
}

StoreOptions SmallStore() {
  StoreOptions options;
  options.format.layers = 2;
  options.format.kv_heads = 3;
  options.format.page.page_slots = 4;
  options.format.page.head_dim = 4;
  options.format.group_heads = 2;
  options.format.segment_pages = 3;
  options.max_sequences = 4;
  options.max_step_tokens = 256;
  options.staging_slabs = 2;
  options.bounce_slabs = 2;
  options.poison_freed = true;
  return options;
}

Rig::Rig(const RigOptions& options)
    : options_(options),
      device_budget_("kv-memory", options.device_bytes),
      host_budget_("host-memory", options.host_bytes),
      disk_budget_("disk-memory", options.disk_bytes) {
  if (options_.env == nullptr) options_.env = &memory_env_;
  options_.store.device_budget = &device_budget_;
  options_.store.host_budget = &host_budget_;
  options_.store.disk_budget = &disk_budget_;
  options_.store.disk_directory = options.disk && !options.session ? directory_.path() : "";
  device_ = std::make_unique<SlowDevice>(NewCpuDevice(options_.env, &trace_), options_.slow_lane,
                                         options_.delay_us, &broken_);
}

Rig::~Rig() { Close(); }

void Rig::Close() {
  EXPECT_EQ(Mismatches(), 0);
  store_.reset();
  lanes_.reset();
  compute_.reset();
  model_.clear();
  EXPECT_EQ(device_budget_.used(), 0);
  EXPECT_EQ(host_budget_.used(), 0);
  EXPECT_EQ(disk_budget_.used(), 0);
}

Status Rig::Open() {
  Close();
  broken_ = false;
  std::unique_ptr<SlabFile> session;
  if (options_.session) {
    Result<std::unique_ptr<SlabFile>> file =
        options_.env->Exists(session_path())
            ? OpenSessionAt(options_.env, session_path(), &disk_budget_)
            : CreateSessionAt(options_.env, session_path(), options_.store.format, &disk_budget_);
    if (!file.ok()) return file.status();
    session = std::move(*file);
  }
  // The CPU's compute stream works on the calling thread. Any other has a thread of its own.
  const bool slow = options_.slow_lane == Lane::kCompute;
  if (options_.asynchronous) {
    SlowDevice device(NewCpuDevice(options_.env, nullptr),
                      slow ? std::optional(Lane::kDiskRead) : std::nullopt, options_.delay_us,
                      &broken_);
    compute_ = *device.NewStream(Lane::kDiskRead);
  } else {
    compute_ = *device_->NewStream(Lane::kCompute);
  }
  Result<std::unique_ptr<Lanes>> lanes = Lanes::Create(device_.get(), compute_.get());
  if (!lanes.ok()) return lanes.status();
  lanes_ = std::move(*lanes);
  Result<std::unique_ptr<Store>> store =
      Store::Create(options_.store, options_.env, device_.get(), lanes_.get(), std::move(session));
  if (!store.ok()) return store.status();
  store_ = std::move(*store);
  return OkStatus();
}

int64_t Rig::Mismatches() {
  if (compute_ != nullptr) {
    Status status = compute_->Synchronize();
    EXPECT_TRUE(status.ok()) << status.message();
  }
  int64_t mismatches = 0;
  for (const auto& step : mismatches_) mismatches += *step;
  return mismatches;
}

Result<SequenceId> Rig::NewSequence(int x_segments) {
  Result<SequenceId> id = store_->CreateSequence(x_segments);
  if (id.ok()) model_[*id];
  return id;
}

Result<SequenceId> Rig::Fork(SequenceId from) {
  Result<SequenceId> id = store_->Fork(from);
  if (id.ok()) model_[*id] = std::vector<uint64_t>(model_[from]);
  return id;
}

void Rig::Drop(SequenceId id) {
  store_->Drop(id);
  model_.erase(id);
}

Result<int64_t> Rig::Truncate(SequenceId id, int64_t tokens) {
  const int64_t before = store_->Length(id);
  Result<int64_t> kept = store_->Truncate(id, tokens);
  if (kept.ok()) {
    const int64_t slots = options_.store.format.page.page_slots;
    EXPECT_EQ(*kept, std::min(tokens, before) / slots * slots);
    model_[id].resize(static_cast<size_t>(*kept));
  }
  EXPECT_EQ(store_->Length(id), static_cast<int64_t>(model_[id].size()));
  return kept;
}

Status Rig::Save(SequenceId id) {
  const std::vector<uint64_t>& tags = model_[id];
  std::vector<TokenId> tokens;
  for (const uint64_t tag : tags) tokens.push_back(static_cast<TokenId>(tag & 0xFFFFF));
  Manifest meta;
  meta.weights_hash = 7;
  const int64_t slots = options_.store.format.page.page_slots;
  save_attempts_.emplace_back(tags.begin(), tags.end() - static_cast<int64_t>(tags.size()) % slots);
  Status status = store_->Save(id, tokens, meta);
  if (status.ok()) last_saved_ = static_cast<int>(save_attempts_.size()) - 1;
  return status;
}

Result<SequenceId> Rig::Restore() {
  Result<SequenceId> id = store_->Restore();
  if (!id.ok()) return id;
  model_[*id];
  if (store_->Length(*id) == 0 && last_saved_ < 0) return id;
  Result<Manifest> manifest = InspectSession(options_.env, session_path());
  EXPECT_TRUE(manifest.ok()) << manifest.status().message();
  if (!manifest.ok()) return manifest.status();
  for (int i = static_cast<int>(save_attempts_.size()); i-- > std::max(0, last_saved_);) {
    const std::vector<uint64_t>& tags = save_attempts_[static_cast<size_t>(i)];
    const auto same = [](uint64_t tag, TokenId token) {
      return static_cast<TokenId>(tag & 0xFFFFF) == token;
    };
    if (!std::equal(tags.begin(), tags.end(), manifest->tokens.begin(), manifest->tokens.end(),
                    same)) {
      continue;
    }
    model_[*id] = tags;
    EXPECT_EQ(store_->Length(*id), static_cast<int64_t>(tags.size()));
    return id;
  }
  ADD_FAILURE() << "the session holds what was not saved last";
  return Status(StatusCode::kInternal, "the session holds what was not saved last");
}

std::vector<SequenceId> Rig::Live() const {
  std::vector<SequenceId> ids;
  for (const auto& [id, tags] : model_) ids.push_back(id);
  return ids;
}

Status Rig::Step(SequenceId id, int64_t tokens) {
  const StepEntry entry{id, tokens};
  return Step({&entry, 1});
}

Status Rig::Step(std::span<const StepEntry> entries) {
  std::vector<int64_t> lengths;
  for (const StepEntry& entry : entries) lengths.push_back(store_->Length(entry.sequence));
  Status status = store_->BeginStep(entries);
  if (!status.ok()) {
    for (size_t i = 0; i < entries.size(); ++i) {
      EXPECT_EQ(store_->Length(entries[i].sequence), lengths[i]);
    }
    return status;
  }
  step_tokens_.clear();
  for (const StepEntry& entry : entries) {
    step_tokens_.push_back(model_[entry.sequence]);
    for (int64_t i = 0; i < entry.tokens; ++i) step_tokens_.back().push_back(random_.Next());
  }
  mismatches_.push_back(std::make_shared<std::atomic<int64_t>>(0));
  order_.clear();
  next_read_ = 0;
  const CacheFormat& format = store_->format();
  for (int layer = 0; layer < format.layers; ++layer) {
    for (int group = 0; group < format.head_groups(layer); ++group) {
      for (int entry = 0; entry < static_cast<int>(entries.size()); ++entry) {
        const Store::SegmentSpan span = store_->Segments(entry, layer);
        for (int segment = span.first; segment < span.last; ++segment) {
          order_.push_back(SlabRead{entry, layer, group, segment});
        }
      }
    }
  }
  status = store_->BeginReads(order_);
  for (int layer = 0; status.ok() && layer < format.layers; ++layer) {
    status = RunLayer(entries, layer);
  }
  if (status.ok()) status = store_->EndStep();
  if (!status.ok()) {
    store_->AbortStep();
    mismatches_.pop_back();
  }
  const int64_t slots = format.page.page_slots;
  for (size_t i = 0; i < entries.size(); ++i) {
    std::vector<uint64_t>& tags = model_[entries[i].sequence];
    if (status.ok()) {
      tags = step_tokens_[i];
    } else {
      tags.resize(tags.size() - tags.size() % static_cast<size_t>(slots));
    }
    EXPECT_EQ(store_->Length(entries[i].sequence), static_cast<int64_t>(tags.size()));
  }
  return status;
}

void Rig::AbortedStep(std::span<const StepEntry> entries, int layers) {
  if (!store_->BeginStep(entries).ok()) return;
  step_tokens_.clear();
  for (const StepEntry& entry : entries) {
    step_tokens_.push_back(model_[entry.sequence]);
    for (int64_t i = 0; i < entry.tokens; ++i) step_tokens_.back().push_back(random_.Next());
  }
  order_.clear();
  next_read_ = 0;
  for (int layer = 0; layer < layers; ++layer) {
    for (int i = 0; i < static_cast<int>(entries.size()); ++i) {
      Write(entries[static_cast<size_t>(i)], i, layer);
      if (store_->format().keeps_x()) WriteX(entries[static_cast<size_t>(i)], i, layer);
    }
    store_->CloseLayer(layer);
  }
  store_->AbortStep();
  const auto slots = static_cast<size_t>(store_->format().page.page_slots);
  for (const StepEntry& entry : entries) {
    std::vector<uint64_t>& tags = model_[entry.sequence];
    tags.resize(tags.size() - tags.size() % slots);
    EXPECT_EQ(store_->Length(entry.sequence), static_cast<int64_t>(tags.size()));
  }
}

Status Rig::RunLayer(std::span<const StepEntry> entries, int layer) {
  for (int i = 0; i < static_cast<int>(entries.size()); ++i) {
    Write(entries[static_cast<size_t>(i)], i, layer);
    if (store_->format().keeps_x()) WriteX(entries[static_cast<size_t>(i)], i, layer);
  }
  Status status = ReadLayer(entries, layer);
  if (!status.ok()) return status;
  for (int i = 0; i < static_cast<int>(entries.size()); ++i) {
    const StepEntry& entry = entries[static_cast<size_t>(i)];
    CheckSegments(entries, i, layer);
    const CacheFormat& format = store_->format();
    for (int group = 0; group < format.head_groups(layer); ++group) {
      const KeyRun tail = store_->Tail(i, layer, group);
      EXPECT_EQ(tail.position + tail.pages.count, store_->Length(entry.sequence) + entry.tokens);
      Compare(tail, i, layer, group);
    }
    if (format.pattern.StreamingIn(layer) > 0) CheckStreaming(entry, i, layer);
  }
  store_->CloseLayer(layer);
  return OkStatus();
}

Status Rig::ReadLayer(std::span<const StepEntry> entries, int layer) {
  const CacheFormat& format = store_->format();
  std::vector<SlabView> held;
  std::vector<std::pair<int, SlabView>> gathered;  // and their entries
  const auto finish = [&](size_t keep) {
    while (held.size() > keep) {
      const auto which = static_cast<size_t>(random_.Below(static_cast<int64_t>(held.size())));
      store_->FinishRead(held[which]);
      held.erase(held.begin() + static_cast<int64_t>(which));
    }
  };
  for (; next_read_ < order_.size() && order_[next_read_].layer == layer; ++next_read_) {
    const SlabRead& read = order_[next_read_];
    Result<SlabView> view = store_->NextRead();
    if (!view.ok()) return view.status();
    ++reads_from_[static_cast<size_t>(view->tier)];
    EXPECT_EQ(view->segment, read.segment);
    EXPECT_EQ(view->keys.position, read.segment * format.segment_tokens());
    const int64_t closed = store_->Length(entries[static_cast<size_t>(read.entry)].sequence) /
                           format.page.page_slots * format.page.page_slots;
    EXPECT_EQ(view->keys.pages.count,
              std::min(closed - view->keys.position, format.segment_tokens()));
    EXPECT_EQ(view->x != nullptr, view->segment < store_->Segments(read.entry, layer).x_last);
    if (view->x != nullptr) {
      if (!gathered.empty()) {
        const SlabView& last = gathered.back().second;
        EXPECT_EQ(view->x, last.x + format.XBytes(last.keys.pages.count));
      }
      gathered.emplace_back(read.entry, *view);
      if (!view->ends_gather) continue;
      for (const auto& [entry, one] : gathered) CompareX(one, entry, layer);
      for (const auto& [entry, one] : gathered) store_->FinishRead(one);
      gathered.clear();
      continue;
    }
    Compare(view->keys, read.entry, layer, read.group);
    held.push_back(std::move(*view));
    finish(static_cast<size_t>(random_.Below(options_.store.staging_slabs)));
  }
  finish(0);
  return OkStatus();
}

void Rig::CheckSegments(std::span<const StepEntry> entries, int index, int layer) {
  const CacheFormat& format = store_->format();
  const int64_t length = store_->Length(entries[static_cast<size_t>(index)].sequence);
  const int64_t closed = length / format.page.page_slots * format.page.page_slots;
  const int64_t window = format.WindowOf(layer);
  const int64_t first_key = window == 0 ? 0 : std::max<int64_t>(0, length - window + 1);
  const Store::SegmentSpan span = store_->Segments(index, layer);
  if (first_key >= closed) {
    // All that is seen is in the tail; at most the segment around it is named.
    EXPECT_GE(int64_t{span.first} * format.segment_tokens(), closed - format.segment_tokens());
    return;
  }
  EXPECT_EQ(span.first, first_key / format.segment_tokens());
  EXPECT_EQ(span.last, CeilDiv(closed, format.segment_tokens()));
}

// The ranges hold every key that a query of the entry may see, in order, none twice.
void Rig::CheckStreaming(const StepEntry& entry, int index, int layer) {
  const CacheFormat& format = store_->format();
  const HeadPattern& pattern = format.pattern;
  const int64_t length = store_->Length(entry.sequence);
  const int64_t end = length + entry.tokens;
  int64_t next = 0;  // behind the ranges so far
  for (const StreamingRange& range : store_->StreamingRanges(index, layer)) {
    if (range.keys.pages.count == 0) continue;
    const int64_t begin = range.keys.position;
    EXPECT_GE(begin, next);
    // What is left out is neither of the sink nor recent for the oldest query.
    if (begin > next) {
      EXPECT_GE(next, pattern.sink);
      EXPECT_LE(begin, std::max<int64_t>(0, length - pattern.recent + 1));
    }
    next = begin + range.keys.pages.count;
    EXPECT_EQ(range.windowed, entry.tokens > 1 && begin >= pattern.sink);
    EXPECT_TRUE(next <= pattern.sink || begin >= pattern.sink);
    Compare(range.keys, index, layer, format.StreamingGroup(layer));
  }
  EXPECT_EQ(next, end);
}

void Rig::Write(const StepEntry& entry, int index, int layer) {
  const PageFormat page = store_->format().page;
  const std::vector<uint64_t>& tags = step_tokens_[static_cast<size_t>(index)];
  const std::vector<uint64_t> added(tags.end() - entry.tokens, tags.end());
  const CacheFormat& format = store_->format();
  for (int group = 0; group <= format.StreamingGroup(layer); ++group) {
    if (format.HeadsIn(layer, group) == 0) continue;
    const PageRun target = store_->Target(index, layer, group);
    EXPECT_EQ(target.count, entry.tokens);
    compute_->HostWork({}, [target, page, added, layer, heads = HeadsOf(format, layer, group)] {
      ForEachSlot(target, heads, page, added, [&](int head, uint64_t tag, std::byte* to, bool v) {
        for (int i = 0; i < page.head_dim; ++i) {
          const uint16_t value = Element(tag, layer, head, v, i);
          std::memcpy(to + 2 * i, &value, 2);
        }
      });
      return OkStatus();
    });
  }
}

void Rig::WriteX(const StepEntry& entry, int index, int layer) {
  std::byte* const to = store_->XTarget(index, layer);
  if (to == nullptr) return;
  const std::vector<uint64_t>& tags = step_tokens_[static_cast<size_t>(index)];
  const std::vector<uint64_t> added(tags.end() - entry.tokens, tags.end());
  compute_->HostWork({}, [to, added, layer, width = store_->format().x_width] {
    std::byte* at = to;
    for (const uint64_t tag : added) {
      for (int64_t i = 0; i < width; ++i, at += 2) {
        const uint16_t value = Element(tag, layer, kHeadOfX, false, i);
        std::memcpy(at, &value, 2);
      }
    }
    return OkStatus();
  });
}

void Rig::CompareX(const SlabView& view, int index, int layer) {
  const std::vector<uint64_t>& all = step_tokens_[static_cast<size_t>(index)];
  const std::vector<uint64_t> tags(all.begin() + view.keys.position,
                                   all.begin() + view.keys.position + view.keys.pages.count);
  compute_->HostWork({}, [mismatches = mismatches_.back(), from = view.x, tags, layer,
                          width = store_->format().x_width] {
    const std::byte* at = from;
    for (const uint64_t tag : tags) {
      for (int64_t i = 0; i < width; ++i, at += 2) {
        uint16_t value;
        std::memcpy(&value, at, 2);
        if (value != Element(tag, layer, kHeadOfX, false, i)) ++*mismatches;
      }
    }
    return OkStatus();
  });
}

void Rig::Compare(const KeyRun& keys, int index, int layer, int group) {
  const CacheFormat& format = store_->format();
  const PageFormat page = format.page;
  const std::vector<uint64_t>& all = step_tokens_[static_cast<size_t>(index)];
  const std::vector<uint64_t> tags(all.begin() + keys.position,
                                   all.begin() + keys.position + keys.pages.count);
  compute_->HostWork({}, [mismatches = mismatches_.back(), run = keys.pages, page, tags, layer,
                          heads = HeadsOf(format, layer, group)] {
    ForEachSlot(run, heads, page, tags, [&](int head, uint64_t tag, const std::byte* from, bool v) {
      for (int i = 0; i < page.head_dim; ++i) {
        uint16_t value;
        std::memcpy(&value, from + 2 * i, 2);
        if (value != Element(tag, layer, head, v, i)) ++*mismatches;
      }
    });
    return OkStatus();
  });
}

}  // namespace headway::kv
