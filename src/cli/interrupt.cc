#include "cli/interrupt.h"

#include "base/check.h"

namespace headway::cli {
namespace {

// A signal handler sees nothing but globals.
std::atomic<bool> g_raised = false;
std::atomic<bool> g_guarded = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void OnSignal(int number) {
  if (g_raised.exchange(true)) {
    signal(number, SIG_DFL);
    raise(number);
  }
}

}  // namespace

InterruptGuard::InterruptGuard() {
  HEADWAY_CHECK(!g_guarded.exchange(true));
  g_raised = false;
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  // No SA_RESTART: a read from the terminal ends, too.
  sigaction(SIGINT, &action, &old_interrupt_);
  sigaction(SIGTERM, &action, &old_terminate_);
  // Under nohup it stays ignored.
  sigaction(SIGHUP, nullptr, &old_hangup_);
  if (old_hangup_.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &old_interrupt_, nullptr);
  sigaction(SIGTERM, &old_terminate_, nullptr);
  sigaction(SIGHUP, &old_hangup_, nullptr);
  g_guarded = false;
}

const std::atomic<bool>* InterruptGuard::flag() const { return &g_raised; }
void InterruptGuard::Clear() { g_raised = false; }

}  // namespace headway::cli
