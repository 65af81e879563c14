#include "engine/metered_host_attention.h"

#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "engine/paths/host_attention.h"
#include "kernels/cpu/cpu_kernels.h"

namespace headway {
namespace {

constexpr int kQueries = 0x3F;  // as bf16 0.75

}  // namespace

Result<hardware::AttendOnce> MeteredHostAttention(const hardware::HostAttentionSetup& setup) {
  HostAttentionLimits limits;
  limits.shape = setup.shape;
  limits.format = setup.format;
  limits.entries = 1;
  limits.length = setup.keys + 1;
  limits.segment_tokens = setup.keys;
  limits.activation = setup.activation;
  Result<std::unique_ptr<Kernels>> kernels = NewCpuKernels(setup.pool, nullptr, setup.isa);
  if (!kernels.ok()) return kernels.status();
  Result<std::unique_ptr<HostAttention>> made =
      HostAttention::Create(limits, std::move(*kernels), *setup.device, *setup.budget);
  if (!made.ok()) return made.status();
  const std::shared_ptr<HostAttention> host = std::move(*made);
  std::memset(host->Queries(0), kQueries,
              static_cast<size_t>(setup.shape.query_heads * setup.shape.head_dim) *
                  DTypeBytes(setup.activation));
  std::vector<std::function<Status()>> works;
  for (const KeyRun& keys : setup.layers) {
    host->Begin();
    host->Add({0, setup.keys}, {0, setup.shape.kv_heads, 0}, {&keys, 1});
    works.push_back(host->Work(/*window=*/0));
  }
  return hardware::AttendOnce([host, works = std::move(works)] {
    Status status;
    for (size_t i = 0; i < works.size() && status.ok(); ++i) status = works[i]();
    host->ForgetPauses();
    return status;
  });
}

}  // namespace headway
