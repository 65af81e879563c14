#include "parallel/local/local_group.h"

#include "parallel/thread/thread_group.h"
#ifdef HEADWAY_CUDA
#include "parallel/peer/peer_group.h"
#endif

namespace headway {

Result<std::unique_ptr<RankGroup>> NewLocalGroup(int ranks, std::span<const int> gpus) {
#ifdef HEADWAY_CUDA
  if (!gpus.empty()) {
    Result<std::unique_ptr<PeerGroup>> group = PeerGroup::Create(gpus);
    if (!group.ok()) return group.status();
    return std::unique_ptr<RankGroup>(std::move(*group));
  }
#else
  static_cast<void>(gpus);  // no backend of this build has any
#endif
  return std::unique_ptr<RankGroup>(std::make_unique<ThreadGroup>(ranks));
}

}  // namespace headway
