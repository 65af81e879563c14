// What the GPUs of this machine say to each other: sums over all of them by size, gathered columns,
// and copies from host memory to all at a time. scripts/peers/nccl_sums.py does the same by NCCL.
//
//   ranks_bench [DEVICE ...]        all GPUs, unless devices such as cuda:0 cuda:1 are named
#include <cstdio>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/env.h"
#include "engine/metered_links.h"

namespace {

using headway::kKiB;
using headway::kMiB;

int Run(std::vector<std::string> devices) {
  if (devices.empty()) devices = headway::DevicesToConnect("cuda");
  if (devices.size() < 2) {
    std::fprintf(stderr, "ranks_bench: links take two devices, and here are %zu\n", devices.size());
    return 1;
  }
  const std::vector<int64_t> sizes = {kKiB, 4 * kKiB, 8 * kKiB,  16 * kKiB, 64 * kKiB,  256 * kKiB,
                                      kMiB, 4 * kMiB, 16 * kMiB, 64 * kMiB, 128 * kMiB, 256 * kMiB};
  const headway::Result<headway::hardware::LinkRates> rates =
      headway::MeterLinks(*headway::Env::Default(), devices, {.sums = sizes});
  if (!rates.ok()) {
    std::fprintf(stderr, "ranks_bench: %s\n", rates.status().message().c_str());
    return 1;
  }
  std::printf("%d devices\n%12s %12s %16s\n", rates->gpus, "bytes", "sum, us", "sent, GB/s");
  for (const auto& [bytes, seconds] : rates->sums) {
    const double sent = 2.0 * (rates->gpus - 1) / rates->gpus * static_cast<double>(bytes);
    std::printf("%12lld %12.2f %16.1f\n", static_cast<long long>(bytes), seconds * 1e6,
                sent / seconds / 1e9);
  }
  std::printf("gathered columns: each writes %.1f GB/s to the others\n", rates->gather / 1e9);
  std::printf("host to each device, all at once: %.1f GB/s\n", rates->bus / 1e9);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return Run({argv + 1, argv + argc}); }
