// Assignment: which ranks of a tensor-parallel group attend for which KV heads of each layer. Pure.
//
// All ranks wait for the slowest in every layer, so what counts is the sum over layers of the
// largest load of a rank, and layers are assigned one by one. After FairKV (Zhao et al., 2025),
// which balances heads that keep unequal numbers of tokens, and copies some of them.
#ifndef HEADWAY_PLAN_ASSIGNMENT_H_
#define HEADWAY_PLAN_ASSIGNMENT_H_

#include <cstdint>
#include <vector>

namespace headway::plan {

// How long a rank takes to attend for one KV head in a decode step (FairKV, section 3.2): linear in
// the sequences of the batch while the keys stay the same, and in the keys while the batch does.
struct HeadLatency {
  double key = 0.0;       // seconds for each key of each sequence
  double sequence = 0.0;  // for each sequence
  double fixed = 0.0;     // for the head
};
double HeadSeconds(const HeadLatency& latency, double sequences, double keys);

using HeadLoads = std::vector<std::vector<double>>;  // [layers][KV heads], none negative

enum class AssignmentMethod : uint8_t {
  kStatic,    // heads in their order, as many for each rank
  kFairKv,    // the smallest difference between the largest and the smallest load (Alg. 1 and 2)
  kBalanced,  // the smallest largest load
  kTokens,    // the same, where ranks may share the tokens of a head in any proportion
};

struct AssignmentRequest {
  HeadLoads loads;
  int ranks = 1;
  // How many ranks more than one the heads of a layer may have together. Ranks that hold the same
  // head split the sequences of the batch evenly. For kFairKv and kBalanced.
  int copies = 0;
  double fixed = 0.0;  // of a head's load: what each of its ranks takes, whatever its share is
  // Heads of a layer that a rank may have: at least as many as there are for each, and for kTokens
  // one more. 0: any number.
  int most_heads = 0;
  // Assignments that the exact search of a layer may try before it gives up; its result is then
  // the best that is known.
  int64_t node_limit = 500'000;
};

// A rank that attends for a head, and the share of the head's sequences or tokens that it has.
struct Holder {
  int rank = 0;
  double share = 1.0;
};

struct LayerAssignment {
  std::vector<std::vector<Holder>> heads;  // [KV heads], ranks ascending, shares add up to one
  std::vector<double> loads;               // [ranks]
  bool optimal = false;                    // by the method's measure; of kStatic never
  int64_t nodes = 0;                       // that the exact search tried

  double Largest() const;
};

struct Assignment {
  std::vector<LayerAssignment> layers;

  double Seconds() const;  // the sum over layers of the largest load
  // The share of that time in which a rank is at work, the mean over the ranks. 1 where there is
  // no work.
  double BusyShare() const;
};

Assignment Assign(const AssignmentRequest& request, AssignmentMethod method);

// The KV heads that a rank attends for, in ascending order.
std::vector<int> HeadsOf(const LayerAssignment& layer, int rank);
// Its share of each.
std::vector<double> SharesOf(const LayerAssignment& layer, int rank);

}  // namespace headway::plan

#endif  // HEADWAY_PLAN_ASSIGNMENT_H_
