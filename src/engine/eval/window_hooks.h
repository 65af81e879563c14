// Hooks for texts that are read one window after the other, whose progress counts all of them.
#ifndef HEADWAY_ENGINE_EVAL_WINDOW_HOOKS_H_
#define HEADWAY_ENGINE_EVAL_WINDOW_HOOKS_H_

#include <cstdint>

#include "headway/context.h"

namespace headway::eval {

class WindowHooks {
 public:
  // `total` tokens are read in all. `hooks` outlive this.
  WindowHooks(int64_t total, const Hooks& hooks) : all_(hooks), total_(total) {
    one_ = hooks;
    if (!hooks.on_progress) return;
    one_.on_progress = [this](const Progress& of_window) {
      Progress progress = of_window;
      progress.done += before_;
      progress.total = total_;
      progress.seconds += seconds_before_;
      all_.on_progress(progress);
    };
  }
  WindowHooks(const WindowHooks&) = delete;
  WindowHooks& operator=(const WindowHooks&) = delete;

  // Those of the window at hand.
  const Hooks& get() const { return one_; }
  // A call that read a part of it took so long.
  void AddSeconds(double seconds) { seconds_before_ += seconds; }
  void FinishWindow(int64_t tokens) { before_ += tokens; }

 private:
  const Hooks& all_;
  Hooks one_;
  const int64_t total_;
  int64_t before_ = 0;
  double seconds_before_ = 0.0;
};

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_WINDOW_HOOKS_H_
