// Ranks in processes that compute on GPUs, which NCCL connects.
#ifndef HEADWAY_PARALLEL_NCCL_NCCL_COMMUNICATOR_H_
#define HEADWAY_PARALLEL_NCCL_NCCL_COMMUNICATOR_H_

#include <memory>

#include "headway/status.h"
#include "parallel/communicator.h"
#include "parallel/process_group.h"

namespace headway {

// In a Run of `group`, whose ranks all call it, each with the number of a GPU of its own: what they
// say to each other from then on, on streams of these GPUs by NCCL and on hosts by the group, which
// outlives it. Null where another rank cannot take part, whose error the Run returns.
//
// Sums are added in the order of NCCL's algorithm for the machine and the size: the same bits on
// every rank, and from run to run on the same machine, but with more than two ranks not those of
// the order of the ranks. Sizes are not compared: ranks that give unequal ones wait for ever, or
// get anything.
//
// Where a rank ends without a call that this one waits for, or NCCL reports an error, all calls are
// aborted. What they were to make is not made then, and their streams have an error from before the
// abort on, so that whoever waits for them learns of it.
Result<std::unique_ptr<Communicator>> ConnectGpus(ProcessGroup& group, int gpu);

}  // namespace headway

#endif  // HEADWAY_PARALLEL_NCCL_NCCL_COMMUNICATOR_H_
