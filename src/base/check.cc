#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace headway {

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "headway: bug: %s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace headway
