// Machines and models for the planner's tests.
#ifndef HEADWAY_TESTS_SUPPORT_TEST_MACHINES_H_
#define HEADWAY_TESTS_SUPPORT_TEST_MACHINES_H_

#include <fstream>
#include <sstream>
#include <string>

#include "base/check.h"
#include "base/machine_profile.h"
#include "base/random.h"
#include "hardware/profile_json.h"
#include "plan/cost.h"
#include "plan/plan.h"

namespace headway::plan {

inline std::string ShippedText(const std::string& name) {
  std::ifstream in(std::string(HEADWAY_SOURCE_DIR) + "/machines/" + name + ".json");
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

inline MachineProfile Shipped(const std::string& name) {
  Result<MachineProfile> machine = hardware::ParseProfile(ShippedText(name), name);
  HEADWAY_CHECK(machine.ok());
  return *machine;
}

// Rates that make sums by hand easy: no latencies, every rate a power of ten.
inline MachineProfile Simple() {
  MachineProfile m;
  m.name = "simple";
  m.device_memory = 1e11;
  m.host_memory = 1e12;
  m.device_read = 1e12;
  m.gemm = m.attention = {{{1.0, 1e14}}};
  m.decode_attention = {{{1.0, 1e12}}};
  m.host_to_device = m.device_to_host = {{{1.0, 1e10}}};
  m.both_directions = 1e10;
  m.host_read = {{{1.0, 1e10}, {10.0, 1e11}}};
  m.host_read_copying = {{{10.0, 9e10}}};
  m.host_to_device_reading = 1e10;
  m.host_attention = 1.0;
  m.disk_read = m.disk_write = 1e9;
  return m;
}

// Any machine that can be, from a desktop to what is not built yet.
inline MachineProfile RandomMachine(Random& random) {
  const auto between = [&](double low, double high) {
    return low * std::pow(high / low, static_cast<double>(random.Below(1'000'000)) * 1e-6);
  };
  const auto curve = [&](double rate, double latency) {
    Curve c;
    for (double x : {65536.0, 1e6, 1e7, 1e9}) c.points.emplace_back(x, x / (latency + x / rate));
    return c;
  };
  MachineProfile m;
  m.name = "random";
  m.device_memory = between(8e9, 2e11);
  m.host_memory = between(1e10, 2e12);
  m.device_read = between(1e11, 1e13);
  m.product_seconds = between(1e-6, 1e-4);
  m.gemm = {{{16.0, between(1e12, 1e14)}}};
  m.gemm.points.emplace_back(8192.0, m.gemm.Peak() * between(1.0, 20.0));
  m.attention = {{{1024.0, m.gemm.Peak() * between(0.05, 0.3)}}};
  m.attention.points.emplace_back(262144.0, m.attention.Peak() * between(1.0, 4.0));
  m.decode_attention = curve(m.device_read * between(0.3, 1.0), between(1e-6, 1e-4));
  m.launch_seconds = between(1e-6, 1e-4);
  m.sync_seconds = between(1e-6, 1e-3);
  m.step_seconds = between(1e-6, 1e-2);
  const double bus = between(1e9, 4e11);
  m.host_to_device = curve(bus, between(1e-6, 1e-4));
  m.device_to_host = curve(bus * between(0.5, 1.0), between(1e-6, 1e-4));
  m.both_directions = bus * between(0.5, 1.0);
  // Memory of the device is faster: else nothing would be kept there.
  const double host = m.decode_attention.Peak() * between(0.01, 0.5);
  m.host_read = {{{16.0, host}}};
  m.host_read_copying = {{{16.0, host * between(0.3, 1.0)}}};
  m.host_to_device_reading = bus * between(0.3, 1.0);
  m.host_attention = between(0.3, 1.0);
  m.disk_read = between(1e8, 2e10);
  m.disk_write = between(1e8, 2e10);
  m.disk_pieces = {{{4096.0, 0.1 * m.disk_read}, {262144.0, 0.8 * m.disk_read}}};
  return m;
}

// layers, d_model, query heads, KV heads, head_dim, d_ff, vocab
inline const ModelShape kLlama8B = {32, 4096, 32, 8, 128, 14336, 128256, DType::kBF16};
inline const ModelShape kOpt67B = {32, 4096, 32, 32, 128, 16384, 50272, DType::kF16, false};
inline const ModelShape kOpt13B = {40, 5120, 40, 40, 128, 20480, 50272, DType::kF16, false};
inline const ModelShape kOpt30B = {48, 7168, 56, 56, 128, 28672, 50272, DType::kF16, false};

// Superblocks and the manifest as sessions have them.
inline constexpr SessionSizes kSession = {8192, 8192, 4, 24, 8, 2};

// What a cache of 16-bit pages of 64 slots takes, without padding.
inline auto CacheCosts(const ModelShape& shape) {
  return [shape](const CacheChoice& c) {
    const int64_t slot = int64_t{2} * shape.head_dim * 2;  // K and V of one token and head
    CacheBytes bytes;
    bytes.open_pages = shape.layers * shape.kv_heads * 64 * slot;
    bytes.append_buffer = 2 * (c.chunk + 128) * shape.kv_heads * slot;
    bytes.slab = c.group_heads * c.segment_tokens * slot;
    bytes.staging = c.staging_slabs * bytes.slab;
    bytes.bounce = c.bounce_slabs * bytes.slab;
    bytes.x_slab = c.segment_tokens * shape.d_model * 2;
    if (c.recompute > 0.0) bytes.staging += 2 * bytes.x_slab;
    return bytes;
  };
}

}  // namespace headway::plan

#endif  // HEADWAY_TESTS_SUPPORT_TEST_MACHINES_H_
