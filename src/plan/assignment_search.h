// The search for an assignment of one layer's KV heads, each of which has one or more whole ranks.
#ifndef HEADWAY_PLAN_ASSIGNMENT_SEARCH_H_
#define HEADWAY_PLAN_ASSIGNMENT_SEARCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headway::plan {

// What is to be as small as possible.
enum class AssignmentGoal : uint8_t {
  kLargest,  // the largest load of a rank
  kSpread,   // the difference between the largest and the smallest load
};

struct LayerProblem {
  std::vector<double> loads;  // [KV heads]
  int ranks = 1;
  int copies = 0;      // ranks more than one that the heads may have together
  double fixed = 0.0;  // of each load: what every rank of a head takes
  int most_heads = 0;  // that a rank may have; 0: any number
  AssignmentGoal goal = AssignmentGoal::kLargest;

  bool HasRoom(int heads_of_rank) const { return most_heads == 0 || heads_of_rank < most_heads; }
  // What a head that has `ranks_of_head` ranks is to each of them.
  double Piece(size_t head, size_t ranks_of_head) const {
    return (loads[head] - fixed) / static_cast<double>(ranks_of_head) + fixed;
  }
};

using HeadRanks = std::vector<std::vector<int>>;  // [KV heads]: the ranks of each, ascending

std::vector<double> RankLoads(const LayerProblem& problem, const HeadRanks& heads);
// What the goal makes of these loads.
double GoalOf(const LayerProblem& problem, const std::vector<double>& loads);

// Heads in their order, as many for each rank, or one more.
HeadRanks InOrder(const LayerProblem& problem);
// From the largest head on, each to the rank with room that has the least load (LPT); then moves,
// swaps and copies of heads, the best first, as long as one helps.
HeadRanks LocalSearch(const LayerProblem& problem);

struct SearchResult {
  HeadRanks heads;
  bool optimal = false;
  int64_t nodes = 0;
};
// Branch and bound from `known` on, which is kept unless there is a better one.
SearchResult ExactSearch(const LayerProblem& problem, const HeadRanks& known, int64_t node_limit);

}  // namespace headway::plan

#endif  // HEADWAY_PLAN_ASSIGNMENT_SEARCH_H_
