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

namespace headway {

class ThreadGroup {
 public:
  explicit ThreadGroup(int ranks);
  ~ThreadGroup();
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  int ranks() const { return static_cast<int>(members_.size()); }
  // For use in Run, by the thread of that rank.
  Communicator& communicator(int rank);

  // Calls work(rank) for every rank, rank 0 on the calling thread, and returns when all have ended:
  // the first error, if any. A rank that ends, well or not, ends what others wait for it to join.
  // Once an error has cut a call of a communicator short, ranks are no longer at the same point:
  // every later Run returns it. One Run at a time.
  Status Run(const std::function<Status(int rank)>& work);

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
  void Leave(int rank, const Status& status);

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
