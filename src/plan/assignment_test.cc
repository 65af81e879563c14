#include "plan/assignment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.h"

namespace headway::plan {
namespace {

using Method = AssignmentMethod;

std::vector<double> RandomLoads(Random* random, size_t heads, double deviation) {
  std::vector<double> loads;
  for (size_t i = 0; i < heads; ++i) {
    loads.push_back(std::exp(deviation * static_cast<double>(random->Normal())));
  }
  return loads;
}

// The smallest largest load and the smallest difference, of every assignment there is.
struct Best {
  double largest = INFINITY, spread = INFINITY;
};

// What ranks have so far.
struct Tried {
  std::vector<double> loads;
  std::vector<int> heads;
};

void TryAll(const AssignmentRequest& request, size_t head, int copies, Tried* tried, Best* best) {
  std::vector<double>* const loads = &tried->loads;
  const int counted = *std::max_element(tried->heads.begin(), tried->heads.end());
  if (request.most_heads > 0 && counted > request.most_heads) return;
  if (head == request.loads[0].size()) {
    const auto [least, most] = std::minmax_element(loads->begin(), loads->end());
    best->largest = std::min(best->largest, *most);
    best->spread = std::min(best->spread, *most - *least);
    return;
  }
  for (unsigned ranks = 1; ranks < 1u << request.ranks; ++ranks) {
    const int count = __builtin_popcount(ranks);
    if (count - 1 > copies) continue;
    const Tried before = *tried;
    for (int rank = 0; rank < request.ranks; ++rank) {
      if ((ranks >> rank & 1) == 0) continue;
      (*loads)[static_cast<size_t>(rank)] +=
          (request.loads[0][head] - request.fixed) / count + request.fixed;
      ++tried->heads[static_cast<size_t>(rank)];
    }
    TryAll(request, head + 1, copies - count + 1, tried, best);
    *tried = before;
  }
}

Best BruteForce(const AssignmentRequest& request) {
  Best best;
  const auto ranks = static_cast<size_t>(request.ranks);
  Tried tried = {std::vector<double>(ranks, 0.0), std::vector<int>(ranks, 0)};
  TryAll(request, 0, request.copies, &tried, &best);
  return best;
}

// Each head has all of its load, its ranks are different ones, and the loads are what they say.
void ExpectSound(const AssignmentRequest& request, const Assignment& assignment, int copies) {
  ASSERT_EQ(assignment.layers.size(), request.loads.size());
  for (size_t l = 0; l < request.loads.size(); ++l) {
    const LayerAssignment& layer = assignment.layers[l];
    ASSERT_EQ(layer.heads.size(), request.loads[l].size());
    std::vector<double> loads(static_cast<size_t>(request.ranks), 0.0);
    size_t holders = 0;
    for (size_t head = 0; head < layer.heads.size(); ++head) {
      double share = 0.0;
      int last = -1;
      for (const Holder& holder : layer.heads[head]) {
        ASSERT_GT(holder.rank, last);
        ASSERT_LT(holder.rank, request.ranks);
        last = holder.rank;
        share += holder.share;
        loads[static_cast<size_t>(holder.rank)] +=
            (request.loads[l][head] - request.fixed) * holder.share + request.fixed;
        ++holders;
      }
      EXPECT_NEAR(share, 1.0, 1e-9);
    }
    EXPECT_LE(holders, layer.heads.size() + static_cast<size_t>(copies));
    for (int rank = 0; rank < request.ranks && request.most_heads > 0; ++rank) {
      EXPECT_LE(std::ssize(HeadsOf(layer, rank)), request.most_heads);
    }
    for (size_t rank = 0; rank < loads.size(); ++rank) {
      EXPECT_NEAR(layer.loads[rank], loads[rank], 1e-9);
    }
  }
}

TEST(AssignmentTest, SmallCasesAreAsGoodAsAnyAssignment) {
  Random random(7);
  for (int i = 0; i < 150; ++i) {
    AssignmentRequest request;
    request.ranks = 1 + static_cast<int>(random.Below(4));
    request.copies = static_cast<int>(random.Below(4));
    const size_t heads = 1 + static_cast<size_t>(random.Below(request.ranks == 4 ? 4 : 6));
    request.loads = {RandomLoads(&random, heads, 1.0)};
    if (i % 3 == 0) {
      request.fixed = 0.5 * *std::min_element(request.loads[0].begin(), request.loads[0].end());
    }
    if (i % 5 == 0) {  // equal loads, of which many assignments are as good
      for (double& load : request.loads[0]) load = std::ceil(load);
    }
    if (i % 2 == 0) {  // ranks have room for few heads, or one more
      const int even =
          static_cast<int>(heads + static_cast<size_t>(request.ranks) - 1) / request.ranks;
      request.most_heads = even + i / 2 % 2;
    }
    const Best best = BruteForce(request);
    const Assignment balanced = Assign(request, Method::kBalanced);
    ExpectSound(request, balanced, request.copies);
    EXPECT_TRUE(balanced.layers[0].optimal);
    EXPECT_NEAR(balanced.Seconds(), best.largest, 1e-9 * best.largest) << i;
    const Assignment fair = Assign(request, Method::kFairKv);
    ExpectSound(request, fair, request.copies);
    const auto [least, most] =
        std::minmax_element(fair.layers[0].loads.begin(), fair.layers[0].loads.end());
    EXPECT_TRUE(fair.layers[0].optimal);
    EXPECT_NEAR(*most - *least, best.spread, 1e-9 * *most) << i;
    // The place of a part is one more.
    if (request.most_heads > 0) ++request.most_heads;
    const Assignment tokens = Assign(request, Method::kTokens);
    ExpectSound(request, tokens, request.ranks - 1);
    // A head more is not split where that is worth less than a hundredth.
    if (request.fixed > 0.0) continue;
    EXPECT_LE(tokens.Seconds(), best.largest * (1.0 + 0.0101)) << i;
  }
}

TEST(AssignmentTest, LoadsThatDivideEvenlyStayInOrder) {
  AssignmentRequest request;
  request.loads.assign(2, std::vector<double>(8, 1.0));
  request.ranks = 3;
  for (const Method method : {Method::kStatic, Method::kBalanced}) {
    const Assignment assignment = Assign(request, method);
    EXPECT_EQ(HeadsOf(assignment.layers[1], 0), (std::vector<int>{0, 1, 2}));
    EXPECT_EQ(HeadsOf(assignment.layers[1], 1), (std::vector<int>{3, 4, 5}));
    EXPECT_EQ(HeadsOf(assignment.layers[1], 2), (std::vector<int>{6, 7}));
    EXPECT_EQ(assignment.Seconds(), 6.0);
    EXPECT_NEAR(assignment.BusyShare(), 8.0 / 9.0, 1e-12);
  }
  request.ranks = 10;
  EXPECT_TRUE(HeadsOf(Assign(request, Method::kBalanced).layers[0], 9).empty());
}

TEST(AssignmentTest, ZeroLoadsAreAssigned) {
  AssignmentRequest request;
  request.loads = {{0.0, 0.0, 0.0}};
  request.ranks = 2;
  for (const Method method :
       {Method::kStatic, Method::kFairKv, Method::kBalanced, Method::kTokens}) {
    const Assignment assignment = Assign(request, method);
    ExpectSound(request, assignment, 1);
    EXPECT_EQ(assignment.BusyShare(), 1.0);
  }
}

// One head has more than all others: only its tokens, or the batch, can be shared.
TEST(AssignmentTest, LargeHeadsAreShared) {
  AssignmentRequest request;
  request.loads = {{7.0, 0.5, 0.25, 0.25}};
  request.ranks = 4;
  EXPECT_EQ(Assign(request, Method::kBalanced).Seconds(), 7.0);
  request.copies = 3;
  EXPECT_EQ(Assign(request, Method::kBalanced).Seconds(), 7.0 / 4 + 0.5);
  EXPECT_NEAR(Assign(request, Method::kTokens).Seconds(), 2.0, 1e-9);
  // Each share takes the fixed part again, and there are three splits.
  request.fixed = 0.25;
  EXPECT_NEAR(Assign(request, Method::kTokens).Seconds(), 2.0 + 3 * 0.25 / 4, 1e-9);
}

TEST(AssignmentTest, LatencyIsLinearInBatchAndKeys) {
  const HeadLatency latency = {.key = 2.0, .sequence = 3.0, .fixed = 5.0};
  EXPECT_EQ(HeadSeconds(latency, 4.0, 10.0), 97.0);
  EXPECT_EQ(HeadSeconds(latency, 4.0, 20.0) - HeadSeconds(latency, 4.0, 10.0), 80.0);
}

// What FairKV measured without balance (Tab. 2), in percent, at a budget of 512. Shares of a
// layer's budget that are log-normal, with one deviation for each model, come within 4 of all of
// it.
struct Profile {
  const char* model;
  size_t layers;
  double deviation;
  double busy[3];  // TP 2, 4, 8
};
constexpr Profile kProfiles[] = {{"70B", 80, 0.50, {86.4, 70.5, 55.7}},
                                 {"8B", 32, 0.30, {90.6, 81.6, 68.8}},
                                 {"24B", 40, 0.28, {91.2, 82.0, 70.8}}};

AssignmentRequest RequestOf(const Profile& profile, int ranks) {
  Random random(11);
  AssignmentRequest request;
  request.ranks = ranks;
  for (size_t layer = 0; layer < profile.layers; ++layer) {
    request.loads.push_back(RandomLoads(&random, 8, profile.deviation));
    const double all =
        std::accumulate(request.loads.back().begin(), request.loads.back().end(), 0.0);
    for (double& load : request.loads.back()) load *= 8 * 512 / all;
  }
  return request;
}

TEST(AssignmentTest, ProfilesLikeThePapersAreBalanced) {
  for (const Profile& profile : kProfiles) {
    SCOPED_TRACE(profile.model);
    for (int i = 0; i < 3; ++i) {
      AssignmentRequest request = RequestOf(profile, 2 << i);
      const Assignment fixed = Assign(request, Method::kStatic);
      EXPECT_NEAR(100.0 * fixed.BusyShare(), profile.busy[i], 4.0);
      request.copies = 4;
      const Assignment balanced = Assign(request, Method::kBalanced);
      const Assignment fair = Assign(request, Method::kFairKv);
      const Assignment tokens = Assign(request, Method::kTokens);
      // Fewer copies than it takes to even out a head for each rank: the optimum at TP 8.
      EXPECT_GE(balanced.BusyShare(), i == 0 ? 0.99 : i == 1 ? 0.98 : 0.88);
      EXPECT_GE(tokens.BusyShare(), 0.98);
      // Loads that differ least are not those whose largest one is least.
      EXPECT_LE(fair.BusyShare(), balanced.BusyShare() + 1e-9);
      size_t optimal = 0;
      for (const LayerAssignment& layer : balanced.layers) optimal += layer.optimal ? 1 : 0;
      EXPECT_GE(optimal, profile.layers - 1);
    }
  }
}

// The search ends at its limit with what it has, which is sound.
TEST(AssignmentTest, SearchesEndAtTheirLimit) {
  AssignmentRequest request = RequestOf(kProfiles[0], 8);
  request.copies = 4;
  request.node_limit = 100;
  const Assignment limited = Assign(request, Method::kBalanced);
  ExpectSound(request, limited, request.copies);
  for (const LayerAssignment& layer : limited.layers) EXPECT_LE(layer.nodes, request.node_limit);
  EXPECT_GE(limited.BusyShare(), 0.84);
}

// What is gained in attention alone, as the paper counts it.
TEST(AssignmentTest, GainsOverStaticAreThoseOfTheBusyShares) {
  for (const int ranks : {4, 8}) {
    AssignmentRequest request = RequestOf(kProfiles[0], ranks);
    request.copies = 4;
    const double fixed = Assign(request, Method::kStatic).Seconds();
    const Method method = ranks == 4 ? Method::kBalanced : Method::kTokens;
    EXPECT_GE(fixed / Assign(request, method).Seconds(), ranks == 4 ? 1.38 : 1.75);
  }
}

}  // namespace
}  // namespace headway::plan
