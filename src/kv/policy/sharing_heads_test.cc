// Heads that share a budget on several ranks choose what they choose on one.
#include "kv/policy/sharing_heads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstddef>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "kv/policy/eviction.h"
#include "kv/policy/eviction_budgets.h"
#include "kv/policy/eviction_testing.h"

namespace headway::kv {
namespace {

// Ranks that are threads of a test.
class Group {
 public:
  explicit Group(int ranks) : meeting_(ranks), counts_(ranks), values_(ranks) {}

  // work(rank, sums) on all of them at once.
  void Run(const std::function<void(int rank, RankSums* sums)>& work) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < static_cast<int>(counts_.size()); ++rank) {
      threads.emplace_back([this, rank, &work] {
        Member member(this, rank);
        work(rank, &member);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  class Member final : public RankSums {
   public:
    Member(Group* group, int rank) : group_(*group), rank_(static_cast<size_t>(rank)) {}
    Status AddUp(std::span<int64_t> values) override { return Sum(&group_.counts_, values); }
    Status AddUp(std::span<double> values) override { return Sum(&group_.values_, values); }

   private:
    template <typename T>
    Status Sum(std::vector<std::vector<T>>* given, std::span<T> values) {
      (*given)[rank_].assign(values.begin(), values.end());
      group_.meeting_.arrive_and_wait();
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = T{0};
        for (const std::vector<T>& of_rank : *given) values[i] += of_rank[i];
      }
      group_.meeting_.arrive_and_wait();
      return OkStatus();
    }
    Group& group_;
    const size_t rank_;
  };

  std::barrier<> meeting_;
  std::vector<std::vector<int64_t>> counts_;
  std::vector<std::vector<double>> values_;
};

// Which of `heads` each of the ranks has; some may have none.
std::vector<SharingHeads> Placed(int heads, int ranks, Random& random) {
  std::vector<SharingHeads> placed(static_cast<size_t>(ranks), SharingHeads{heads, {}, nullptr});
  for (int head = 0; head < heads; ++head) {
    placed[static_cast<size_t>(random.Below(ranks))].here.push_back(head);
  }
  return placed;
}

TEST(SharingHeads, TheLastKeyTakenIsThatOfASortedList) {
  Random random(5);
  for (int round = 0; round < 400; ++round) {
    // Keys that differ in their first digits, in their last ones, or not but in the second word.
    const int shift = static_cast<int>(random.Below(64));
    const int64_t spread = 1 + random.Below(round % 3 == 0 ? 3 : 2000);
    std::set<std::pair<uint64_t, uint64_t>> keys;
    for (int64_t i = random.Below(300); i >= 0; --i) {
      keys.emplace(static_cast<uint64_t>(random.Below(spread)) << shift,
                   static_cast<uint64_t>(random.Below(40)) << random.Below(50));
    }
    const int64_t count = 1 + random.Below(std::ssize(keys) + 2);
    const auto each = [&](const auto& visit) {
      for (const auto& [first, then] : keys) visit(ChoiceKey{first, then});
    };
    const Result<ChoiceKey> last = LastTaken(count, each, SharingHeads::Alone(1));
    ASSERT_TRUE(last.ok());
    int64_t at = 0;
    for (const auto& [first, then] : keys) {
      ASSERT_EQ((ChoiceKey{first, then} <= *last), at++ < count) << "round " << round;
    }
  }
}

// What one layer's heads were given, in numbers of few bits: sums of some are exact, as those of
// all in any order.
struct Layer {
  Layer(int of_heads, int64_t of_tokens, int64_t levels, Random& random)
      : heads(of_heads), tokens(of_tokens) {
    for (std::vector<float>* row : {&sum, &max, &norms}) {
      for (int64_t i = 0; i < heads * tokens; ++i) {
        row->push_back(static_cast<float>(random.Below(levels)) / 64.0f);
      }
    }
  }
  // Of these heads alone.
  Layer(const Layer& all, const std::vector<int>& of) : heads(static_cast<int>(of.size())) {
    tokens = all.tokens;
    for (const int head : of) {
      for (const auto& [from, to] :
           {std::pair(&all.sum, &sum), std::pair(&all.max, &max), std::pair(&all.norms, &norms)}) {
        const auto first = from->begin() + head * tokens;
        to->insert(to->end(), first, first + tokens);
      }
    }
  }
  ObservedWeights Observed() const { return {sum, max, norms, heads, tokens, 128}; }

  int heads = 0;
  int64_t tokens = 0;
  std::vector<float> sum, max, norms;
};

TEST(SharingHeads, RanksChooseWhatOneChooses) {
  constexpr EvictionMethod kMethods[] = {
      EvictionMethod::kAdaSnap,         EvictionMethod::kAdaPyramid, EvictionMethod::kDefensive,
      EvictionMethod::kCriticalAdaSnap, EvictionMethod::kSnap,       EvictionMethod::kHeadKv,
      EvictionMethod::kStreaming};
  Random random(6);
  for (int round = 0; round < 350; ++round) {
    const int heads = static_cast<int>(1 + random.Below(6));
    const int ranks = static_cast<int>(1 + random.Below(4));
    const EvictionPolicy policy =
        RandomPolicy(kMethods[static_cast<size_t>(round) % std::size(kMethods)], random, heads);
    const int slots = static_cast<int>(1 + random.Below(40));
    const Layer all(heads, 1 + random.Below(400), round % 2 == 0 ? 4 : 4096, random);
    const int64_t closed = all.tokens / slots * slots;
    const std::vector<int64_t> budgets = HeadBudgets(policy, 1, heads, all.tokens);
    const auto alone =
        *ChooseKept(policy, all.Observed(), closed, budgets, slots, SharingHeads::Alone(heads));
    std::vector<SharingHeads> placed = Placed(heads, ranks, random);
    Group(ranks).Run([&](int rank, RankSums* sums) {
      SharingHeads& own = placed[static_cast<size_t>(rank)];
      own.sums = sums;
      const Layer here(all, own.here);
      const auto kept = ChooseKept(policy, here.Observed(), closed, budgets, slots, own);
      ASSERT_TRUE(kept.ok());
      for (size_t i = 0; i < own.here.size(); ++i) {
        const KeptOfHead& expected = alone[static_cast<size_t>(own.here[i])];
        EXPECT_EQ((*kept)[i].budget, expected.budget);
        EXPECT_EQ((*kept)[i].positions, expected.positions);
      }
    });
    ASSERT_FALSE(HasFailure()) << EvictionName(policy.method) << " round " << round;
  }
}

TEST(SharingHeads, RanksGiveHeadsOfAllLayersWhatOneGivesThem) {
  Random random(7);
  for (int round = 0; round < 100; ++round) {
    EvictionPolicy policy = RandomPolicy(EvictionMethod::kZip, random, 6);
    policy.profiled = false;
    policy.window = 1;
    const int ranks = static_cast<int>(1 + random.Below(4));
    const Layer all(6, 1 + random.Below(300), round % 2 == 0 ? 3 : 4096, random);
    const auto alone =
        *BudgetsOverLayers(policy, all.sum, all.tokens, all.tokens, SharingHeads::Alone(6));
    std::vector<SharingHeads> placed = Placed(6, ranks, random);
    Group(ranks).Run([&](int rank, RankSums* sums) {
      SharingHeads& own = placed[static_cast<size_t>(rank)];
      own.sums = sums;
      const Layer here(all, own.here);
      const auto budgets = BudgetsOverLayers(policy, here.sum, here.tokens, here.tokens, own);
      ASSERT_TRUE(budgets.ok());
      for (size_t i = 0; i < own.here.size(); ++i) {
        EXPECT_EQ((*budgets)[i], alone[static_cast<size_t>(own.here[i])]);
      }
    });
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

// An error of the sums is the choice's.
TEST(SharingHeads, AnErrorIsReturned) {
  class Broken final : public RankSums {
    Status AddUp(std::span<int64_t>) override { return Status(StatusCode::kInternal, "gone"); }
    Status AddUp(std::span<double>) override { return Status(StatusCode::kInternal, "gone"); }
  };
  Broken broken;
  Random random(8);
  const Layer all(2, 100, 50, random);
  SharingHeads own = SharingHeads::Alone(2);
  own.sums = &broken;
  for (const EvictionMethod method : {EvictionMethod::kAdaSnap, EvictionMethod::kDefensive}) {
    EvictionPolicy policy;
    policy.method = method;
    policy.budget = 50;
    const std::vector<int64_t> budgets(2, 50);
    EXPECT_EQ(ChooseKept(policy, all.Observed(), 96, budgets, 16, own).status().message(), "gone");
  }
}

}  // namespace
}  // namespace headway::kv
