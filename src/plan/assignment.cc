#include "plan/assignment.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "plan/assignment_search.h"

namespace headway::plan {
namespace {

// Heads are split by tokens where that makes the largest load smaller by more: each split computes
// and merges the head's queries once more.
constexpr double kWorthSplitting = 0.01;

LayerAssignment OfRanks(const LayerProblem& problem, const HeadRanks& heads) {
  LayerAssignment layer;
  for (const std::vector<int>& ranks : heads) {
    std::vector<Holder>& holders = layer.heads.emplace_back();
    for (const int rank : ranks) {
      holders.push_back({rank, 1.0 / static_cast<double>(ranks.size())});
    }
  }
  layer.loads = RankLoads(problem, heads);
  return layer;
}

LayerAssignment Searched(const LayerProblem& problem, int64_t node_limit) {
  // In the order of the heads where nothing is better: their weights then lie side by side.
  const HeadRanks in_order = InOrder(problem);
  HeadRanks known = LocalSearch(problem);
  const auto goal = [&](const HeadRanks& heads) {
    return GoalOf(problem, RankLoads(problem, heads));
  };
  if (goal(in_order) <= goal(known) * (1.0 + 1e-12)) known = in_order;
  const SearchResult found = ExactSearch(problem, known, node_limit);
  LayerAssignment layer = OfRanks(problem, found.heads);
  layer.optimal = found.optimal;
  layer.nodes = found.nodes;
  return layer;
}

// Fills one rank behind the other up to `most` and cuts heads where a rank is full, as McNaughton's
// rule does; nothing where that takes more ranks than there are.
bool Fill(const LayerProblem& problem, double most, LayerAssignment* layer) {
  layer->heads.assign(problem.loads.size(), {});
  layer->loads.assign(static_cast<size_t>(problem.ranks), 0.0);
  int rank = 0;
  for (size_t head = 0; head < problem.loads.size(); ++head) {
    const double divided = problem.loads[head] - problem.fixed;
    double left = divided;
    while (true) {
      if (rank == problem.ranks) return false;
      double& load = layer->loads[static_cast<size_t>(rank)];
      const double part = std::min(left, most - load - problem.fixed);
      if (part >= left || part > 0.0) {
        load += part + problem.fixed;
        layer->heads[head].push_back({rank, divided > 0.0 ? part / divided : 1.0});
        left -= part;
        if (left <= 0.0) break;
      }
      ++rank;
    }
  }
  return true;
}

LayerAssignment ByTokens(const LayerProblem& problem, int64_t node_limit) {
  LayerAssignment whole = Searched(problem, node_limit);
  double low = std::accumulate(problem.loads.begin(), problem.loads.end(), 0.0) / problem.ranks;
  double high = whole.Largest() + problem.fixed * problem.ranks;
  LayerAssignment split;
  // Sums round: a bound that is just too small for them is not taken for a wrong one.
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2.0;
    (Fill(problem, middle, &split) ? high : low) = middle;
  }
  if (!Fill(problem, high, &split)) return whole;
  if (whole.Largest() <= split.Largest() * (1.0 + kWorthSplitting)) return whole;
  return split;
}

LayerAssignment OfLayer(const LayerProblem& problem, AssignmentMethod method, int64_t node_limit) {
  switch (method) {
    case AssignmentMethod::kStatic:
      return OfRanks(problem, InOrder(problem));
    case AssignmentMethod::kFairKv:
    case AssignmentMethod::kBalanced:
      return Searched(problem, node_limit);
    case AssignmentMethod::kTokens:
      return ByTokens(problem, node_limit);
  }
  HEADWAY_CHECK(false);
  return {};
}

}  // namespace

double HeadSeconds(const HeadLatency& latency, double sequences, double keys) {
  return latency.key * sequences * keys + latency.sequence * sequences + latency.fixed;
}

double LayerAssignment::Largest() const {
  return loads.empty() ? 0.0 : *std::max_element(loads.begin(), loads.end());
}

double Assignment::Seconds() const {
  double seconds = 0.0;
  for (const LayerAssignment& layer : layers) seconds += layer.Largest();
  return seconds;
}

double Assignment::BusyShare() const {
  double work = 0.0;
  size_t ranks = 0;
  for (const LayerAssignment& layer : layers) {
    work += std::accumulate(layer.loads.begin(), layer.loads.end(), 0.0);
    ranks = layer.loads.size();
  }
  return work > 0.0 ? work / (static_cast<double>(ranks) * Seconds()) : 1.0;
}

Assignment Assign(const AssignmentRequest& request, AssignmentMethod method) {
  HEADWAY_CHECK(request.ranks >= 1 && request.copies >= 0);
  const bool copies = method == AssignmentMethod::kFairKv || method == AssignmentMethod::kBalanced;
  HEADWAY_CHECK(request.most_heads == 0 || method != AssignmentMethod::kTokens);
  Assignment assignment;
  for (const std::vector<double>& loads : request.loads) {
    HEADWAY_CHECK(request.most_heads == 0 ||
                  int64_t{request.most_heads} * request.ranks >= std::ssize(loads));
    const LayerProblem problem = {
        .loads = loads,
        .ranks = request.ranks,
        .copies = copies ? request.copies : 0,
        .fixed = request.fixed,
        .most_heads = request.most_heads,
        .goal = method == AssignmentMethod::kFairKv ? AssignmentGoal::kSpread
                                                    : AssignmentGoal::kLargest,
    };
    assignment.layers.push_back(OfLayer(problem, method, request.node_limit));
  }
  return assignment;
}

std::vector<int> HeadsOf(const LayerAssignment& layer, int rank) {
  std::vector<int> heads;
  for (size_t head = 0; head < layer.heads.size(); ++head) {
    for (const Holder& holder : layer.heads[head]) {
      if (holder.rank == rank) heads.push_back(static_cast<int>(head));
    }
  }
  return heads;
}

}  // namespace headway::plan
