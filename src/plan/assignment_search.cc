#include "plan/assignment_search.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace headway::plan {
namespace {

// Loads that differ by less are equal.
constexpr double kTiny = 1e-12;

bool Less(double a, double b) { return a < b - kTiny * b; }

// The heads from the largest load to the smallest.
std::vector<size_t> LargestFirst(const std::vector<double>& loads) {
  std::vector<size_t> order(loads.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return loads[a] > loads[b]; });
  return order;
}

bool Holds(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

void Add(std::vector<int>* ranks, int rank) {
  ranks->insert(std::upper_bound(ranks->begin(), ranks->end(), rank), rank);
}

std::vector<int> HeadCounts(const LayerProblem& problem, const HeadRanks& heads) {
  std::vector<int> counts(static_cast<size_t>(problem.ranks), 0);
  for (const std::vector<int>& ranks : heads) {
    for (const int rank : ranks) ++counts[static_cast<size_t>(rank)];
  }
  return counts;
}

class Improver {
 public:
  Improver(const LayerProblem& problem, HeadRanks heads)
      : problem_(problem), heads_(std::move(heads)), score_(ScoreOf(heads_)) {}

  HeadRanks Take() {
    while (Step()) {
    }
    return std::move(heads_);
  }

 private:
  // The goal, then the sum of squares: of two assignments with the same largest load the evener one
  // leads on.
  using Score = std::pair<double, double>;

  Score ScoreOf(const HeadRanks& heads) const {
    const std::vector<double> loads = RankLoads(problem_, heads);
    return {GoalOf(problem_, loads),
            std::inner_product(loads.begin(), loads.end(), loads.begin(), 0.0)};
  }

  bool Fits(const HeadRanks& heads) const {
    if (problem_.most_heads == 0) return true;
    const std::vector<int> counts = HeadCounts(problem_, heads);
    return *std::max_element(counts.begin(), counts.end()) <= problem_.most_heads;
  }

  static bool Better(const Score& a, const Score& b) {
    return Less(a.first, b.first) || (!Less(b.first, a.first) && Less(a.second, b.second));
  }

  void Try(const HeadRanks& heads) {
    if (!Fits(heads)) return;
    const Score score = ScoreOf(heads);
    if (!Better(score, best_score_)) return;
    best_score_ = score;
    best_ = heads;
  }

  // The best change of the rank with the largest load; whether one helps.
  bool Step() {
    const std::vector<double> loads = RankLoads(problem_, heads_);
    const auto worst =
        static_cast<int>(std::max_element(loads.begin(), loads.end()) - loads.begin());
    best_score_ = score_;
    for (size_t head = 0; head < heads_.size(); ++head) {
      if (!Holds(heads_[head], worst)) continue;
      for (int rank = 0; rank < problem_.ranks; ++rank) {
        if (!Holds(heads_[head], rank)) Relieve(head, worst, rank);
      }
    }
    if (!Better(best_score_, score_)) return false;
    heads_ = best_;
    score_ = best_score_;
    return true;
  }

  // Ways to bring what `from` has of the head to `to`, or a part of it.
  void Relieve(size_t head, int from, int to) {
    HeadRanks moved = heads_;
    std::erase(moved[head], from);
    Add(&moved[head], to);
    Try(moved);
    for (size_t other = 0; other < heads_.size(); ++other) {
      if (!Holds(heads_[other], to) || Holds(heads_[other], from)) continue;
      HeadRanks swapped = moved;
      std::erase(swapped[other], to);
      Add(&swapped[other], from);
      Try(swapped);
    }
    HeadRanks copied = heads_;
    Add(&copied[head], to);
    if (Copies(copied) <= problem_.copies) return Try(copied);
    // A copy of another head makes room.
    for (size_t other = 0; other < heads_.size(); ++other) {
      if (other == head || heads_[other].size() < 2) continue;
      for (const int rank : heads_[other]) {
        HeadRanks fewer = copied;
        std::erase(fewer[other], rank);
        if (Copies(fewer) <= problem_.copies) Try(fewer);
      }
    }
  }

  static int Copies(const HeadRanks& heads) {
    int copies = 0;
    for (const std::vector<int>& ranks : heads) copies += static_cast<int>(ranks.size()) - 1;
    return copies;
  }

  const LayerProblem& problem_;
  HeadRanks heads_, best_;
  Score score_, best_score_;
};

class Searcher {
 public:
  Searcher(const LayerProblem& problem, const HeadRanks& known, int64_t node_limit)
      : problem_(problem),
        limit_(node_limit),
        order_(LargestFirst(problem.loads)),
        loads_(static_cast<size_t>(problem.ranks)),
        counts_(static_cast<size_t>(problem.ranks)),
        chosen_(problem.loads.size()),
        best_(known),
        best_goal_(GoalOf(problem, RankLoads(problem, known))) {
    const double all = std::accumulate(problem.loads.begin(), problem.loads.end(), 0.0);
    const auto ranks = static_cast<double>(problem.ranks);
    least_largest_ = all / ranks;
    // No assignment has a smaller load that is more than the mean, copies at their most.
    most_smallest_ = (all + problem.copies * problem.fixed) / ranks;
    // Of the heads from each one on in the order: what they are together, and the smallest piece.
    rest_.resize(order_.size() + 1);
    smallest_.resize(order_.size() + 1, std::numeric_limits<double>::infinity());
    const auto most = static_cast<size_t>(std::min(problem.copies + 1, problem.ranks));
    for (size_t i = order_.size(); i-- > 0;) {
      rest_[i] = rest_[i + 1] + problem.loads[order_[i]];
      smallest_[i] = std::min(smallest_[i + 1], problem.Piece(order_[i], most));
    }
  }

  SearchResult Run() {
    Head(0, problem_.copies);
    return {std::move(best_), nodes_ <= limit_, std::min(nodes_, limit_)};
  }

 private:
  bool Done() const {
    if (nodes_ > limit_) return true;
    return problem_.goal == AssignmentGoal::kLargest ? !Less(least_largest_, best_goal_)
                                                     : best_goal_ <= 0.0;
  }

  // Whether no way to assign the heads from `at` on is better than the best one.
  bool Hopeless(size_t at) const {
    const double largest = *std::max_element(loads_.begin(), loads_.end());
    if (problem_.goal == AssignmentGoal::kSpread) {
      return !Less(largest - most_smallest_, best_goal_);
    }
    if (!Less(largest, best_goal_)) return true;
    double room = 0.0;
    for (const double load : loads_) {
      const double of_rank = best_goal_ - load;
      if (of_rank >= smallest_[at]) room += of_rank;
    }
    return room < rest_[at] * (1.0 - kTiny);
  }

  void Head(size_t at, int copies) {
    if (Hopeless(at)) return;
    if (at == order_.size()) {
      const double goal = GoalOf(problem_, loads_);
      if (!Less(goal, best_goal_)) return;
      best_goal_ = goal;
      best_ = chosen_;
      return;
    }
    const size_t most = static_cast<size_t>(std::min(copies + 1, problem_.ranks));
    for (size_t count = 1; count <= most && !Done(); ++count) Pick(at, count, 0, copies);
  }

  // Of ranks with equal loads, and as much room, the first stands for all.
  bool HasTwin(int first, int rank) const {
    const auto own = static_cast<size_t>(rank);
    for (auto other = static_cast<size_t>(first); other < own; ++other) {
      const bool counts = problem_.most_heads == 0 || counts_[other] == counts_[own];
      if (counts && loads_[other] == loads_[own]) return true;
    }
    return false;
  }

  // Picks what is missing of `count` ranks for a head, from `first` on.
  void Pick(size_t at, size_t count, int first, int copies) {
    std::vector<int>& ranks = chosen_[order_[at]];
    if (ranks.size() == count) {
      ++nodes_;
      return Head(at + 1, copies - static_cast<int>(count) + 1);
    }
    const double piece = problem_.Piece(order_[at], count);
    for (int rank = first; rank < problem_.ranks && !Done(); ++rank) {
      const auto index = static_cast<size_t>(rank);
      if (!problem_.HasRoom(counts_[index]) || HasTwin(first, rank)) continue;
      const double before = loads_[index];
      loads_[index] += piece;
      ++counts_[index];
      ranks.push_back(rank);
      Pick(at, count, rank + 1, copies);
      ranks.pop_back();
      --counts_[index];
      loads_[index] = before;
    }
  }

  const LayerProblem& problem_;
  const int64_t limit_;
  const std::vector<size_t> order_;
  double least_largest_ = 0.0, most_smallest_ = 0.0;
  std::vector<double> rest_, smallest_;
  std::vector<double> loads_;  // [ranks]
  std::vector<int> counts_;    // the same, of heads
  HeadRanks chosen_, best_;
  double best_goal_;
  int64_t nodes_ = 0;
};

}  // namespace

