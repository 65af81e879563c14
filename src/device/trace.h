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
  // Where a step was as a lane was given work.
  struct Place {
    int layer = -1;       // -1: at none
    bool decode = false;  // each of its sequences has a token, or its drafts
  };
  // Work that lanes are given from here on is of this place.
  void Begin(const Place& place) { place_.store(place, std::memory_order_relaxed); }
  Place place() const { return place_.load(std::memory_order_relaxed); }
  // Work on a lane, and what place() said as the lane was given it.
  void Add(Lane lane, const WorkCost& cost, const Place& place, int64_t start_ns, int64_t end_ns);
  // Numbers as they are at a point in time, which viewers draw as one graph; names outlive the
  // trace.
  struct Number {
    const char* name;
    int64_t value;
  };
  void Count(const char* graph, int64_t at_ns, std::span<const Number> numbers);
  LaneTotals totals(Lane lane) const;
  void ResetTotals();
  // What works whose names begin with "attend" have taken on all lanes since the trace was made, in
  // each layer, up to the last that had any: in steps that decode alone, or in others.
  std::vector<int64_t> attend_ns(bool decode) const;
  // {"traceEvents": [...]}, one row a lane and one a graph.
  Status Write(Env& env, const std::string& path) const;

 private:
  struct Entry {
    Lane lane;
    WorkCost cost;
    Place place;
    int64_t start_ns, end_ns;
  };
  struct Counted {
    const char* graph;
    int64_t at_ns;
    std::vector<Number> numbers;
  };

  std::atomic<bool> events_enabled_ = false;
  std::atomic<Place> place_ = Place{};
  mutable std::mutex mutex_;
  LaneTotals totals_[kLaneCount];
  int64_t last_end_ns_[kLaneCount] = {};
  std::vector<int64_t> attend_ns_[2];  // [decode]
  std::vector<Entry> entries_;
  std::vector<Counted> counted_;
};

}  // namespace headway

#endif  // HEADWAY_DEVICE_TRACE_H_
