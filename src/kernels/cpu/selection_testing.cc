#include "kernels/cpu/selection_testing.h"

#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/env.h"
#include "base/thread_pool.h"
#include "device/cpu/cpu_device.h"
#include "kernels/cpu/attention_testing.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/testing/selection_rest.h"

namespace headway {
namespace {

// run(kernels, stream, host) with kernels that take the case.
template <typename Run>
auto RunOn(const SelectionCase& c, const std::string& isa, int threads, const Run& run) {
  ThreadPool pool(threads);
  const std::unique_ptr<Device> device = NewCpuDevice(Env::Default(), nullptr);
  const std::unique_ptr<Stream> stream = *device->NewStream(Lane::kCompute);
  Budget budget("test", kGiB);
  Trace trace;
  const std::unique_ptr<Kernels> kernels = *NewCpuKernels(&pool, &trace, isa);
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
  return run(*kernels, *stream, *host);
}

// The logits' sums and the softmax's steps are those of attention of few queries, or of many; on
// tiles scaled queries are rounded to bf16, too, and keys that are moved.
AttentionPrecision PrecisionOn(const std::string& isa, const SelectionCase& c) {
  if (isa != "amx" || !cpu::HoldsBF16(c.format) || c.rows == 1) return {};
  AttentionPrecision precision = PrecisionOf(OnTiles::kMany);
  precision.logit = c.move_dim > 0 ? 0x1p-8 : 0x1p-9;
  return precision;
}

std::vector<std::byte> RunOn(const SelectionProblem& problem, const std::string& isa, int threads) {
  return RunOn(problem.spec, isa, threads,
               [&](Kernels& kernels, Stream& stream, SelectionHost& host) {
                 return RunSelection(problem, kernels, stream, host);
               });
}

}  // namespace

std::string SelectionDisagreement(const SelectionCase& c, const std::string& isa, Random& random) {
  Random same = random;
  Random places(random.Next()), others(random.Next());
  same.Next();
  same.Next();
  SelectionProblem problem(c, random, places);
  const std::vector<std::byte> actual = RunOn(problem, isa, 1);
  const std::string wrong = problem.Disagreement(PrecisionOn(isa, c), actual);
  if (!wrong.empty()) return wrong;
  const SelectionProblem elsewhere(c, same, others);
  if (problem.Outputs(actual) != elsewhere.Outputs(RunOn(elsewhere, isa, 3))) {
    return "other bits on three threads, with pages elsewhere";
  }
  return "";
}

std::string RestDisagreement(const SelectionCase& c, const std::string& isa, Random& random) {
  SelectionProblem problem(c, random, random);
  RestProblem rest(problem, random);
  const auto on = [&](int threads, RestProblem::Rest call) {
    return RunOn(c, isa, threads, [&](Kernels& kernels, Stream& stream, SelectionHost& host) {
      return rest.Run(kernels, stream, host, {}, call);
    });
  };
  const std::vector<float> actual = on(1, RestProblem::Rest::kWithAttention);
  if (actual != on(3, RestProblem::Rest::kWithAttention)) return "other bits on three threads";
  if (actual != on(1, RestProblem::Rest::kBehindAttention)) return "other bits in two calls";
  return rest.Disagreement({}, actual);
}

}  // namespace headway
