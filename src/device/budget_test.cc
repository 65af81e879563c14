#include "device/budget.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace headway {
namespace {

TEST(Budget, ReservesToTheLastByteAndNotBeyond) {
  Budget budget("kv-memory", 100);
  Result<Reservation> a = budget.Reserve(60, "open pages");
  ASSERT_TRUE(a.ok());
  Result<Reservation> b = budget.Reserve(41, "staging");
  ASSERT_FALSE(b.ok());
  EXPECT_EQ(b.status().code(), StatusCode::kOutOfBudget);
  for (const char* part : {"kv-memory", "staging", "41 B", "40 B", "100 B"}) {
    EXPECT_NE(b.status().message().find(part), std::string::npos) << b.status().message();
  }
  EXPECT_TRUE(budget.Reserve(40, "staging").ok());  // released at once
  EXPECT_EQ(budget.used(), 60);
  EXPECT_EQ(budget.peak(), 100);
}

TEST(Budget, GivesBackWhenReservationsMoveAndEnd) {
  Budget budget("host", 10);
  {
    Result<Reservation> a = budget.Reserve(4, "x");
    ASSERT_TRUE(a.ok());
    Reservation b = std::move(*a);
    EXPECT_EQ(budget.used(), 4);
    Result<Reservation> c = budget.Reserve(6, "y");
    ASSERT_TRUE(c.ok());
    b = std::move(*c);  // the 4 bytes go back
    EXPECT_EQ(budget.used(), 6);
    ASSERT_EQ(budget.Usage().size(), 1u);
    EXPECT_EQ(budget.Usage()[0].first, "y");
  }
  EXPECT_EQ(budget.used(), 0);
}

TEST(Budget, NeverExceededByThreadsInARace) {
  Budget budget("device", 1000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        Result<Reservation> r = budget.Reserve(300 + i % 100, "t");
        ASSERT_LE(budget.used(), 1000);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.used(), 0);
  EXPECT_LE(budget.peak(), 1000);
}

TEST(Budget, CountsInItsParent) {
  Budget whole("whole", 100);
  Budget part("part", 80, &whole);
  Result<Reservation> other = whole.Reserve(50, "other");
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(part.available(), 50);
  EXPECT_EQ(part.Reserve(51, "mine").status().code(), StatusCode::kOutOfBudget);
  EXPECT_EQ(whole.used(), 50);
  {
    Result<Reservation> mine = part.Reserve(50, "mine");
    ASSERT_TRUE(mine.ok());
    EXPECT_EQ(whole.used(), 100);
  }
  EXPECT_EQ(whole.used(), 50);
  other->Release();
  // The part's own limit holds, too, and what it refuses is not kept in the parent.
  EXPECT_EQ(part.Reserve(81, "mine").status().code(), StatusCode::kOutOfBudget);
  EXPECT_EQ(whole.used(), 0);
}

}  // namespace
}  // namespace headway
