#include "cli/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/bytes.h"

namespace headway::cli {
namespace {

constexpr double kBarSeconds = 0.1;   // between redraws
constexpr double kLineSeconds = 3.0;  // between lines, at least
constexpr int kBarColumns = 24;
constexpr int kMinBarColumns = 6;

const char* PhaseName(Progress::Phase phase) {
  switch (phase) {
    case Progress::Phase::kRestore:
      return "restore";
    case Progress::Phase::kPrefill:
      return "prefill";
    case Progress::Phase::kDecode:
      return "decode";
  }
  return "?";
}

double Rate(const Progress& progress) {
  return progress.seconds > 0.0 ? static_cast<double>(progress.done) / progress.seconds : 0.0;
}

double Share(const Progress& progress) {
  if (progress.total <= 0) return 0.0;
  return std::clamp(static_cast<double>(progress.done) / static_cast<double>(progress.total), 0.0,
                    1.0);
}

// -1 while nothing is known.
double SecondsLeft(const Progress& progress) {
  const double rate = Rate(progress);
  if (rate <= 0.0) return -1.0;
  return static_cast<double>(std::max<int64_t>(progress.total - progress.done, 0)) / rate;
}

// "device 7.9 of 8.0 MiB, host 59.9 MiB": tiers that hold something, and the first.
std::string Tiers(const Progress& progress, const EngineOptions& limits) {
  const int64_t budgets[3] = {limits.kv_memory, limits.host_memory, limits.disk_memory};
  const char* names[3] = {"device", "host", "disk"};
  std::string text;
  for (int tier = 0; tier < 3; ++tier) {
    if (tier > 0 && progress.tier_bytes[tier] == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", names[tier],
                        FormatBytes(progress.tier_bytes[tier]));
    if (budgets[tier] != kNoLimit && budgets[tier] > 0) {
      text += "/" + FormatBytes(budgets[tier]);
    }
  }
  return text;
}

// "dev 75% host 61% disk 192.0 KiB": the same where room is scarce, of a budget the share that is
// used.
std::string ShortTiers(const Progress& progress, const EngineOptions& limits) {
  const int64_t budgets[3] = {limits.kv_memory, limits.host_memory, limits.disk_memory};
  const char* names[3] = {"dev", "host", "disk"};
  std::string text;
  for (int tier = 0; tier < 3; ++tier) {
    const int64_t bytes = progress.tier_bytes[tier];
    if (tier > 0 && bytes == 0) continue;
    const bool limited = budgets[tier] != kNoLimit && budgets[tier] > 0;
    const double share = static_cast<double>(bytes) / static_cast<double>(budgets[tier]);
    text += fmt::format("{}{} {}", text.empty() ? "" : " ", names[tier],
                        limited ? fmt::format("{:.0f}%", 100.0 * share) : FormatBytes(bytes));
  }
  return text;
}

}  // namespace

std::string FormatDuration(double seconds) {
  // What would take longer than this is not worth telling apart.
  const int64_t whole = std::llround(std::clamp(seconds, 0.0, 3.6e8));
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{}:{:02}", minutes, whole % 60);
}

std::string FormatBar(const Progress& progress, const EngineOptions& limits, int columns) {
  // One column stays free: a terminal wraps when the last is written.
  const size_t room = static_cast<size_t>(std::max(columns, 2)) - 1;
  std::string head = fmt::format("{:<7} ", PhaseName(progress.phase));
  std::string tail = fmt::format(" {:3.0f}% {}/{}", std::floor(100.0 * Share(progress)),
                                 progress.done, progress.total);
  const double left = SecondsLeft(progress);
  // Where a part does not fit, its second form; the bar is the first to give way.
  const std::string time = left < 0.0 ? "" : "  " + FormatDuration(left) + " left";
  const std::string parts[][2] = {
      {fmt::format("  {:.1f} tok/s", Rate(progress)),
       fmt::format("  {:.0f} tok/s", Rate(progress))},
      {time, time},
      {"  " + Tiers(progress, limits), "  " + ShortTiers(progress, limits)}};
  for (const auto& [full, brief] : parts) {
    const size_t used = head.size() + tail.size();
    if (used + kMinBarColumns + 2 + full.size() <= room) {
      tail += full;
    } else if (used + brief.size() <= room) {
      tail += brief;
    } else {
      break;
    }
  }
  const size_t used = head.size() + 2 + tail.size();
  std::string line = head;
  if (used + kMinBarColumns <= room) {
    const size_t width = std::min<size_t>(room - used, kBarColumns);
    const size_t full = static_cast<size_t>(Share(progress) * static_cast<double>(width));
    line += "[" + std::string(full, '#') + std::string(width - full, '.') + "]";
  }
  line += tail;
  return line.substr(0, room);
}

std::string FormatProgressLine(const Progress& progress, const EngineOptions& limits) {
  const double left = SecondsLeft(progress);
  return fmt::format(
      "{}: {} of {} tokens ({:.0f}%), {:.1f} tok/s{}; KV on {}", PhaseName(progress.phase),
      progress.done, progress.total, std::floor(100.0 * Share(progress)), Rate(progress),
      left < 0.0 ? "" : ", " + FormatDuration(left) + " left", Tiers(progress, limits));
}

void ProgressMeter::Show(const Progress& progress) {
  if (shown_ == Shown::kNo) return;
  if (progress.phase != phase_ || progress.done < done_) {  // another phase, or other work
    phase_ = progress.phase;
    shown_seconds_ = 0.0;
    shown_done_ = 0;
  }
  done_ = progress.done;
  const double since = progress.seconds - shown_seconds_;
  if (console_.err_is_terminal()) {
    if (since < kBarSeconds && progress.done < progress.total) return;
    const int columns = console_.columns() - static_cast<int>(prefix_.size());
    console_.SetStatusLine(prefix_ + FormatBar(progress, limits_, columns));
  } else {
    const double step =
        static_cast<double>(progress.done - shown_done_) / static_cast<double>(progress.total);
    // At most every few seconds, and then at every tenth or every ten seconds.
    if (since < kLineSeconds || (step < 0.1 && since < 10.0)) return;
    console_.Say("headway: " + FormatProgressLine(progress, limits_));
  }
  shown_seconds_ = progress.seconds;
  shown_done_ = progress.done;
}

}  // namespace headway::cli
