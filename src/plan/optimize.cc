#include "plan/optimize.h"

#include <algorithm>

#include "plan/plan.h"

namespace headway::plan {
namespace {

// Shares are multiples of 1 / kSteps: finer ones than lanes are steady.
constexpr int kSteps = 256;
constexpr int kCoarse = 32;  // the grid's, of those

// The host tier's part of a split, cut in `host` and `recompute` of kSteps. What is recomputed is
// given unless it may be chosen.
CacheSplit Cut(const CacheSplit& split, int host, int recompute, const SplitOptions& options) {
  const bool choose = options.recompute;
  const double in_host = split.stream + split.host + (choose ? split.recompute : 0.0);
  CacheSplit cut = split;
  cut.host = in_host * host / kSteps;
  if (choose) cut.recompute = in_host * recompute / kSteps;
  cut.stream = in_host * (kSteps - host - recompute) / kSteps;
  return cut;
}

// The search over two shares: a coarse grid, then ever smaller steps around the best.
class Search {
 public:
  Search(const MachineProfile& machine, const Subject& subject, const Execution& execution,
         std::span<const int64_t> lengths, const SplitOptions& options)
      : machine_(machine),
        subject_(subject),
        execution_(execution),
        lengths_(lengths),
        options_(options) {}

  void Try(int host, int recompute) {
    if (host < 0 || recompute < 0 || host + recompute > kSteps) return;
    if (host > 0 && !options_.host) return;
    if (recompute > 0 && !(options_.recompute && XIsSmaller(subject_.shape))) return;
    Execution candidate = execution_;
    candidate.split = Cut(execution_.split, host, recompute, options_);
    const double seconds = PredictDecode(machine_, subject_, candidate, lengths_).seconds;
    if (found_ && seconds >= seconds_) return;
    found_ = true;
    seconds_ = seconds;
    host_ = host;
    recompute_ = recompute;
  }

  void Run() {
    Try(0, 0);
    for (int host = 0; host <= kSteps; host += kCoarse) {
      for (int recompute = 0; recompute <= kSteps; recompute += kCoarse) Try(host, recompute);
    }
    const double keys = 1.0;
    Try(0, static_cast<int>(kSteps * RecomputeSplit(subject_.shape, keys,
                                                    machine_.host_to_device.Peak(),
                                                    machine_.gemm.Peak())));
    Try(static_cast<int>(kSteps * BalancedHostShare(machine_)), 0);
    for (int step = kCoarse / 2; step > 0; step /= 2) {
      const int host = host_, recompute = recompute_;
      for (int h = -1; h <= 1; ++h) {
        for (int r = -1; r <= 1; ++r) Try(host + h * step, recompute + r * step);
      }
    }
  }

  Execution best() const {
    Execution best = execution_;
    best.split = Cut(execution_.split, host_, recompute_, options_);
    return best;
  }

 private:
  const MachineProfile& machine_;
  const Subject& subject_;
  const Execution& execution_;
  const std::span<const int64_t> lengths_;
  const SplitOptions& options_;
  bool found_ = false;
  double seconds_ = 0.0;
  int host_ = 0, recompute_ = 0;
};

}  // namespace

Execution BestSplit(const MachineProfile& machine, const Subject& subject,
                    const Execution& execution, std::span<const int64_t> lengths,
                    const SplitOptions& options) {
  Search search(machine, subject, execution, lengths, options);
  search.Run();
  return search.best();
}

double WorkloadSeconds(const MachineProfile& machine, const Subject& subject,
                       const Execution& execution, std::span<const int64_t> lengths) {
  return kScoredSteps * PredictDecode(machine, subject, execution, lengths).seconds +
         PredictPrefills(machine, subject, execution, lengths).seconds;
}

}  // namespace headway::plan
