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

// Tops ranks up to `most` with parts of heads of those that have more, the idlest from the busiest,
// as the alias method (Walker, 1977) pairs them: each is full then, takes no other part, and has
// one head more. Whether no rank has more than `most` in the end.
class TopUp {
 public:
  TopUp(const LayerProblem& problem, double most, LayerAssignment* layer)
      : problem_(problem), most_(most), layer_(*layer) {}

  bool Run() {
    while (true) {
      const auto busiest = std::max_element(layer_.loads.begin(), layer_.loads.end());
      if (*busiest <= most_ * (1.0 + kRounding)) return true;
      const int to = Idlest();
      if (to < 0 || !Give(static_cast<int>(busiest - layer_.loads.begin()), to)) return false;
    }
  }

 private:
  static constexpr double kRounding = 1e-12;

  // Of the ranks that may take more; -1: there is none.
  int Idlest() const {
    int idlest = -1;
    for (int rank = 0; rank < problem_.ranks; ++rank) {
      const double load = LoadOf(rank);
      if (load + problem_.fixed >= most_ * (1.0 - kRounding)) continue;
      if (!problem_.HasRoom(static_cast<int>(HeadsOf(layer_, rank).size()))) continue;
      if (idlest < 0 || load < LoadOf(idlest)) idlest = rank;
    }
    return idlest;
  }

  // What fits of the largest part of a head that `from` has; whether that is any.
  bool Give(int from, int to) {
    size_t head = 0;
    double part = 0.0;
    for (size_t i = 0; i < layer_.heads.size(); ++i) {
      for (const Holder& holder : layer_.heads[i]) {
        const double own = holder.share * DividedOf(i);
        if (holder.rank != from || own <= part) continue;
        head = i;
        part = own;
      }
    }
    if (part <= 0.0) return false;
    std::vector<Holder>& holders = layer_.heads[head];
    const auto of = [&](int rank) {
      return std::find_if(holders.begin(), holders.end(),
                          [rank](const Holder& holder) { return holder.rank >= rank; });
    };
    double room = most_ - LoadOf(to) - problem_.fixed;
    auto taker = of(to);
    if (taker == holders.end() || taker->rank != to) {
      taker = holders.insert(taker, {to, 0.0});
      LoadOf(to) += problem_.fixed;
    } else {
      room += problem_.fixed;
    }
    const double given = std::min(room, part);
    const double share = given / DividedOf(head);
    taker->share += share;
    LoadOf(to) += given;
    LoadOf(from) -= given;
    const auto giver = of(from);
    giver->share -= share;
    if (given < part) return true;
    holders.erase(giver);
    LoadOf(from) -= problem_.fixed;
    return true;
  }

  double DividedOf(size_t head) const { return problem_.loads[head] - problem_.fixed; }
  double& LoadOf(int rank) { return layer_.loads[static_cast<size_t>(rank)]; }
  double LoadOf(int rank) const { return layer_.loads[static_cast<size_t>(rank)]; }

  const LayerProblem& problem_;
  const double most_;
  LayerAssignment& layer_;
};

LayerAssignment ByTokens(const LayerProblem& problem, int64_t node_limit) {
  LayerProblem whole_heads = problem;
  if (problem.most_heads > 0) --whole_heads.most_heads;
  const LayerAssignment whole = Searched(whole_heads, node_limit);
  double low = std::accumulate(problem.loads.begin(), problem.loads.end(), 0.0) / problem.ranks;
  double high = whole.Largest();
  LayerAssignment best = whole;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2.0;
    LayerAssignment split = whole;
    split.optimal = false;
    if (TopUp(problem, middle, &split).Run()) {
      high = middle;
      best = std::move(split);
    } else {
      low = middle;
    }
  }
  return whole.Largest() <= best.Largest() * (1.0 + kWorthSplitting) ? whole : best;
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
  Assignment assignment;
  for (const std::vector<double>& loads : request.loads) {
    const int64_t whole = request.most_heads - (method == AssignmentMethod::kTokens ? 1 : 0);
    HEADWAY_CHECK(request.most_heads == 0 || whole * request.ranks >= std::ssize(loads));
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

std::vector<double> SharesOf(const LayerAssignment& layer, int rank) {
  std::vector<double> shares;
  for (const std::vector<Holder>& holders : layer.heads) {
    for (const Holder& holder : holders) {
      if (holder.rank == rank) shares.push_back(holder.share);
    }
  }
  return shares;
}

}  // namespace headway::plan
