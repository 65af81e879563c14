// The POSIX Env with its choices open; Env::Default() is one with the defaults.
#ifndef HEADWAY_BASE_ENV_POSIX_H_
#define HEADWAY_BASE_ENV_POSIX_H_

#include <memory>

#include "base/env.h"

namespace headway {

struct PosixEnvOptions {
  bool io_uring = true;  // false, or a kernel that refuses: batches go through threads instead
};

// Must outlive the files that it opens.
std::unique_ptr<Env> NewPosixEnv(const PosixEnvOptions& options);

}  // namespace headway

#endif  // HEADWAY_BASE_ENV_POSIX_H_
