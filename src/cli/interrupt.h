// Ctrl-C: the first asks the work under way to end cleanly, the second kills the process.
#ifndef HEADWAY_CLI_INTERRUPT_H_
#define HEADWAY_CLI_INTERRUPT_H_

#include <signal.h>

#include <atomic>

namespace headway::cli {

// While one exists, SIGINT, SIGTERM and, where it is not ignored, SIGHUP raise its flag instead of
// killing. At most one at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  const std::atomic<bool>* flag() const;
  bool raised() const { return flag()->load(); }
  void Clear();  // for a program that goes on, as chat does

 private:
  struct sigaction old_interrupt_ = {};
  struct sigaction old_terminate_ = {};
  struct sigaction old_hangup_ = {};
};

}  // namespace headway::cli

#endif  // HEADWAY_CLI_INTERRUPT_H_
