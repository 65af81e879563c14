#include "kv/testing/rig.h"

#include <algorithm>
#include <utility>

#include "device/cpu/cpu_device.h"
#include "kv/testing/slab_test_util.h"
#include "kv/testing/slow_device.h"

namespace headway::kv {

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

RigOptions WithSlabs(RigOptions options, int64_t device, int64_t host, int64_t disk) {
  const StoreFootprint fixed = FootprintOf(options.store);
  const int64_t slab = options.store.format.slab_bytes();
  options.device_bytes = fixed.open_pages + fixed.append_buffer + fixed.staging + device * slab;
  options.host_bytes = (options.disk || options.session ? fixed.bounce : 0) + host * slab;
  options.disk_bytes = disk * slab;
  return options;
}

RigOptions OneColumn() {
  RigOptions options;
  options.store = SmallStore();
  options.store.format.layers = 1;
  options.store.format.kv_heads = 2;
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
  named_.clear();
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

Status Rig::TakeBack(SequenceId id, int64_t tokens) {
  const Status status = store_->TakeBack(id, tokens);
  if (status.ok()) model_[id].resize(model_[id].size() - static_cast<size_t>(tokens));
  EXPECT_EQ(store_->Length(id), static_cast<int64_t>(model_[id].size()));
  return status;
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

}  // namespace headway::kv
