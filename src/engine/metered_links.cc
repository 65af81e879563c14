#include "engine/metered_links.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/exceptions.h"
#include "base/thread_pool.h"
#include "device/budget.h"
#include "hardware/rates.h"
#include "kernels/backend/backend.h"
#include "parallel/local/local_group.h"

namespace headway {
namespace {

using Clock = std::chrono::steady_clock;
using hardware::LinkRates;

constexpr int kMostGpus = 16;
constexpr int kRepetitions = 3;
constexpr int64_t kRows = 16;  // of the matrix whose columns are gathered

// As many calls as take some milliseconds, the same number on every rank.
int CallsOf(int64_t bytes) {
  return static_cast<int>(std::clamp<int64_t>(256 * kMiB / std::max<int64_t>(bytes, 1), 8, 400));
}

int64_t MostBytes(const LinkSizes& sizes) {
  return std::max(sizes.copied, sizes.sums.empty() ? 0 : sizes.sums.back());
}

// A GPU with what a rank on it measures with.
struct Site {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Device> device;
  Budget budget{"links", kUnlimited};
  std::unique_ptr<Stream> compute, copies;
  std::unique_ptr<Buffer> data, pinned;
  std::unique_ptr<ThreadPool> readers;  // null where nothing is read
  std::unique_ptr<Buffer> read;

  Status Open(Env& env, const std::string& name, const LinkSizes& sizes) {
    Result<std::unique_ptr<Backend>> made = NewBackend(name, "");
    if (!made.ok()) return made.status();
    backend = std::move(*made);
    Result<std::unique_ptr<Device>> opened =
        backend->NewDevice(&env, nullptr, KernelTimes::kWhereFree);
    if (!opened.ok()) return opened.status();
    device = std::move(*opened);
    for (auto [lane, stream] :
         {std::pair{Lane::kCompute, &compute}, {Lane::kHostToDevice, &copies}}) {
      Result<std::unique_ptr<Stream>> begun = device->NewStream(lane);
      if (!begun.ok()) return begun.status();
      *stream = std::move(*begun);
    }
    Result<std::unique_ptr<Buffer>> memory =
        device->Allocate(budget, static_cast<size_t>(MostBytes(sizes)), "sums");
    if (!memory.ok()) return memory.status();
    data = std::move(*memory);
    memory = device->AllocateHost(budget, static_cast<size_t>(sizes.copied), "copies");
    if (!memory.ok()) return memory.status();
    pinned = std::move(*memory);
    if (sizes.readers == 0) return OkStatus();
    memory = device->AllocateHost(budget, static_cast<size_t>(sizes.copied), "reads");
    if (!memory.ok()) return memory.status();
    read = std::move(*memory);
    readers = std::make_unique<ThreadPool>(sizes.readers);
    hardware::FillMemory(*readers, read->data(), sizes.copied);
    return OkStatus();
  }
};

// The least time that `calls` calls took a rank, of a few repetitions which all ranks begin
// together, divided by their number.
Result<double> SecondsOf(Communicator& ranks, Stream& stream, int calls,
                         const std::function<void()>& call) {
  double least = 0.0;
  std::vector<std::byte> here_of_all(static_cast<size_t>(ranks.ranks()));
  call();  // what is only done once
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    if (Status s = stream.Synchronize(); !s.ok()) return s;
    const std::byte here{1};
    if (Status s = ranks.GatherOnHost({&here, 1}, here_of_all); !s.ok()) return s;
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    if (Status s = stream.Synchronize(); !s.ok()) return s;
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count() / calls;
    if (repetition == 0 || seconds < least) least = seconds;
  }
  return least;
}

// Bytes a second from the host's memory to the site's device.
Result<double> BusOf(Communicator& ranks, Site& site, int64_t bytes) {
  const Result<double> seconds = SecondsOf(ranks, *site.copies, 8, [&] {
    site.copies->Copy(site.data->data(), site.pinned->data(), static_cast<size_t>(bytes));
  });
  if (!seconds.ok()) return seconds;
  return static_cast<double>(bytes) / *seconds;
}

// The same while the rank's cores read, again and again.
Status MeterBesideCores(Communicator& ranks, Site& site, int64_t bytes, LinkRates* rates) {
  Result<double> bus = 0.0;
  std::atomic<bool> copied = false;
  double seconds = 0.0;
  int64_t times = 0;
  std::thread cores([&] {
    const Clock::time_point begin = Clock::now();
    do {
      hardware::ScanMemory(*site.readers, site.read->data(), bytes);
      ++times;
    } while (!copied.load(std::memory_order_relaxed));
    seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  });
  Status done = Guarded([&] {
    bus = BusOf(ranks, site, bytes);
    return bus.status();
  });
  copied = true;
  cores.join();
  if (!done.ok()) return done;
  rates->bus_reading = *bus;
  rates->cores = static_cast<double>(times * bytes) / seconds;
  return OkStatus();
}

// What one rank measures. The sites' data are zeros, which stay so.
Status MeterRank(Communicator& ranks, Site& site, const LinkSizes& sizes, LinkRates* rates) {
  auto* const data = reinterpret_cast<float*>(site.data->data());
  for (const int64_t bytes : sizes.sums) {
    const Result<double> seconds = SecondsOf(ranks, *site.compute, CallsOf(bytes), [&] {
      ranks.AllReduceSum(*site.compute, data, bytes / static_cast<int64_t>(sizeof(float)));
    });
    if (!seconds.ok()) return seconds.status();
    rates->sums.emplace_back(bytes, *seconds);
  }
  const int64_t all = ranks.ranks();
  const int64_t columns = sizes.copied / kRows / static_cast<int64_t>(sizeof(float));
  const SharedColumns matrix{.data = data,
                             .rows = kRows,
                             .columns = columns,
                             .begin = columns * ranks.rank() / all,
                             .end = columns * (ranks.rank() + 1) / all};
  const Result<double> gathered =
      SecondsOf(ranks, *site.compute, 8, [&] { ranks.AllGather(*site.compute, matrix); });
  if (!gathered.ok()) return gathered.status();
  // Its own columns, to each other rank.
  rates->gather = static_cast<double>(sizes.copied / all * (all - 1)) / *gathered;
  const Result<double> bus = BusOf(ranks, site, sizes.copied);
  if (!bus.ok()) return bus.status();
  rates->bus = *bus;
  return sizes.readers == 0 ? OkStatus() : MeterBesideCores(ranks, site, sizes.copied, rates);
}

}  // namespace

