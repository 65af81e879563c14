// Progress of long work: a bar on a terminal, a line now and then elsewhere.
#ifndef HEADWAY_CLI_PROGRESS_H_
#define HEADWAY_CLI_PROGRESS_H_

#include <cstdint>
#include <string>
#include <utility>

#include "cli/console.h"
#include "headway/context.h"
#include "headway/options.h"

namespace headway::cli {

// "0:07", "12:40", "3:05:00".
std::string FormatDuration(double seconds);

// One line of at most `columns` characters: phase, bar, tokens, speed, time left, tiers' fill. What
// finds no room is left out, from the right.
std::string FormatBar(const Progress& progress, const EngineOptions& limits, int columns);
// The same in words, for logs.
std::string FormatProgressLine(const Progress& progress, const EngineOptions& limits);

class ProgressMeter {
 public:
  enum class Shown { kYes, kNo };
  ProgressMeter(Console& console, const EngineOptions& limits, Shown shown)
      : console_(console), limits_(limits), shown_(shown) {}
  ~ProgressMeter() { console_.ClearStatusLine(); }
  ProgressMeter(const ProgressMeter&) = delete;
  ProgressMeter& operator=(const ProgressMeter&) = delete;

  void Show(const Progress& progress);
  // What stands before the bar on a terminal.
  void SetPrefix(std::string prefix) { prefix_ = std::move(prefix); }

 private:
  Console& console_;
  const EngineOptions& limits_;
  const Shown shown_;
  std::string prefix_;
  Progress::Phase phase_ = Progress::Phase::kPrefill;
  int64_t done_ = -1;           // when it was last called
  double shown_seconds_ = 0.0;  // when it was last shown
  int64_t shown_done_ = 0;
};

}  // namespace headway::cli

#endif  // HEADWAY_CLI_PROGRESS_H_
