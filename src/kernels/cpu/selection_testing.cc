#include "kernels/cpu/selection_testing.h"

#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/env.h"
#include "base/thread_pool.h"
#include "device/cpu/cpu_device.h"
#include "kernels/cpu/cpu_kernels.h"

namespace headway {
namespace {

std::vector<std::byte> RunOn(const SelectionProblem& problem, const std::string& isa, int threads) {
  ThreadPool pool(threads);
  const std::unique_ptr<Device> device = NewCpuDevice(Env::Default(), nullptr);
  const std::unique_ptr<Stream> stream = *device->NewStream(Lane::kCompute);
  Budget budget("test", kGiB);
  Trace trace;
  const std::unique_ptr<Kernels> kernels = *NewCpuKernels(&pool, &trace, isa);
  const SelectionCase& c = problem.spec;
  HEADWAY_CHECK(kernels->SupportsSelection(c.format, c.summary, c.group));
  HEADWAY_CHECK(kernels
                    ->Prepare({.rows = 1,
                               .max_in = 64,
                               .max_out = 64,
                               .head_dim = c.format.head_dim,
                               .group = c.group,
                               .query_heads = int64_t{c.heads} * c.group,
                               .encoding = c.format.encoding},
                              *device, budget)
                    .ok());
  const std::unique_ptr<SelectionHost> host = NewSelectionHost();
  return RunSelection(problem, *kernels, *stream, *host);
}

}  // namespace

std::string SelectionDisagreement(const SelectionCase& c, const std::string& isa, Random& random) {
  Random same = random;
  Random places(random.Next()), others(random.Next());
  same.Next();
  same.Next();
  SelectionProblem problem(c, random, places);
  const std::vector<std::byte> actual = RunOn(problem, isa, 1);
  // The logits' sums and the softmax's steps are those of attention of few queries.
  const std::string wrong = problem.Disagreement({}, actual);
  if (!wrong.empty()) return wrong;
  const SelectionProblem elsewhere(c, same, others);
  if (problem.Outputs(actual) != elsewhere.Outputs(RunOn(elsewhere, isa, 3))) {
    return "other bits on three threads, with pages elsewhere";
  }
  return "";
}

}  // namespace headway
