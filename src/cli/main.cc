#include <fcntl.h>
#include <malloc.h>

#include <cstdio>

#include "base/exceptions.h"
#include "cli/commands.h"
#include "cli/console.h"

namespace {

// Standard streams that were closed by the caller stay unusable: a session file that got the number
// of one would get what is printed.
void HoldClosedStreams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) == -1) open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
  }
}

// What is freed goes back to the system. glibc would raise its threshold to the size of each large
// buffer that is freed and keep such ones: a prompt's pieces, 100 bytes a token, beside the memory
// that was planned.
void ReturnFreedMemory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 128 * 1024);
#endif
}

}  // namespace

int main(int argc, char** argv) try {
  HoldClosedStreams();
  ReturnFreedMemory();
  headway::cli::Console console(stdin, stdout, stderr);
  const headway::cli::Args args(argv + (argc > 0 ? 1 : 0), argv + argc);
  return headway::cli::MainOfProcess(args, console);
} catch (...) {
  std::fprintf(stderr, "headway: error: %s\n", headway::StatusOfException().message().c_str());
  return headway::cli::kExitFailed;
}
