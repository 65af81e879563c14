#include "parallel/thread/thread_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "device/cpu/cpu_device.h"
#include "parallel/testing/rank_values.h"

namespace headway {
namespace {

using ::testing::HasSubstr;

// A stream of the CPU device, of which each rank has one.
struct Rank {
  std::unique_ptr<Device> device = NewCpuDevice(Env::Default(), nullptr);
  std::unique_ptr<Stream> stream = *device->NewStream(Lane::kCompute);
};

// Makes ranks come in every order.
void Delay(Random* random) {
  if (random->Below(3) > 0) return;
  std::this_thread::sleep_for(std::chrono::microseconds(random->Below(300)));
}

TEST(ThreadGroupTest, SumsAreInTheOrderOfTheRanks) {
  for (const int ranks : {1, 2, 3, 8}) {
    for (const size_t count : {0u, 1u, 7u, 5000u}) {
      const std::vector<float> expected = SumsOfRanks(ranks, count);
      ThreadGroup group(ranks);
      const Status status = group.Run([&](int rank) {
        const Rank own;
        Random random(static_cast<uint64_t>(rank));
        for (int round = 0; round < 10; ++round) {
          Delay(&random);
          std::vector<float> data = ValuesOfRank(rank, count);
          group.communicator(rank).AllReduceSum(*own.stream, data.data(),
                                                static_cast<int64_t>(count));
          if (Status s = own.stream->Synchronize(); !s.ok()) return s;
          if (data != expected) return Status(StatusCode::kInternal, "another sum");
        }
        return OkStatus();
      });
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
}

TEST(ThreadGroupTest, ColumnsAreGathered) {
  constexpr int kRanks = 3, kRows = 5, kColumns = 11;
  ThreadGroup group(kRanks);
  const Status status = group.Run([&](int rank) {
    const Rank own;
    Random random(static_cast<uint64_t>(rank));
    for (int round = 0; round < 30; ++round) {
      Delay(&random);
      // The second rank has no column of its own.
      const int begin = rank == 0 ? 0 : 4, end = rank == 2 ? kColumns : 4;
      std::vector<float> data(kRows * kColumns, -1.0f), expected;
      for (int i = 0; i < kRows * kColumns; ++i) {
        expected.push_back(static_cast<float>(i + round));
        const int column = i % kColumns;
        if (column >= begin && column < end) data[static_cast<size_t>(i)] = expected.back();
      }
      group.communicator(rank).AllGather(*own.stream, {data.data(), kRows, kColumns, begin, end});
      if (Status s = own.stream->Synchronize(); !s.ok()) return s;
      if (data != expected) return Status(StatusCode::kInternal, "other columns");
    }
    return OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(ThreadGroupTest, BroadcastsAndDecisions) {
  ThreadGroup group(4);
  const Status status = group.Run([&](int rank) {
    const Rank own;
    Communicator& communicator = group.communicator(rank);
    EXPECT_EQ(communicator.rank(), rank);
    EXPECT_EQ(communicator.ranks(), 4);
    for (int from = 0; from < 4; ++from) {
      int64_t value = 100 + rank;
      communicator.Broadcast(*own.stream, reinterpret_cast<std::byte*>(&value), 8, from);
      if (Status s = own.stream->Synchronize(); !s.ok()) return s;
      EXPECT_EQ(value, 100 + from);
    }
    const Result<int64_t> first = communicator.OfFirst(10 * rank + 7);
    EXPECT_TRUE(first.ok() && *first == 7);
    EXPECT_TRUE(HostsGather(communicator).ok());
    return OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(ThreadGroupTest, NobodyPassesABarrierAlone) {
  ThreadGroup group(4);
  std::atomic<int> begun = 0;
  const Status status = group.Run([&](int rank) {
    const Rank own;
    std::this_thread::sleep_for(std::chrono::milliseconds(5 * rank));
    ++begun;
    group.communicator(rank).Barrier(*own.stream);
    own.stream->HostWork({}, [&] {
      EXPECT_EQ(begun, 4);
      return OkStatus();
    });
    return own.stream->Synchronize();
  });
  EXPECT_TRUE(status.ok()) << status.message();
}

// A rank that fails ends the others, wherever they wait, and the group.
TEST(ThreadGroupTest, OneErrorEndsAll) {
  for (int failing = 0; failing < 3; ++failing) {
    for (const bool throws : {false, true}) {
      ThreadGroup group(3);
      std::atomic<int> cut_short = 0;
      const Status status = group.Run([&](int rank) {
        const Rank own;
        std::vector<float> data(100, 1.0f);
        for (int round = 0; round < 5; ++round) {
          if (rank == failing && round == 3) {
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            if (throws) throw std::runtime_error("disk gone");
            return Status(StatusCode::kIo, "disk gone");
          }
          group.communicator(rank).AllReduceSum(*own.stream, data.data(), 100);
        }
        const Status s = own.stream->Synchronize();
        if (!s.ok()) ++cut_short;
        return s;
      });
      EXPECT_EQ(cut_short, 2);
      EXPECT_THAT(status.message(), HasSubstr("rank " + std::to_string(failing) + " of 3: "));
      EXPECT_THAT(status.message(), HasSubstr("disk gone"));
      EXPECT_EQ(group.Run([](int) { return OkStatus(); }).message(), status.message());
    }
  }
}

TEST(ThreadGroupTest, ARankThatEndsEarlyIsNotWaitedFor) {
  ThreadGroup group(3);
  const Status status = group.Run([&](int rank) {
    const Rank own;
    if (rank != 1) group.communicator(rank).Barrier(*own.stream);
    return own.stream->Synchronize();
  });
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("a rank that has ended"));
}

// What all ranks refuse alike cuts nothing short: the group goes on.
TEST(ThreadGroupTest, ARefusalLeavesTheGroupUsable) {
  ThreadGroup group(3);
  const Status refused = group.Run([&](int rank) {
    const Rank own;
    group.communicator(rank).Barrier(*own.stream);
    return Status(StatusCode::kInvalidArgument, "the prompt is empty");
  });
  EXPECT_EQ(refused.message(), "the prompt is empty");
  EXPECT_TRUE(group.Run([](int) { return OkStatus(); }).ok());
}

TEST(ThreadGroupTest, UnequalSizesAreAnError) {
  ThreadGroup group(2);
  const Status status = group.Run([&](int rank) {
    const Rank own;
    std::vector<float> data(100);
    group.communicator(rank).AllReduceSum(*own.stream, data.data(), 50 + rank);
    return own.stream->Synchronize();
  });
  EXPECT_THAT(status.message(), HasSubstr("unequal sizes"));
}

}  // namespace
}  // namespace headway
