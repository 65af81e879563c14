// What `bench` prints of what it measured.
#ifndef HEADWAY_CLI_BENCH_REPORT_H_
#define HEADWAY_CLI_BENCH_REPORT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/quantile.h"
#include "cli/rank_shares.h"
#include "cli/report.h"
#include "cli/roofline.h"
#include "headway/engine.h"

namespace headway::cli {

// One batch, measured.
struct Measured {
  std::vector<int64_t> lengths;
  int64_t tokens = 0;  // of one repetition
  std::vector<double> seconds;
  std::vector<double> step_seconds;  // of each decode step of all repetitions
  double floor_seconds = 0.0;
  double predicted_seconds = 0.0;  // 0: not predicted
  std::vector<LaneReport> lanes;   // of all repetitions
  bool lanes_alone = true;         // they read no prompts beside what was measured
  AttendTimes attended;            // in the phase that is measured, of the last repetition
  RankShares shares;               // by these, of ranks that wait for each other in every layer
  TierUse tiers;
  double recompute_share = 0.0;
  std::string kv_encoding;
  Timings timings;  // of the last repetition

  double median() const { return Quantile(seconds, 0.5); }
};

// "4096", or "4096+2048" of sequences that are not alike.
std::string Lengths(const std::vector<int64_t>& lengths);

// What is known before anything is measured but the machine, and the head of the table, whose first
// column has that width.
std::string BenchHead(const Engine& engine, const MachinePeaks& peaks, size_t width);
// A row of the table, which is printed before the next are known.
std::string BenchRow(const Measured& measured, size_t width);
// `bench`: "prefill" or "decode".
Json BenchJson(const char* bench, const Engine& engine, const MachinePeaks& peaks,
               const std::vector<Measured>& all);

}  // namespace headway::cli

#endif  // HEADWAY_CLI_BENCH_REPORT_H_
