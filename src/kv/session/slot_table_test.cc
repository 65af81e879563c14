#include "kv/session/slot_table.h"

#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <set>
#include <vector>

#include "base/random.h"

namespace headway::kv {
namespace {

constexpr int64_t kSlab = 8192;

TEST(SlotTableTest, TakesTheLowestFreeSlotFromTheBudget) {
  Budget budget("disk-memory", 3 * kSlab);
  SlotTable table(&budget, kSlab);
  EXPECT_EQ(*table.Take(), 0);
  EXPECT_EQ(*table.Take(), 1);
  EXPECT_EQ(*table.Take(), 2);
  EXPECT_EQ(budget.used(), 3 * kSlab);
  EXPECT_EQ(table.Take().status().code(), StatusCode::kOutOfBudget);
  table.Give(2);
  table.Give(0);
  EXPECT_EQ(budget.used(), kSlab);
  EXPECT_EQ(table.End(), 2);
  EXPECT_EQ(*table.Take(), 0);
  EXPECT_EQ(*table.Take(), 2);
  table.Give(1);
  EXPECT_EQ(table.Take().value(), 1);
}

TEST(SlotTableTest, KeepsWhatACommitNamesUntilTheNextIsThere) {
  Budget budget("disk-memory", kUnlimited);
  SlotTable table(&budget, kSlab);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(table.Take().ok());
  table.BeginCommit(std::vector<int64_t>{0, 1});
  table.KeepBoth();
  table.KeepNext();
  table.Give(0);  // of the committed manifest: stays
  EXPECT_FALSE(table.Holds(0));
  EXPECT_EQ(*table.Take(), 4);
  EXPECT_EQ(budget.used(), 5 * kSlab);

  // A commit that fails before its superblock is written keeps nothing new.
  table.BeginCommit(std::vector<int64_t>{2, 3});
  table.Give(3);
  EXPECT_EQ(*table.Take(), 5);
  table.Abandon();
  EXPECT_EQ(*table.Take(), 3);

  // One that fails later may be what a crash finds: both are kept.
  table.BeginCommit(std::vector<int64_t>{2, 3});
  table.KeepBoth();
  table.Abandon();
  for (const int64_t slot : {1, 2, 3, 4, 5}) table.Give(slot);
  EXPECT_EQ(*table.Take(), 4);
  EXPECT_EQ(budget.used(), 5 * kSlab);

  table.BeginCommit(std::vector<int64_t>{4});
  table.KeepBoth();
  table.KeepNext();
  EXPECT_EQ(budget.used(), kSlab);
  EXPECT_EQ(*table.Take(), 0);
}

// Tables of one file give out slots that no other one does, whatever each had in the session.
TEST(SlotTableTest, OfSeveralTablesEachHasSlotsOfItsOwn) {
  Random random(8);
  for (int round = 0; round < 50; ++round) {
    const int tables = 1 + static_cast<int>(random.Below(4));
    Budget budget("disk-memory", kUnlimited);
    std::vector<SlotTable> of;
    for (int table = 0; table < tables; ++table)
      of.emplace_back(&budget, kSlab, TableShare{table, tables});
    std::map<int64_t, int> held;  // by which table
    const int64_t saved = random.Below(20);
    for (int64_t slot = 0; slot < saved; ++slot) {
      if (random.Below(3) == 0) continue;
      held[slot] = static_cast<int>(random.Below(tables));
      for (int table = 0; table < tables; ++table) {
        if (table == held[slot]) {
          ASSERT_TRUE(of[static_cast<size_t>(table)].TakeAt(slot).ok());
        } else {
          of[static_cast<size_t>(table)].Leave(slot);
          EXPECT_TRUE(of[static_cast<size_t>(table)].IsOthers(slot));
        }
      }
    }
    for (const SlotTable& table : of) EXPECT_FALSE(table.IsOthers(-1)) << "there is none";
    const std::map<int64_t, int> adopted = held;
    for (int i = 0; i < 200; ++i) {
      if (random.Below(2) == 0 && !held.empty()) {
        const auto slot = std::next(held.begin(), random.Below(static_cast<int64_t>(held.size())));
        of[static_cast<size_t>(slot->second)].Give(slot->first);
        held.erase(slot);
        continue;
      }
      const int table = static_cast<int>(random.Below(tables));
      const int64_t slot = *of[static_cast<size_t>(table)].Take();
      ASSERT_TRUE(held.emplace(slot, table).second) << slot << " is another one's";
      const auto before = adopted.find(slot);
      EXPECT_EQ(table, before == adopted.end() ? slot % tables : before->second);
    }
    EXPECT_EQ(budget.used(), static_cast<int64_t>(held.size()) * kSlab);
  }
}

TEST(SlotTableTest, AgreesWithASet) {
  Random random(7);
  Budget budget("disk-memory", 40 * kSlab);
  SlotTable table(&budget, kSlab);
  std::set<int64_t> held;
  for (int i = 0; i < 5000; ++i) {
    if (random.Below(2) == 0 && !held.empty()) {
      const auto slot = std::next(held.begin(), random.Below(static_cast<int64_t>(held.size())));
      table.Give(*slot);
      held.erase(slot);
    } else {
      const Result<int64_t> slot = table.Take();
      ASSERT_EQ(slot.ok(), held.size() < 40);
      if (!slot.ok()) continue;
      int64_t lowest = 0;
      while (held.contains(lowest)) ++lowest;
      ASSERT_EQ(*slot, lowest);
      held.insert(*slot);
    }
    ASSERT_EQ(table.End(), held.empty() ? 0 : *held.rbegin() + 1);
    ASSERT_EQ(budget.used(), static_cast<int64_t>(held.size()) * kSlab);
  }
}

}  // namespace
}  // namespace headway::kv
