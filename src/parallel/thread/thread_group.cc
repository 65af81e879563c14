#include "parallel/thread/thread_group.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/exceptions.h"
#include "parallel/group_errors.h"

namespace headway {
namespace {

// How long a rank that waits keeps offering its core to others before it sleeps: waking takes tens
// of microseconds, and ranks of a step come within less.
constexpr std::chrono::microseconds kYieldTime{100};

}  // namespace

class ThreadGroup::Member final : public Communicator {
 public:
  Member(ThreadGroup* group, int rank) : group_(group), rank_(rank) {}

  int rank() const override { return rank_; }
  int ranks() const override { return group_->ranks(); }

  void AllReduceSum(Stream& stream, float* data, int64_t count) override {
    const int64_t bytes = count * int64_t{sizeof(float)};
    stream.HostWork({"all-reduce", 2 * bytes, count * (ranks() - 1)},
                    [=, this] { return group_->AllReduceSum(rank_, data, count); });
  }
  void AllGather(Stream& stream, const SharedColumns& matrix) override {
    stream.HostWork({"all-gather", 2 * matrix.rows * matrix.columns * int64_t{sizeof(float)}, 0},
                    [=, this] { return group_->AllGather(rank_, matrix); });
  }
  void Broadcast(Stream& stream, std::byte* data, int64_t bytes, int from) override {
    stream.HostWork({"broadcast", 2 * bytes, 0}, [=, this] {
      const auto size = static_cast<size_t>(bytes);
      return group_->Broadcast(&group_->streams_, rank_, {data, size}, from);
    });
  }
  void Barrier(Stream& stream) override {
    stream.HostWork({"barrier", 0, 0}, [this] { return group_->Meet(&group_->streams_); });
  }
  Result<int64_t> OfFirst(int64_t value) override {
    const Status status =
        group_->Broadcast(&group_->hosts_, rank_, std::as_writable_bytes(std::span(&value, 1)), 0);
    if (!status.ok()) return status;
    return value;
  }
  Status GatherOnHost(std::span<const std::byte> own, std::span<std::byte> all) override {
    HEADWAY_CHECK(all.size() == own.size() * static_cast<size_t>(ranks()));
    return group_->GatherOnHost(rank_, own, all);
  }

 private:
  ThreadGroup* const group_;
  const int rank_;
};

ThreadGroup::ThreadGroup(int ranks, std::function<void()> on_leave)
    : on_leave_(std::move(on_leave)) {
  HEADWAY_CHECK(ranks >= 1);
  streams_.given.resize(static_cast<size_t>(ranks));
  hosts_.given.resize(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    members_.push_back(std::make_unique<Member>(this, rank));
  }
}

ThreadGroup::~ThreadGroup() = default;

Communicator& ThreadGroup::communicator(int rank) { return *members_[static_cast<size_t>(rank)]; }

Status ThreadGroup::Run(const std::function<Status(int rank)>& work) {
  if (!broken_.ok()) return broken_;
  failure_ = OkStatus();
  streams_.arrived = hosts_.arrived = 0;
  left_ = false;
  const auto run = [&](int rank) { Leave(rank, Guarded([&] { return work(rank); })); };
  std::vector<std::thread> threads;
  for (int rank = 1; rank < ranks(); ++rank) {
    const Status started = Guarded([&] {
      threads.emplace_back(run, rank);
      return OkStatus();
    });
    if (!started.ok()) Leave(rank, started);
  }
  run(0);
  for (std::thread& thread : threads) thread.join();
  if (cut_short_) {
    broken_ = OfRank(failed_rank_, ranks(), failure_);
    return broken_;
  }
  return failure_;
}

void ThreadGroup::Leave(int rank, const Status& status) {
  const std::lock_guard lock(mutex_);
  if (!status.ok() && failure_.ok()) {
    failure_ = status;
    failed_rank_ = rank;
  }
  left_ = true;
  if (on_leave_) on_leave_();
  changed_.notify_all();
}

Status ThreadGroup::Meet(Place* place) {
  int64_t meeting = 0;
  {
    const std::lock_guard lock(mutex_);
    meeting = place->meetings;
    if (++place->arrived == ranks()) {
      place->arrived = 0;
      ++place->meetings;
      changed_.notify_all();
      return OkStatus();
    }
  }
  const auto until = std::chrono::steady_clock::now() + kYieldTime;
  while (place->meetings == meeting && !left_ && std::chrono::steady_clock::now() < until) {
    sched_yield();
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return place->meetings != meeting || left_; });
  if (place->meetings != meeting) return OkStatus();
  lock.unlock();
  return CutShort();
}

