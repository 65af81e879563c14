#include "parallel/peer/peer_group.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <set>
#include <string>
#include <string_view>

#include "base/exceptions.h"
#include "base/log.h"
#include "device/cuda/cuda_errors.h"
#include "device/cuda/waiting_kernels.h"
#include "kernels/cuda/call.h"
#include "parallel/group_errors.h"

namespace headway {
namespace {

using cuda::StatusOf;

constexpr int64_t kMailBytes = peer::kMailWords * int64_t{sizeof(uint32_t)};
constexpr size_t kHostWords = 4096;  // bytes of pinned memory for `left` and `failed`

// Queues of the GPU, so that streams of ranks have their own.
Status CheckQueues() {
  const char* const name = "CUDA_DEVICE_MAX_CONNECTIONS";
  const char* const given = std::getenv(name);
  if (given != nullptr && std::string_view(given) == "32") return OkStatus();
  return Status(StatusCode::kUnsupported,
                std::string("ranks that share a GPU need ") + name + "=32 in the environment");
}

// Whether kernels on GPU `from` reach memory of GPU `to` from now on.
Result<bool> OpenPeer(int from, int to) {
  int can = 0;
  if (Status s = StatusOf(cudaDeviceCanAccessPeer(&can, from, to), "asking for peer access");
      !s.ok()) {
    return s;
  }
  if (can == 0) return false;
  cudaSetDevice(from);
  const cudaError_t error = cudaDeviceEnablePeerAccess(to, 0);
  cudaGetLastError();  // that it was open before sticks otherwise
  return error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled;
}

}  // namespace

class PeerGroup::Member final : public Communicator {
 public:
  Member(PeerGroup* group, int rank)
      : group_(group), waiting_(group->gpus_[static_cast<size_t>(rank)]) {
    cudaSetDevice(group->gpus_[static_cast<size_t>(rank)]);
    waiting_.Join();
    link_.rank = rank;
    link_.ranks = group->ranks();
    link_.ahead = !group->shared_;
    std::copy(group->mailboxes_.begin(), group->mailboxes_.end(), link_.mailboxes);
    link_.left = group->left_;
    link_.failed = group->failed_ + rank;
  }

  int rank() const override { return link_.rank; }
  int ranks() const override { return link_.ranks; }

  void AllReduceSum(Stream& stream, float* data, int64_t count) override {
    if (count == 0) return;
    if (group_->direct_ && count > peer::kMailWords) {
      Enqueue(stream, {"all-reduce", 2 * count * int64_t{sizeof(float)}, count * (ranks() - 1)},
              count, [&](cudaStream_t native) { return SumInPlace(link_, data, count, native); });
      return;
    }
    ByMail(count, peer::kMailWords, [&](int64_t begin, int64_t words) {
      Enqueue(stream, {"all-reduce", 2 * words * int64_t{sizeof(float)}, words * (ranks() - 1)},
              words,
              [&](cudaStream_t native) { return SumByMail(link_, data + begin, words, native); });
    });
  }

  int multiprocessors() const override { return group_->direct_ ? peer::LeftToSums(ranks()) : 0; }

  void AllGather(Stream& stream, const SharedColumns& matrix) override {
    const int64_t count = matrix.rows * matrix.columns;
    if (count == 0) return;
    const WorkCost cost{"all-gather", 2 * count * int64_t{sizeof(float)}, 0};
    if (group_->direct_) {
      Enqueue(stream, cost, count,
              [&](cudaStream_t native) { return GatherInPlace(link_, matrix, native); });
      return;
    }
    {
      cuda::Call call(stream, cost);
      call.Check(peer::ClearOthers(matrix, call.native()), "gathering columns");
    }
    AllReduceSum(stream, matrix.data, count);
  }

