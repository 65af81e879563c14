#include "plan/attention_cost.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace headway::plan {

// An H200 takes 0.74 of the time of unencoded keys for int8 and fp8, 0.67 for int4, 15 cores beside
// it 0.69 and 0.57. Lossless pages take 1.16 there, in parts of 512 keys, and 0.85 on the cores.
double BytesInTime(const Subject& subject, double bytes, double keys, AttendsOn on) {
  constexpr double kCodesTime = 0.7;
  constexpr double kLosslessTime = 1.16;
  constexpr double kLosslessHostTime = 0.85;
  const double time = !subject.lossless        ? kCodesTime
                      : on == AttendsOn::kHost ? kLosslessHostTime
                                               : kLosslessTime;
  const auto element = static_cast<double>(DTypeBytes(subject.shape.dtype));
  const double plain = keys * 2.0 * subject.shape.head_dim * element;
  return std::max(bytes, time * plain);
}

double AttentionSeconds(const MachineProfile& machine, const Subject& subject, int heads,
                        double keys, double queries, double filling) {
  if (keys <= 0.0 || queries <= 0.0) return 0.0;
  const RangeWork work = WorkOf(RangePath::kResident, subject, heads, keys, queries);
  const double bytes =
      machine.own_memory ? BytesInTime(subject, work.device_bytes, heads * keys, AttendsOn::kDevice)
                         : work.device_bytes;
  const double read = machine.decode_attention.Seconds(bytes);
  if (queries <= 1.0) return read;
  const double rate = machine.attention.Rate(filling * heads * subject.shape.group());
  return std::max(read, work.flops / rate);
}

double MergeSeconds(const MachineProfile& machine, const ModelShape& shape, int heads,
                    double queries) {
  return queries * heads * shape.group() * shape.head_dim * 16.0 / machine.device_read;
}

// Tensor cores take 8 query rows of a KV head at once, and a block of threads 16 at most.
double VerifyingTimes(const ModelShape& shape, double tokens) {
  constexpr double kRows = 8.0, kOfTile = 0.8;
  const double tiles = std::ceil(tokens * shape.group() / kRows);
  return tokens <= 1.0 ? 1.0 : std::max(1.0, kOfTile * tiles);
}

// 15 cores of two machines with AMX (docs/BENCHMARKS.md, "Drafts").
double VerifyingHostRate(double tokens) {
  constexpr double kMeasured[][2] = {{1.0, 1.0}, {2.0, 0.86}, {4.0, 0.77}, {8.0, 0.64}};
  double rate = std::end(kMeasured)[-1][1];
  for (size_t i = std::size(kMeasured) - 1; i > 0; --i) {
    const auto& [before, fast] = kMeasured[i - 1];
    const auto& [behind, slow] = kMeasured[i];
    if (tokens >= behind) break;
    rate = fast + (slow - fast) * (std::max(tokens, before) - before) / (behind - before);
  }
  return rate;
}

}  // namespace headway::plan