std::vector<std::string> DevicesToConnect(const std::string& device) {
  std::vector<std::string> devices;
  if (device != "cuda") return devices;
  while (std::ssize(devices) < kMostGpus) {
    const std::string name = "cuda:" + std::to_string(devices.size());
    if (!NewBackend(name, "").ok()) break;
    devices.push_back(name);
  }
  return devices;
}

Result<LinkRates> MeterLinks(Env& env, std::span<const std::string> devices,
                             const LinkSizes& sizes) {
  const auto count = static_cast<int>(devices.size());
  std::vector<std::unique_ptr<Site>> sites;
  std::vector<int> gpus;
  for (const std::string& name : devices) {
    Site& site = *sites.emplace_back(std::make_unique<Site>());
    if (Status s = site.Open(env, name, sizes); !s.ok()) return s;
    if (site.backend->info().own_memory) gpus.push_back(site.backend->info().gpu);
  }
  Result<std::unique_ptr<RankGroup>> group = NewLocalGroup(count, gpus);
  if (!group.ok()) return group.status();
  std::vector<LinkRates> rates(devices.size());
  const Status done = (*group)->Run([&](int rank) {
    const auto own = static_cast<size_t>(rank);
    return MeterRank((*group)->communicator(rank), *sites[own], sizes, &rates[own]);
  });
  group->reset();
  if (!done.ok()) return done;
  // A sum is as late as the last rank is, and a plan of all GPUs counts on the slowest.
  LinkRates all = rates[0];
  all.gpus = count;
  all.cores = 0.0;
  for (const LinkRates& one : rates) {
    for (size_t i = 0; i < all.sums.size(); ++i) {
      all.sums[i].second = std::max(all.sums[i].second, one.sums[i].second);
    }
    all.gather = std::min(all.gather, one.gather);
    all.bus = std::min(all.bus, one.bus);
    all.bus_reading = std::min(all.bus_reading, one.bus_reading);
    all.cores += one.cores;
  }
  return all;
}

}  // namespace headway
