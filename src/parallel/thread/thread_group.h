// ThreadGroup: ranks in one process, each with a thread of its own, that read and write each
// other's buffers. For devices whose memory the host reads.
#ifndef HEADWAY_PARALLEL_THREAD_THREAD_GROUP_H_
#define HEADWAY_PARALLEL_THREAD_THREAD_GROUP_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "headway/status.h"
#include "parallel/communicator.h"
#include "parallel/rank_group.h"

namespace headway {

class ThreadGroup final : public RankGroup {
 public:
  // `on_leave`, if given, is called as a rank ends its work of a Run, behind its error.
  explicit ThreadGroup(int ranks, std::function<void()> on_leave = nullptr);
  ~ThreadGroup() override;
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  int ranks() const override { return static_cast<int>(members_.size()); }
  Communicator& communicator(int rank) override;
  Status Run(const std::function<Status(int rank)>& work) override;

  // For groups whose ranks wait for each other elsewhere, too: a rank has waited for one that has
  // ended. The error to return.
  Status CutShort();

 private:
  class Member;
  struct Contribution {
    void* data = nullptr;
    int64_t size = 0;
    SharedColumns columns = {};
  };
  // Where ranks meet. Streams and hosts have one each, since a stream may be behind its host.
  struct Place {
    std::vector<Contribution> given;  // [ranks], between two meetings
    std::atomic<int64_t> meetings = 0;
    int arrived = 0;  // at the next meeting

    bool SameSizes() const;
  };

  // Waits until every rank has come to the place.
  Status Meet(Place* place);
  Status AllReduceSum(int rank, float* data, int64_t count);
  Status AllGather(int rank, const SharedColumns& matrix);
  Status Broadcast(Place* place, int rank, std::span<std::byte> data, int from);
  Status GatherOnHost(int rank, std::span<const std::byte> own, std::span<std::byte> all);
  void Leave(int rank, const Status& status);

  const std::function<void()> on_leave_;
  std::vector<std::unique_ptr<Member>> members_;
  Place streams_, hosts_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> left_ = false;  // a rank has ended its work of this Run
  Status failure_;                  // the first of this Run
  int failed_rank_ = 0;
  bool cut_short_ = false;  // a rank waited in vain
  Status broken_;           // what every later Run returns
};

}  // namespace headway

#endif  // HEADWAY_PARALLEL_THREAD_THREAD_GROUP_H_
