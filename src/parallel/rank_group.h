// RankGroup: the ranks of one process, each with a thread of its own.
#ifndef HEADWAY_PARALLEL_RANK_GROUP_H_
#define HEADWAY_PARALLEL_RANK_GROUP_H_

#include <functional>

#include "headway/status.h"
#include "parallel/communicator.h"

namespace headway {

class RankGroup {
 public:
  virtual ~RankGroup() = default;
  virtual int ranks() const = 0;
  // For use in Run, by the thread of that rank.
  virtual Communicator& communicator(int rank) = 0;

  // Calls work(rank) for every rank, rank 0 on the calling thread, and returns when all have ended:
  // the first error, if any. A rank that ends, well or not, ends what others wait for it to join.
  // Once an error has cut a call of a communicator short, ranks are no longer at the same point:
  // every later Run returns it. One Run at a time. Streams of its calls outlive it.
  virtual Status Run(const std::function<Status(int rank)>& work) = 0;
};

}  // namespace headway

#endif  // HEADWAY_PARALLEL_RANK_GROUP_H_
