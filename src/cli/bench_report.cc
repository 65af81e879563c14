#include "cli/bench_report.h"

#include <fmt/format.h>

#include <algorithm>

namespace headway::cli {
namespace {

// How long the slowest of a hundred steps takes, in median steps.
std::string StepSpread(const Measured& measured) {
  constexpr size_t kFewest = 100;
  const double median = Quantile(measured.step_seconds, 0.5);
  if (measured.step_seconds.size() < kFewest || median <= 0.0) return "";
  return fmt::format("p99 of a step {:.2f} medians",
                     Quantile(measured.step_seconds, 0.99) / median);
}

// The lanes' busy time of the last repetition in parts of the wall clock.
std::string BusyLanes(const Measured& measured) {
  std::string text = StepSpread(measured);
  if (measured.timings.drafted_tokens > 0) {
    text += (text.empty() ? "" : ", ") + DraftsText(measured.timings);
  }
  if (const std::string shares = RankSharesText(measured.shares); !shares.empty()) {
    text += (text.empty() ? "" : ", ") + shares;
  }
  if (!measured.lanes_alone) return text;
  for (const LaneReport& lane : measured.lanes) {
    if (lane.busy_seconds <= 0.0) continue;
    text += fmt::format("{}{} {:.0f}%", text.empty() ? "" : ", ", lane.lane,
                        100.0 * lane.busy_seconds / measured.seconds.back());
  }
  if (measured.kv_encoding == "lossless") text += ", lossless pages";
  if (measured.timings.host_share > 0.0) {
    text += fmt::format(", CPU's share {:.1f}%", 100.0 * measured.timings.host_share);
  }
  if (measured.recompute_share > 0.0) {
    text += fmt::format(", recomputed {:.0f}%", 100.0 * measured.recompute_share);
  }
  const auto add_found = [&](const char* whose, const PageCacheReads& reads) {
    if (reads.all() == 0) return;
    text += fmt::format(", {}found in the page cache {:.1f}%", whose, 100.0 * FoundShare(reads));
  };
  add_found("", measured.timings.page_cache);
  add_found("prompts ", measured.timings.prompts.page_cache);
  return text;
}

// Of the predicted speed, against the measured one.
double PredictionError(const Measured& measured) {
  if (measured.predicted_seconds <= 0.0) return 0.0;
  return measured.median() / measured.predicted_seconds - 1.0;
}

std::string PredictionCell(const Measured& measured) {
  if (measured.predicted_seconds <= 0.0) return "-";
  return fmt::format("{:.1f} ({:+.0f}%)",
                     TokensPerSecond(measured.tokens, measured.predicted_seconds),
                     100.0 * PredictionError(measured));
}

double Share(const Measured& measured) {
  return measured.median() > 0.0 ? measured.floor_seconds / measured.median() : 0.0;
}

std::string TableLine(size_t width, const std::vector<std::string>& cells) {
  std::string line =
      fmt::format("{:>{}}  {:>5}  {:>8}  {:>14}  {:>7}  {:>7}  {:>8}  {}", cells[0], width,
                  cells[1], cells[2], cells[3], cells[4], cells[5], cells[6], cells[7]);
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

}  // namespace

std::string Lengths(const std::vector<int64_t>& lengths) {
  if (std::equal(lengths.begin() + 1, lengths.end(), lengths.begin())) {
    return std::to_string(lengths[0]);
  }
  std::string text;
  for (int64_t length : lengths) text += (text.empty() ? "" : "+") + std::to_string(length);
  return text;
}

std::string BenchHead(const Engine& engine, const MachinePeaks& peaks, size_t width) {
  std::string text = fmt::format("{}: {}, {} threads\nmeasured\n", engine.info().folder,
                                 engine.kernels(), engine.threads());
  const auto add = [&](const char* what, double rate, const char* unit) {
    if (rate <= 0.0) return;
    const bool tera = rate >= 1e12;
    text += fmt::format("  {:<16}{:>9.2f} {}{}\n", what, rate * (tera ? 1e-12 : 1e-9),
                        tera ? "T" : "G", unit);
  };
  add("memory read", peaks.read_bytes_per_second, "B/s");
  add("matrix product", peaks.gemm_flops_per_second, "FLOP/s");
  add("attention", peaks.attention_flops_per_second, "FLOP/s");
  const std::string each = peaks.copying_gpus > 1
                               ? fmt::format("B/s, each of {} GPUs at a time", peaks.copying_gpus)
                               : "B/s";
  add("host to device", peaks.host_to_device_bytes_per_second, each.c_str());
  add("device to host", peaks.device_to_host_bytes_per_second, each.c_str());
  add("host's cores", peaks.host_read_bytes_per_second, "B/s, while copies run");
  add("beside them", peaks.shared_host_to_device_bytes_per_second, "B/s, host to device");
  add("disk read", peaks.disk_read_bytes_per_second, "B/s");
  return text + TableLine(width, {"context", "batch", "tok/s", "predicted", "seconds", "floor s",
                                  "roofline", "lanes busy"});
}

std::string BenchRow(const Measured& measured, size_t width) {
  return TableLine(width,
                   {Lengths(measured.lengths), std::to_string(measured.lengths.size()),
                    fmt::format("{:.1f}", TokensPerSecond(measured.tokens, measured.median())),
                    PredictionCell(measured), fmt::format("{:.3f}", measured.median()),
                    fmt::format("{:.3f}", measured.floor_seconds),
                    fmt::format("{:.0f}%", 100.0 * Share(measured)), BusyLanes(measured)});
}

Json BenchJson(const char* bench, const Engine& engine, const MachinePeaks& peaks,
               const std::vector<Measured>& all) {
  Json json = {
      {"bench", bench},
      {"model", engine.info().folder},
      {"kernels", engine.kernels()},
      {"threads", engine.threads()},
      {"peaks",
       {{"read_bytes_per_second", peaks.read_bytes_per_second},
        {"gemm_flops_per_second", peaks.gemm_flops_per_second},
        {"attention_flops_per_second", peaks.attention_flops_per_second},
        {"host_to_device_bytes_per_second", peaks.host_to_device_bytes_per_second},
        {"device_to_host_bytes_per_second", peaks.device_to_host_bytes_per_second},
        {"copying_gpus", peaks.copying_gpus},
        {"host_read_bytes_per_second", peaks.host_read_bytes_per_second},
        {"shared_host_to_device_bytes_per_second", peaks.shared_host_to_device_bytes_per_second},
        {"disk_read_bytes_per_second", peaks.disk_read_bytes_per_second}}},
      {"results", Json::array()}};
  for (const Measured& measured : all) {
    Json result = {{"lengths", measured.lengths},
                   {"tokens", measured.tokens},
                   {"tokens_per_second", TokensPerSecond(measured.tokens, measured.median())},
                   {"seconds", measured.seconds},
                   {"median_seconds", measured.median()},
                   {"step_seconds",
                    {{"p50", Quantile(measured.step_seconds, 0.5)},
                     {"p99", Quantile(measured.step_seconds, 0.99)},
                     {"max", Quantile(measured.step_seconds, 1.0)}}},
                   {"floor_seconds", measured.floor_seconds},
                   {"roofline_share", Share(measured)},
                   {"recompute_share", measured.recompute_share},
                   {"kv_encoding", measured.kv_encoding},
                   {"predicted_seconds", measured.predicted_seconds},
                   {"prediction_error", PredictionError(measured)},
                   {"kv_bytes", TiersJson(measured.tiers)},
                   {"attend_seconds", measured.attended},
                   {"lanes", LanesJson(measured.lanes)}};
    result.update(CountsJson(measured.timings));
    json["results"].push_back(std::move(result));
  }
  return json;
}

}  // namespace headway::cli
