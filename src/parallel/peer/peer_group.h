// PeerGroup: ranks in one process, each with a GPU, whose kernels read and write each other's
// memory. Small sums take one way between GPUs: each rank sends its part to all mailboxes and adds
// up what has come to its own. For larger ones each rank adds up a share and writes it to all.
// Nothing passes through the host but decisions (OfFirst), what hosts gather and errors.
//
// Where a pair of GPUs has no peer access, all mailboxes lie in pinned memory of the host, and
// everything goes through them.
#ifndef HEADWAY_PARALLEL_PEER_PEER_GROUP_H_
#define HEADWAY_PARALLEL_PEER_PEER_GROUP_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "headway/status.h"
#include "parallel/peer/peer_kernels.h"
#include "parallel/rank_group.h"
#include "parallel/thread/thread_group.h"

namespace headway {

// For tests: as if GPUs did not reach each other's memory, or as if ranks that share a GPU did not.
struct PeerOptions {
  bool peer_access = true;
  bool meets_on_host = true;
};

class PeerGroup final : public RankGroup {
 public:
  // `gpus` has one index for each rank, 16 at most. Ranks may share a GPU, for tests: a kernel of
  // one then waits for one of another while CUDA, which is asked for memory, say, waits for the
  // first. So ranks meet on the host before each call, when they have nothing else to do, and
  // behind it, and the environment has CUDA_DEVICE_MAX_CONNECTIONS=32, or the call of one may be
  // queued behind that of another; else kUnsupported. Mailboxes take half a MiB of each GPU for
  // each rank, of what budgets count for the driver.
  static Result<std::unique_ptr<PeerGroup>> Create(std::span<const int> gpus,
                                                   const PeerOptions& options = {});
  ~PeerGroup() override;
  PeerGroup(const PeerGroup&) = delete;
  PeerGroup& operator=(const PeerGroup&) = delete;

  int ranks() const override { return hosts_.ranks(); }
  Communicator& communicator(int rank) override;
  Status Run(const std::function<Status(int rank)>& work) override;
  // Whether all pairs of GPUs reach each other's memory.
  bool direct() const { return direct_; }

 private:
  class Member;

  PeerGroup(std::span<const int> gpus, const PeerOptions& options);
  Status Connect();
  Status MakeMailboxes();
  // Whether a rank's call has the size that the others give it: who comes first says it.
  bool Agree(int64_t call, int64_t size);
  Status Failure(int rank);

  const std::vector<int> gpus_;
  const PeerOptions options_;
  ThreadGroup hosts_;  // what ranks say to each other on the host, and what becomes of errors
  std::vector<std::unique_ptr<Member>> members_;
  bool direct_ = false;
  bool shared_ = false;                // two ranks have one GPU
  std::vector<std::byte*> mailboxes_;  // [ranks]
  // Pinned: whether a rank has ended its work of this Run, and for each rank whether one of its
  // calls has waited in vain.
  volatile uint32_t* left_ = nullptr;
  volatile uint32_t* failed_ = nullptr;

  std::mutex mutex_;
  // Of calls that not all ranks have made: the first one's number is first_call_.
  struct Call {
    int64_t size = 0;
    int ranks = 0;
  };
  std::deque<Call> calls_;
  int64_t first_call_ = 0;
};

}  // namespace headway

#endif  // HEADWAY_PARALLEL_PEER_PEER_GROUP_H_
