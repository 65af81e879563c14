#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <limits>
#include <mutex>
#include <new>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/random.h"

namespace headway {
namespace {

TEST(ThreadPool, CoversEveryItemOnce) {
  constexpr uint64_t kSeed = 3;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  for (int threads = 1; threads <= 8; ++threads) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.threads(), threads);
    for (int round = 0; round < 200; ++round) {
      const int64_t items = random.Below(300);
      const int64_t grain = 1 + random.Below(40);
      std::vector<int> seen(static_cast<size_t>(items), 0);  // no atomics: pieces are disjoint
      std::vector<int64_t> sums(static_cast<size_t>(threads), 0);
      pool.Run(items, grain, [&](int thread, int64_t begin, int64_t end) {
        ASSERT_GE(thread, 0);
        ASSERT_LT(thread, threads);
        ASSERT_EQ(begin % grain, 0);
        ASSERT_EQ(end, std::min(begin + grain, items));
        for (int64_t i = begin; i < end; ++i) {
          ++seen[static_cast<size_t>(i)];
          sums[static_cast<size_t>(thread)] += i;
        }
      });
      for (const int count : seen) ASSERT_EQ(count, 1);
      EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), int64_t{0}), items * (items - 1) / 2);
    }
  }
}

TEST(ThreadPool, ManyTinyRuns) {
  for (const int threads : {2, 3, 8}) {
    ThreadPool pool(threads);
    std::vector<int64_t> cells(static_cast<size_t>(threads), 0);
    constexpr int kRuns = 5000;
    for (int run = 0; run < kRuns; ++run) {
      pool.Run(threads, 1, [&](int, int64_t begin, int64_t) {
        cells[static_cast<size_t>(begin)] += run;  // plain writes: Run orders them
      });
    }
    for (const int64_t cell : cells) ASSERT_EQ(cell, int64_t{kRuns} * (kRuns - 1) / 2);
  }
}

TEST(ThreadPool, WakesSleepers) {
  ThreadPool pool(4);
  for (int round = 0; round < 20; ++round) {
    // Longer than the workers spin: they sleep.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> calls{0};
    pool.Run(4, 1, [&](int, int64_t, int64_t) { ++calls; });
    ASSERT_EQ(calls, 4);
  }
}

TEST(ThreadPool, AllThreadsTakePart) {
  ThreadPool pool(4);
  std::set<int> members;
  std::mutex mutex;
  // Four pieces that end together can only be run by four threads.
  std::atomic<int> arrived{0};
  pool.Run(4, 1, [&](int thread, int64_t, int64_t) {
    ++arrived;
    while (arrived < 4) std::this_thread::yield();
    const std::lock_guard<std::mutex> lock(mutex);
    members.insert(thread);
  });
  EXPECT_EQ(members, (std::set<int>{0, 1, 2, 3}));
}

TEST(ThreadPool, NoItemsNoCall) {
  ThreadPool pool(3);
  for (const int64_t items : {int64_t{0}, int64_t{-5}}) {
    pool.Run(items, 4, [](int, int64_t, int64_t) { FAIL(); });
  }
}

TEST(ThreadPool, OnePieceRunsOnTheCaller) {
  ThreadPool pool(3);
  const std::thread::id caller = std::this_thread::get_id();
  int calls = 0;
  pool.Run(10, std::numeric_limits<int64_t>::max(), [&](int thread, int64_t begin, int64_t end) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(thread, 0);
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 10);
    ++calls;
  });
  EXPECT_EQ(calls, 1);
}

TEST(ThreadPool, ZeroTakesTheUsableCores) {
  ThreadPool pool(0);
  EXPECT_GE(pool.threads(), 1);
  EXPECT_LE(pool.threads(), static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
}

TEST(ThreadPool, PoolsLiveSideBySide) {
  std::vector<std::thread> engines;
  std::atomic<int64_t> total{0};
  for (int e = 0; e < 3; ++e) {
    engines.emplace_back([&total] {
      ThreadPool pool(3);
      for (int run = 0; run < 300; ++run) {
        pool.Run(7, 2, [&](int, int64_t begin, int64_t end) { total += end - begin; });
      }
    });
  }
  for (std::thread& engine : engines) engine.join();
  EXPECT_EQ(total, 3 * 300 * 7);
}

TEST(ThreadPool, CreatedAndDestroyedQuickly) {
  for (int round = 0; round < 200; ++round) {
    ThreadPool pool(4);
    if (round % 2 == 0) pool.Run(4, 1, [](int, int64_t, int64_t) {});
  }
}

// Whichever thread's piece it is, Run ends with the exception, once no other piece runs.
TEST(ThreadPool, WhatAPieceThrowsComesOutOfRun) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    for (int bad = 0; bad < 50; ++bad) {
      std::atomic<int> running = 0;
      const auto work = [&](int, int64_t begin, int64_t) {
        ++running;
        if (begin == bad || begin == bad + 7) {
          --running;
          throw std::bad_alloc();
        }
        std::this_thread::sleep_for(std::chrono::microseconds(20));
        --running;
      };
      EXPECT_THROW(pool.Run(50, 1, work), std::bad_alloc);
      EXPECT_EQ(running, 0);
      std::atomic<int> done = 0;
      pool.Run(50, 1, [&](int, int64_t, int64_t) { ++done; });
      EXPECT_EQ(done, 50);
    }
  }
}

// The warning that threads are missing may throw, too, as where there is no memory for its text.
TEST(ThreadPool, AConstructorThatThrowsEndsTheThreadsThatRun) {
#ifdef HEADWAY_SANITIZED
  GTEST_SKIP() << "sanitizers take address space without end";
#endif
  const auto construct = [] {
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const auto limit = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + (int64_t{64} << 20));
    const rlimit limits = {limit, limit};
    if (setrlimit(RLIMIT_AS, &limits) != 0) _exit(2);
    SetLogSink([](LogLevel, std::string_view) { throw std::bad_alloc(); });
    try {
      const ThreadPool pool(256);
      _exit(3);  // no thread was missing
    } catch (const std::bad_alloc&) {
      _exit(0);
    }
  };
  EXPECT_EXIT(construct(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace headway