Status ThreadGroup::CutShort() {
  const std::lock_guard lock(mutex_);
  cut_short_ = true;
  if (failure_.ok()) failure_ = WaitsInVain();
  return failure_;
}

bool ThreadGroup::Place::SameSizes() const {
  return std::all_of(given.begin(), given.end(),
                     [&](const Contribution& other) { return other.size == given[0].size; });
}

// Each rank adds up its part of the elements and gives it to all. What is between two meetings is
// left by all ranks together: none ends, and takes its buffer away, before the second one.
Status ThreadGroup::AllReduceSum(int rank, float* data, int64_t count) {
  const std::vector<Contribution>& given = streams_.given;
  streams_.given[static_cast<size_t>(rank)] = {data, count};
  if (Status s = Meet(&streams_); !s.ok()) return s;
  const bool same = streams_.SameSizes();
  if (same) {
    const int64_t begin = count * rank / ranks(), end = count * (rank + 1) / ranks();
    constexpr int64_t kBlock = 1024;  // stays in the core's cache
    float sums[kBlock];
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t n = std::min(kBlock, end - at);
      std::copy_n(static_cast<const float*>(given[0].data) + at, n, sums);
      for (size_t i = 1; i < given.size(); ++i) {
        const float* from = static_cast<const float*>(given[i].data) + at;
        for (int64_t j = 0; j < n; ++j) sums[j] += from[j];
      }
      for (const Contribution& to : given) std::copy_n(sums, n, static_cast<float*>(to.data) + at);
    }
  }
  if (Status s = Meet(&streams_); !s.ok()) return s;
  return same ? OkStatus() : UnequalSizes();
}

Status ThreadGroup::AllGather(int rank, const SharedColumns& matrix) {
  streams_.given[static_cast<size_t>(rank)] = {matrix.data, matrix.rows * matrix.columns, matrix};
  if (Status s = Meet(&streams_); !s.ok()) return s;
  const bool same = streams_.SameSizes();
  for (int other = 0; other < ranks() && same; ++other) {
    const SharedColumns& from = streams_.given[static_cast<size_t>(other)].columns;
    if (other == rank) continue;
    for (int64_t row = 0; row < matrix.rows; ++row) {
      std::copy_n(from.data + row * from.columns + from.begin, from.end - from.begin,
                  matrix.data + row * matrix.columns + from.begin);
    }
  }
  if (Status s = Meet(&streams_); !s.ok()) return s;
  return same ? OkStatus() : UnequalSizes();
}

Status ThreadGroup::Broadcast(Place* place, int rank, std::span<std::byte> data, int from) {
  place->given[static_cast<size_t>(rank)] = {data.data(), std::ssize(data)};
  if (Status s = Meet(place); !s.ok()) return s;
  const bool same = place->SameSizes();
  if (same && rank != from) {
    std::memcpy(data.data(), place->given[static_cast<size_t>(from)].data, data.size());
  }
  if (Status s = Meet(place); !s.ok()) return s;
  return same ? OkStatus() : UnequalSizes();
}

Status ThreadGroup::GatherOnHost(int rank, std::span<const std::byte> own,
                                 std::span<std::byte> all) {
  hosts_.given[static_cast<size_t>(rank)] = {const_cast<std::byte*>(own.data()), std::ssize(own)};
  if (Status s = Meet(&hosts_); !s.ok()) return s;
  const bool same = hosts_.SameSizes();
  for (size_t other = 0; other < hosts_.given.size() && same; ++other) {
    std::memcpy(all.data() + other * own.size(), hosts_.given[other].data, own.size());
  }
  if (Status s = Meet(&hosts_); !s.ok()) return s;
  return same ? OkStatus() : UnequalSizes();
}

}  // namespace headway