std::vector<double> RankLoads(const LayerProblem& problem, const HeadRanks& heads) {
  std::vector<double> loads(static_cast<size_t>(problem.ranks), 0.0);
  for (size_t head = 0; head < heads.size(); ++head) {
    for (const int rank : heads[head]) {
      loads[static_cast<size_t>(rank)] += problem.Piece(head, heads[head].size());
    }
  }
  return loads;
}

double GoalOf(const LayerProblem& problem, const std::vector<double>& loads) {
  const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
  return problem.goal == AssignmentGoal::kSpread ? *most - *least : *most;
}

HeadRanks InOrder(const LayerProblem& problem) {
  const auto heads = static_cast<int>(problem.loads.size());
  HeadRanks ranks;
  for (int rank = 0; rank < problem.ranks; ++rank) {
    const int count = heads / problem.ranks + (rank < heads % problem.ranks ? 1 : 0);
    for (int i = 0; i < count; ++i) ranks.push_back({rank});
  }
  return ranks;
}

HeadRanks LocalSearch(const LayerProblem& problem) {
  HeadRanks heads(problem.loads.size());
  const auto ranks = static_cast<size_t>(problem.ranks);
  std::vector<double> loads(ranks, 0.0);
  std::vector<int> counts(ranks, 0);
  for (const size_t head : LargestFirst(problem.loads)) {
    size_t least = ranks;
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (!problem.HasRoom(counts[rank])) continue;
      if (least == ranks || loads[rank] < loads[least]) least = rank;
    }
    heads[head] = {static_cast<int>(least)};
    loads[least] += problem.loads[head];
    ++counts[least];
  }
  return Improver(problem, std::move(heads)).Take();
}

SearchResult ExactSearch(const LayerProblem& problem, const HeadRanks& known, int64_t node_limit) {
  return Searcher(problem, known, node_limit).Run();
}

}  // namespace headway::plan
