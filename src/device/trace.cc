#include "device/trace.h"

#include <fmt/format.h>

#include <iterator>
#include <memory>
#include <string_view>
#include <utility>

#include "base/bytes.h"

namespace headway {

void Trace::Add(Lane lane, const WorkCost& cost, const Place& place, int64_t start_ns,
                int64_t end_ns) {
  std::lock_guard lock(mutex_);
  LaneTotals& totals = totals_[static_cast<int>(lane)];
  int64_t& last_end_ns = last_end_ns_[static_cast<int>(lane)];
  const int64_t pause_ns = start_ns - last_end_ns;
  const bool hands_over = lane == Lane::kHostToDevice && pause_ns > 0 && pause_ns < kHandOver;
  totals.busy_ns += end_ns - start_ns + (hands_over ? pause_ns : 0);
  last_end_ns = end_ns;
  totals.bytes += cost.bytes;
  totals.flops += cost.flops;
  if (place.layer >= 0 && std::string_view(cost.name).starts_with("attend")) {
    std::vector<int64_t>& layers = attend_ns_[place.decode ? 1 : 0];
    const auto at = static_cast<size_t>(place.layer);
    if (layers.size() <= at) layers.resize(at + 1);
    layers[at] += end_ns - start_ns;
  }
  if (events_enabled_) entries_.push_back({lane, cost, place, start_ns, end_ns});
}

void Trace::Count(const char* graph, int64_t at_ns, std::span<const Number> numbers) {
  std::lock_guard lock(mutex_);
  if (events_enabled_) counted_.push_back({graph, at_ns, {numbers.begin(), numbers.end()}});
}

Trace::LaneTotals Trace::totals(Lane lane) const {
  std::lock_guard lock(mutex_);
  return totals_[static_cast<int>(lane)];
}

std::vector<int64_t> Trace::attend_ns(bool decode) const {
  std::lock_guard lock(mutex_);
  return attend_ns_[decode ? 1 : 0];
}

void Trace::ResetTotals() {
  std::lock_guard lock(mutex_);
  for (LaneTotals& totals : totals_) totals = LaneTotals{};
}

Status Trace::Write(Env& env, const std::string& path) const {
  std::string json = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  {
    std::lock_guard lock(mutex_);
    auto out = std::back_inserter(json);
    for (int lane = 0; lane < kLaneCount; ++lane) {
      fmt::format_to(out,
                     "{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\","
                     "\"args\":{{\"name\":\"{}\"}}}},\n",
                     lane, LaneName(static_cast<Lane>(lane)));
    }
    const int64_t origin = entries_.empty() ? 0 : entries_.front().start_ns;
    for (const Entry& e : entries_) {
      const double seconds = static_cast<double>(e.end_ns - e.start_ns) * 1e-9;
      const double a_second = seconds > 0 ? 1e-9 / seconds : 0.0;
      fmt::format_to(
          out,
          "{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"name\":\"{}\",\"ts\":{:.3f},\"dur\":{:.3f},"
          "\"args\":{{\"layer\":{},\"bytes\":{},\"flops\":{},\"GB/s\":{:.2f},\"GFLOP/"
          "s\":{:.2f}}}}},"
          "\n",
          static_cast<int>(e.lane), e.cost.name, static_cast<double>(e.start_ns - origin) * 1e-3,
          seconds * 1e6, e.place.layer, e.cost.bytes, e.cost.flops,
          static_cast<double>(e.cost.bytes) * a_second,
          static_cast<double>(e.cost.flops) * a_second);
    }
    for (const Counted& c : counted_) {
      fmt::format_to(out, "{{\"ph\":\"C\",\"pid\":1,\"name\":\"{}\",\"ts\":{:.3f},\"args\":{{",
                     c.graph, static_cast<double>(c.at_ns - origin) * 1e-3);
      const char* between = "";
      for (const Number& number : c.numbers) {
        fmt::format_to(out, "{}\"{}\":{}", std::exchange(between, ","), number.name, number.value);
      }
      fmt::format_to(out, "}}}},\n");
    }
    fmt::format_to(out,
                   "{{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\","
                   "\"args\":{{\"name\":\"headway\"}}}}\n]}}\n");
  }
  Result<std::unique_ptr<File>> file = env.Open(path, OpenMode::kCreate, FileIo::kCached);
  if (!file.ok()) return file.status();
  const IoPiece piece{reinterpret_cast<std::byte*>(json.data()), json.size(), 0};
  return (*file)->Write({&piece, 1});
}

}  // namespace headway
