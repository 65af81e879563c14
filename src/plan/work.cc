// The bytes and FLOPs of ranges, layers and splits.
#include <algorithm>

#include "plan/cost.h"

namespace headway::plan {
namespace {

// Of what the host's cores and a bus of this rate read beside each other.
double CoresShare(const MachineProfile& machine, double bus) {
  const double cores = machine.host_read_copying.Peak() * machine.host_attention;
  return cores + bus > 0.0 ? cores / (cores + bus) : 0.0;
}

}  // namespace

bool ChoosesIn(const Subject& subject, int layer) {
  const bool window = subject.WindowOf(layer) > 0;
  return subject.selection.keys > 0.0 && !window;
}

double HeadBytes(const Subject& subject) {
  return subject.closed_bytes > 0.0
             ? subject.closed_bytes
             : 2.0 * subject.shape.head_dim * static_cast<double>(DTypeBytes(subject.shape.dtype));
}

RangeWork WorkOf(RangePath path, const Subject& subject, int heads, double keys, double queries) {
  RangeWork work;
  const ModelShape& shape = subject.shape;
  const double kv_bytes = keys * heads * HeadBytes(subject);
  const double flops = 4.0 * keys * queries * heads * shape.group() * shape.head_dim;
  if (path == RangePath::kHost) {
    work.host_bytes = kv_bytes;
    // q goes down, o and lse come up.
    work.bus_bytes = queries * heads * shape.group() *
                     (shape.head_dim * (static_cast<double>(DTypeBytes(shape.dtype)) + 4.0) + 4.0);
    return work;
  }
  work.device_bytes = kv_bytes;
  work.flops = flops;
  if (path == RangePath::kStream) work.bus_bytes = kv_bytes;
  if (path == RangePath::kRecompute) {
    work.bus_bytes = keys * shape.d_model * static_cast<double>(DTypeBytes(shape.dtype));
    work.product_flops = 4.0 * keys * shape.d_model * heads * shape.head_dim;
  }
  return work;
}

CacheSplit SplitAt(const CacheSplit& split, double full, double keys) {
  if (full <= 0.0 || keys <= 0.0 || keys >= full) return split;
  const double resident = std::min(1.0, split.resident * full / keys);
  const double behind = split.stream + split.host + split.recompute;
  const double host = std::min(1.0 - resident, behind * full / keys);
  const double scale = behind > 0.0 ? host / behind : 0.0;
  return {.resident = resident,
          .stream = split.stream * scale,
          .disk = std::max(0.0, 1.0 - resident - host),
          .host = split.host * scale,
          .recompute = split.recompute * scale};
}

LayerWeights WeightsOf(const ModelShape& shape) {
  const double column = shape.d_model * static_cast<double>(DTypeBytes(shape.dtype));
  LayerWeights weights;
  weights.kv = 2.0 * column * shape.kv_heads * shape.head_dim;
  weights.qo = 2.0 * column * shape.query_heads * shape.head_dim;
  weights.mlp = (shape.gated_mlp ? 3.0 : 2.0) * column * shape.d_ff;
  return weights;
}

double RecomputeSplit(const ModelShape& shape, double keys, double bus_bytes_per_second,
                      double flops_per_second) {
  const RangeWork x = WorkOf(RangePath::kRecompute, {shape}, shape.kv_heads, 1.0, 1.0);
  const RangeWork kv = WorkOf(RangePath::kStream, {shape}, shape.kv_heads, 1.0, 1.0);
  if (x.bus_bytes >= kv.bus_bytes) return 0.0;
  const double recompute = x.product_flops / flops_per_second;
  const double stream = kv.bus_bytes / bus_bytes_per_second;
  return keys * stream / (recompute + stream);
}

double BalancedHostShare(const MachineProfile& machine) {
  return CoresShare(machine, machine.host_to_device_reading);
}

double BalancedInPlaceShare(const MachineProfile& machine) {
  const double copies = machine.host_to_device.Peak();
  const double slower = copies > 0.0 ? machine.read_in_place / copies : 0.0;
  return CoresShare(machine, machine.host_to_device_reading * slower);
}

}  // namespace headway::plan
