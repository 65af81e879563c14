#include "parallel/nccl/nccl_communicator.h"

namespace headway {

Result<std::unique_ptr<Communicator>> ConnectGpus(ProcessGroup&, int) {
  return Status(StatusCode::kUnsupported, "this build has no CUDA");
}

}  // namespace headway