  void Broadcast(Stream& stream, std::byte* data, int64_t bytes, int from) override {
    ByMail(bytes, kMailBytes, [&](int64_t begin, int64_t piece) {
      Enqueue(stream, {"broadcast", 2 * piece, 0}, piece, [&](cudaStream_t native) {
        return BroadcastByMail(link_, data + begin, piece, from, native);
      });
    });
  }

  void Barrier(Stream& stream) override {
    Enqueue(stream, {"barrier", 0, 0}, 0, [&](cudaStream_t native) { return Meet(link_, native); });
  }

  Result<int64_t> OfFirst(int64_t value) override {
    if (!refused_.ok()) return refused_;
    return group_->hosts_.communicator(rank()).OfFirst(value);
  }
  Status GatherOnHost(std::span<const std::byte> own, std::span<std::byte> all) override {
    if (!refused_.ok()) return refused_;
    return group_->hosts_.communicator(rank()).GatherOnHost(own, all);
  }

  // What was enqueued is done, or will never be.
  Status Finish() {
    Status first;
    for (cuda::CudaStream* stream : streams_) {
      if (Status s = stream->Synchronize(); first.ok()) first = s;
    }
    return first;
  }
  void BeginRun() { streams_.clear(); }

 private:
  // Pieces [begin, begin + count) of a call that goes through mailboxes.
  template <typename Send>
  void ByMail(int64_t count, int64_t most, const Send& send) {
    for (int64_t begin = 0; begin < count; begin += most) {
      send(begin, std::min(most, count - begin));
      ++link_.mail;
    }
  }

  template <typename Launch>
  void Enqueue(Stream& stream, const WorkCost& cost, int64_t size, const Launch& launch) {
    auto& own = static_cast<cuda::CudaStream&>(stream);
    if (std::find(streams_.begin(), streams_.end(), &own) == streams_.end()) {
      own.Watch([this] { return group_->Failure(rank()); });
      streams_.push_back(&own);
    }
    constexpr int64_t kNumbers = std::numeric_limits<uint32_t>::max();  // 0 is of no call
    link_.call = static_cast<uint32_t>(begun_++ % kNumbers + 1);
    if (refused_.ok()) refused_ = Make(own, cost, size, launch);
    own.Fail(refused_);
  }

  template <typename Launch>
  Status Make(cuda::CudaStream& stream, const WorkCost& cost, int64_t size, const Launch& launch) {
    if (!group_->Agree(begun_, size)) return UnequalSizes();
    const bool meets = group_->shared_ && group_->options_.meets_on_host;
    Status done = meets ? stream.Synchronize() : OkStatus();
    if (meets && done.ok()) done = OfFirst(0).status();
    if (!done.ok()) return done;
    {
      cuda::Call call(stream, cost);
      done = StatusOf(launch(call.native()), cost.name);
    }
    return meets && done.ok() ? OfFirst(0).status() : done;
  }

