// The group of ranks in this process that suits the devices which they compute on. The one place
// that knows which there are in this build.
#ifndef HEADWAY_PARALLEL_LOCAL_LOCAL_GROUP_H_
#define HEADWAY_PARALLEL_LOCAL_LOCAL_GROUP_H_

#include <memory>
#include <span>

#include "headway/status.h"
#include "parallel/rank_group.h"

namespace headway {

// `gpus` has the index of each rank's GPU, on which its streams will be; empty where the host reads
// the memory of all devices. kUnsupported where ranks on these GPUs cannot be connected.
Result<std::unique_ptr<RankGroup>> NewLocalGroup(int ranks, std::span<const int> gpus);

}  // namespace headway

#endif  // HEADWAY_PARALLEL_LOCAL_LOCAL_GROUP_H_
