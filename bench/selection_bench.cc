// Selection at the shape of Llama-3-8B: the blocks of a layer are scored by their summaries, the
// best are listed, and attention reads what is listed. For each context and place of the pages the
// time of a layer's calls, what they must move, and the share of the time that this takes at the
// rates given (of the device's memory, and of its reads of the host's):
//   select    SelectBlocks; it must move the summaries
//   twice     the same in two looks; it must move the candidates' means and sketches, too
//   twice/host  the same with sketches in host memory
//   among     SelectBlocks among candidates that an earlier call has listed, by their summaries,
//             which it must move
//   pages     SelectBlocks of pages by their summaries, which must be moved, and among their blocks
//   attend    AttendBlocks of the lists; it must move the listed keys and values
//   both      one behind the other
//   apart     AttendBlocks, Attend to open pages and Merge: where other paths add states
//   rest      AttendBlocks with its rest: what the three do, in one call
//   layer     select and rest, as a decode step has them
//   dense     Attend to all keys, and Merge: what a layer of exact decode takes, on the device
//   paged     layer with pages in front of blocks
//   eighth    the same where one search of pages is for eight steps
//   cached    layer with pages on the host and a cache that holds nine tenths of what is listed
//   cached/8  the same of eighth
//
// selection_bench_64 does the same with blocks of 64 keys instead of 16.
//
//   selection_bench [DEVICE [DEVICE_GB_S [HOST_GB_S]]]            by default cuda 3350 51
#include <cstdlib>
#include <memory>
#include <string>

#include "base/env.h"
#include "base/thread_pool.h"
#include "kernels/backend/backend.h"
#include "selection_context.h"
#include "unwrap.h"

namespace headway::bench {
namespace {

int Main(const std::string& device_name, const Rates& rates) {
  ThreadPool pool(0);
  Budget budget("benchmark", kUnlimited);
  const std::unique_ptr<Backend> backend = Unwrap(NewBackend(device_name, "auto"));
  const std::unique_ptr<Device> device =
      Unwrap(backend->NewDevice(Env::Default(), nullptr, KernelTimes::kWhereFree));
  const std::unique_ptr<Kernels> kernels = Unwrap(backend->NewKernels(&pool, nullptr));
  KernelLimits limits;
  limits.rows = 1;
  limits.max_in = limits.max_out = kHeads * kGroup * kHeadDim;
  limits.head_dim = kHeadDim;
  limits.group = kGroup;
  limits.query_heads = kHeads * kGroup;
  limits.activation = kernels->ActivationDType(DType::kBF16);
  Require(kernels->Prepare(limits, *device, budget));
  const std::unique_ptr<Stream> compute = Unwrap(device->NewStream(Lane::kCompute));
  struct Case {
    const char* name;
    int64_t tokens;
    Encoding encoding;
    Place place;
  };
  constexpr int64_t kK = 1024;
  const bool reads_host = device->kernels_read_host_memory();
  for (const Case& c : {Case{"128K bf16, device", 128 * kK, Encoding::kNone, Place::kDevice},
                        Case{"128K bf16, host", 128 * kK, Encoding::kNone, Place::kHost},
                        Case{"128K int8, device", 128 * kK, Encoding::kInt8, Place::kDevice},
                        Case{"1M bf16, device", kK * kK, Encoding::kNone, Place::kDevice},
                        Case{"1M bf16, host", kK * kK, Encoding::kNone, Place::kHost},
                        Case{"1M int8, device", kK * kK, Encoding::kInt8, Place::kDevice},
                        Case{"1M int8, host", kK * kK, Encoding::kInt8, Place::kHost}}) {
    if (c.place == Place::kHost && !reads_host) continue;
    Context(*device, *kernels, *compute, c.tokens, c.encoding, c.place).Print(c.name, rates);
  }
  return 0;
}

}  // namespace
}  // namespace headway::bench

int main(int argc, char** argv) {
  // GB/s are 1000 bytes/us.
  const headway::bench::Rates rates = {1e3 * (argc > 2 ? std::atof(argv[2]) : 3350.0),
                                       1e3 * (argc > 3 ? std::atof(argv[3]) : 51.0)};
  return headway::bench::Main(argc > 1 ? argv[1] : "cuda", rates);
}