  PeerGroup* const group_;
  cuda::WaitingKernels waiting_;
  peer::Link link_;
  int64_t begun_ = 0;  // calls so far
  // Why a call was not launched. None is behind it: the others wait in that call until this rank
  // has ended, and would take the next one for it.
  Status refused_;
  std::vector<cuda::CudaStream*> streams_;  // that had a call in this Run
};

PeerGroup::PeerGroup(std::span<const int> gpus, const PeerOptions& options)
    : gpus_(gpus.begin(), gpus.end()),
      options_(options),
      hosts_(static_cast<int>(gpus.size()), [this] { *left_ = 1; }) {
  shared_ = std::set<int>(gpus.begin(), gpus.end()).size() < gpus.size();
}

Result<std::unique_ptr<PeerGroup>> PeerGroup::Create(std::span<const int> gpus,
                                                     const PeerOptions& options) {
  if (gpus.size() > peer::kMaxRanks) {
    return Status(StatusCode::kUnsupported, "at most " + std::to_string(peer::kMaxRanks) +
                                                " ranks on GPUs of one process are possible");
  }
  std::unique_ptr<PeerGroup> group(new PeerGroup(gpus, options));
  if (group->shared_) {
    if (Status s = CheckQueues(); !s.ok()) return s;
  }
  if (Status s = group->Connect(); !s.ok()) return s;
  if (Status s = group->MakeMailboxes(); !s.ok()) return s;
  for (int rank = 0; rank < group->ranks(); ++rank) {
    group->members_.push_back(std::make_unique<Member>(group.get(), rank));
  }
  return group;
}

Status PeerGroup::Connect() {
  direct_ = options_.peer_access;
  for (const int from : gpus_) {
    for (const int to : gpus_) {
      if (from == to || !direct_) continue;
      const Result<bool> open = OpenPeer(from, to);
      if (!open.ok()) return open.status();
      direct_ = *open;
      if (direct_) continue;
      Log(LogLevel::kWarning, "GPU " + std::to_string(from) + " does not reach the memory of GPU " +
                                  std::to_string(to) +
                                  ": what ranks say to each other goes through the host's");
    }
  }
  return OkStatus();
}

Status PeerGroup::MakeMailboxes() {
  const char* const what = "mailboxes of ranks";
  void* words = nullptr;
  if (Status s = StatusOf(cudaHostAlloc(&words, kHostWords, cudaHostAllocPortable), what);
      !s.ok()) {
    return s;
  }
  std::fill_n(static_cast<uint32_t*>(words), kHostWords / sizeof(uint32_t), 0u);
  left_ = static_cast<uint32_t*>(words);
  failed_ = left_ + 1;
  const auto bytes = static_cast<size_t>(peer::MailboxBytes(ranks()));
  for (const int gpu : gpus_) {
    cudaSetDevice(gpu);
    void* memory = nullptr;
    const cudaError_t error =
        direct_ ? cudaMalloc(&memory, bytes) : cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    if (error != cudaSuccess) {
      cudaGetLastError();
      return StatusOf(error, what);
    }
    mailboxes_.push_back(static_cast<std::byte*>(memory));
    Status zeroed = StatusOf(cudaMemset(memory, 0, bytes), what);
    if (zeroed.ok()) zeroed = StatusOf(cudaDeviceSynchronize(), what);
    if (!zeroed.ok()) return zeroed;
  }
  return OkStatus();
}

PeerGroup::~PeerGroup() {
  for (size_t rank = 0; rank < mailboxes_.size(); ++rank) {
    cudaSetDevice(gpus_[rank]);
    if (direct_) {
      cudaFree(mailboxes_[rank]);
    } else {
      cudaFreeHost(mailboxes_[rank]);
    }
  }
  cudaFreeHost(const_cast<uint32_t*>(left_));
}

Communicator& PeerGroup::communicator(int rank) { return *members_[static_cast<size_t>(rank)]; }

Status PeerGroup::Run(const std::function<Status(int rank)>& work) {
  *left_ = 0;
  return hosts_.Run([&](int rank) {
    Member& member = *members_[static_cast<size_t>(rank)];
    member.BeginRun();
    cudaSetDevice(gpus_[static_cast<size_t>(rank)]);
    const Status done = Guarded([&] { return work(rank); });
    // Nobody waits for what this rank has enqueued behind the word that it has ended.
    const Status finished = member.Finish();
    return done.ok() ? finished : done;
  });
}

bool PeerGroup::Agree(int64_t call, int64_t size) {
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<size_t>(call - 1 - first_call_);
  if (index == calls_.size()) calls_.push_back({size, 0});
  Call& known = calls_[index];
  ++known.ranks;
  const bool same = known.size == size;
  while (!calls_.empty() && calls_.front().ranks == ranks()) {
    calls_.pop_front();
    ++first_call_;
  }
  return same;
}

Status PeerGroup::Failure(int rank) { return failed_[rank] == 0 ? OkStatus() : hosts_.CutShort(); }

}  // namespace headway
