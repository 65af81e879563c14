// Trace: what ran on which lane and when, written as Chrome/Perfetto JSON.
#ifndef HEADWAY_DEVICE_TRACE_H_
#define HEADWAY_DEVICE_TRACE_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "device/device.h"
#include "headway/status.h"

namespace headway {

// Thread-safe; records nothing until enabled. Also sums the time, bytes and FLOPs of each lane,
// which the benchmarks compare with the floor.
class Trace {
 public:
  struct LaneTotals {
    // On the h2d lane a pause of less than kHandOver between two copies belongs to them.
    int64_t busy_ns = 0;
    int64_t bytes = 0;
    int64_t flops = 0;
  };

  static constexpr int64_t kHandOver = 5000;  // ns

  void EnableEvents() { events_enabled_ = true; }
  void Add(Lane lane, const WorkCost& cost, int64_t start_ns, int64_t end_ns);
  // Numbers as they are at a point in time, which viewers draw as one graph; names outlive the
  // trace.
  struct Number {
    const char* name;
    int64_t value;
  };
  void Count(const char* graph, int64_t at_ns, std::span<const Number> numbers);
  LaneTotals totals(Lane lane) const;
  void ResetTotals();
  // What works whose names begin with "attend" have taken on all lanes since the trace was made.
  int64_t attend_ns() const;
  // {"traceEvents": [...]}, one row a lane and one a graph.
  Status Write(Env& env, const std::string& path) const;

 private:
  struct Entry {
    Lane lane;
    const char* name;
    int64_t start_ns, end_ns, bytes, flops;
  };
  struct Counted {
    const char* graph;
    int64_t at_ns;
    std::vector<Number> numbers;
  };

  std::atomic<bool> events_enabled_ = false;
  mutable std::mutex mutex_;
  LaneTotals totals_[kLaneCount];
  int64_t last_end_ns_[kLaneCount] = {};
  int64_t attend_ns_ = 0;
  std::vector<Entry> entries_;
  std::vector<Counted> counted_;
};

}  // namespace headway

#endif  // HEADWAY_DEVICE_TRACE_H_
