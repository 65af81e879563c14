#include "parallel/process_group.h"

namespace headway {

Result<std::unique_ptr<ProcessGroup>> JoinProcesses() {
  return Status(StatusCode::kUnsupported,
                "a launcher of MPI started this, and this build has no MPI: install Open MPI "
                "(scripts/setup.sh --all does) and build again");
}

}  // namespace headway
