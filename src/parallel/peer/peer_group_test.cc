// Ranks on GPUs: each on one of its own where there are as many, else all on the first. With and
// without peer access, which one GPU always has.
#include "parallel/peer/peer_group.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/env.h"
#include "base/random.h"
#include "device/cuda/cuda_device.h"
#include "parallel/testing/gpu_rank.h"
#include "parallel/testing/rank_values.h"

namespace headway {
namespace {

using ::testing::HasSubstr;

// Before the runtime looks at them. With all kernels loaded before and no memory taken while ranks
// wait for each other, they need not meet on the host.
const bool g_set = [] {
  return setenv("CUDA_MODULE_LOADING", "EAGER", 1) == 0 &&
         setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1) == 0;
}();
constexpr PeerOptions kDirect = {.peer_access = true, .meets_on_host = false};
constexpr PeerOptions kThroughHost = {.peer_access = false, .meets_on_host = false};

std::vector<int> GpusOf(int ranks) {
  const int gpus = *CountCudaDevices();
  std::vector<int> indices;
  for (int rank = 0; rank < ranks; ++rank) indices.push_back(gpus < ranks ? 0 : rank);
  return indices;
}

std::unique_ptr<PeerGroup> NewGroup(int ranks, const PeerOptions& options = kDirect) {
  Result<std::unique_ptr<PeerGroup>> group = PeerGroup::Create(GpusOf(ranks), options);
  EXPECT_TRUE(group.ok()) << group.status().message();
  return std::move(*group);
}

std::vector<std::unique_ptr<GpuRank>> NewRanks(int ranks, size_t bytes) {
  std::vector<std::unique_ptr<GpuRank>> made;
  for (const int gpu : GpusOf(ranks)) made.push_back(std::make_unique<GpuRank>(gpu, bytes));
  return made;
}

// Makes ranks come in every order.
void Delay(Random* random) {
  if (random->Below(3) > 0) return;
  std::this_thread::sleep_for(std::chrono::microseconds(random->Below(300)));
}

// Counts of a call through mailboxes, of several, and of shares; begun where fours are not aligned,
// too. Calls of all kinds follow one another without a wait between.
TEST(PeerGroupTest, SumsAreInTheOrderOfTheRanks) {
  for (const PeerOptions& options : {kDirect, kThroughHost}) {
    for (const int ranks : {1, 2, 3, 8}) {
      const std::unique_ptr<PeerGroup> group = NewGroup(ranks, options);
      const auto own = NewRanks(ranks, 400'000 * sizeof(float));
      for (const size_t count : {0u, 1u, 7u, 4096u, 32768u, 32769u, 200'003u}) {
        const std::vector<float> expected = SumsOfRanks(ranks, count);
        const Status status = group->Run([&](int rank) {
          const GpuRank& mine = *own[static_cast<size_t>(rank)];
          Random random(static_cast<uint64_t>(rank));
          const std::vector<float> values = ValuesOfRank(rank, count);
          for (int round = 0; round < 6; ++round) {
            const auto offset = static_cast<size_t>(round % 3);
            mine.Give(values.data(), count * sizeof(float), offset * sizeof(float));
            Delay(&random);
            group->communicator(rank).AllReduceSum(*mine.stream, mine.floats(offset),
                                                   static_cast<int64_t>(count));
            std::vector<float> sums(count, -1.0f);
            const Status s = mine.Take(sums.data(), count * sizeof(float), offset * sizeof(float));
            if (!s.ok()) return s;
            if (sums != expected) {
              return Status(StatusCode::kInternal, "another sum of " + std::to_string(count));
            }
          }
          return OkStatus();
        });
        EXPECT_TRUE(status.ok()) << ranks << " ranks: " << status.message();
      }
    }
  }
}

// No wait of the host between: a rank may be a call ahead of another, in either buffer of mail, and
// calls of all kinds follow one another. The first rank has ones
// and the others zeros: after a sum all have ones, after the next one as many as there are ranks,
// and so on.
TEST(PeerGroupTest, CallsFollowOneAnother) {
  constexpr int kRanks = 3, kRounds = 8;
  constexpr size_t kFew = 5000, kMany = 40'000;
  for (const PeerOptions& options : {kDirect, kThroughHost}) {
    const std::unique_ptr<PeerGroup> group = NewGroup(kRanks, options);
    const auto own = NewRanks(kRanks, kMany * sizeof(float));
    const Status status = group->Run([&](int rank) {
      const GpuRank& mine = *own[static_cast<size_t>(rank)];
      Communicator& communicator = group->communicator(rank);
      Random random(static_cast<uint64_t>(rank) + 10);
      const std::vector<float> begin(kMany, rank == 0 ? 1.0f : 0.0f);
      for (int repeat = 0; repeat < 20; ++repeat) {
        mine.Give(begin.data(), kMany * sizeof(float));
        float few = 1.0f, many = 1.0f;
        for (int round = 0; round < kRounds; ++round) {
          Delay(&random);
          communicator.AllReduceSum(*mine.stream, mine.floats(), kFew);
          communicator.Broadcast(*mine.stream, mine.buffer->data(), 37, round % kRanks);
          if (round % 2 == 0) communicator.AllReduceSum(*mine.stream, mine.floats(), kMany);
          if (round % 3 == 0) communicator.Barrier(*mine.stream);
          if (round > 0) few *= kRanks;
          if (round % 2 == 0) few *= kRanks;
          if (round % 2 == 0 && round > 0) many *= kRanks;
        }
        std::vector<float> made(kMany);
        if (Status s = mine.Take(made.data(), kMany * sizeof(float)); !s.ok()) return s;
        for (size_t i = 0; i < kMany; ++i) {
          if (made[i] != (i < kFew ? few : many)) {
            return Status(StatusCode::kInternal, "a sum of " + std::to_string(made[i]));
          }
        }
      }
      return OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

// Meetings straight behind meetings, and before what works in the ranks' buffers: a rank may find
// the packet of another one's next call.
TEST(PeerGroupTest, MeetingsFollowOneAnother) {
  constexpr size_t kCount = 40'000;
  for (const int ranks : {2, 3, 4}) {
    const std::unique_ptr<PeerGroup> group = NewGroup(ranks);
    const auto own = NewRanks(ranks, kCount * sizeof(float));
    const Status status = group->Run([&](int rank) {
      const GpuRank& mine = *own[static_cast<size_t>(rank)];
      Communicator& communicator = group->communicator(rank);
      Random random(static_cast<uint64_t>(rank) + 30);
      for (int round = 0; round < 200; ++round) {
        // Columns of this rank are its own number, of others -1, in a matrix of one row.
        const auto begin = static_cast<int64_t>(kCount) * rank / ranks;
        const auto end = static_cast<int64_t>(kCount) * (rank + 1) / ranks;
        std::vector<float> values(kCount, -1.0f);
        std::fill(values.begin() + begin, values.begin() + end, static_cast<float>(rank));
        mine.Give(values.data(), kCount * sizeof(float));
        const auto meet = [&] {
          Delay(&random);
          communicator.Barrier(*mine.stream);
        };
        meet();
        meet();
        communicator.AllGather(*mine.stream,
                               {mine.floats(), 1, static_cast<int64_t>(kCount), begin, end});
        meet();
        communicator.AllReduceSum(*mine.stream, mine.floats(), kCount);
        meet();
        if (Status s = mine.Take(values.data(), kCount * sizeof(float)); !s.ok()) return s;
        for (int r = 0; r < ranks; ++r) {
          const auto at = static_cast<size_t>(static_cast<int64_t>(kCount) * r / ranks);
          if (values[at] != static_cast<float>(r * ranks)) {
            return Status(StatusCode::kInternal, "a value of " + std::to_string(values[at]));
          }
        }
      }
      return OkStatus();
    });
    EXPECT_TRUE(status.ok()) << ranks << " ranks: " << status.message();
  }
}

// Sums on a stream of their own, between calls on the other one; each rank has a GPU, where streams
// of one rank do not wait behind those of another.
class CallsOfTwoStreams : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CallsOfTwoStreams, ::testing::Values(2, 3, 4));

TEST_P(CallsOfTwoStreams, FollowOneAnother) {
  constexpr int kRounds = 12;
  constexpr size_t kFew = 5000, kMany = 400'000;
  const int ranks = GetParam();
  if (*CountCudaDevices() < ranks) GTEST_SKIP() << "takes " << ranks << " GPUs";
  const float of_sum = static_cast<float>(ranks);
  const std::unique_ptr<PeerGroup> group = NewGroup(ranks);
  const auto own = NewRanks(ranks, kMany * sizeof(float));
  const Status status = group->Run([&](int rank) {
    const GpuRank& mine = *own[static_cast<size_t>(rank)];
    Communicator& communicator = group->communicator(rank);
    Random random(static_cast<uint64_t>(rank) + 10);
    const std::vector<float> begin(kMany, rank == 0 ? 1.0f : 0.0f);
    for (int repeat = 0; repeat < 20; ++repeat) {
      mine.Give(begin.data(), kMany * sizeof(float));
      float few = 1.0f, many = 1.0f;
      for (int round = 0; round < kRounds; ++round) {
        Delay(&random);
        mine.Aside([&](Stream& s) { communicator.AllReduceSum(s, mine.floats(), kMany); });
        communicator.AllReduceSum(*mine.stream, mine.floats(), kFew);
        if (round > 0) many *= of_sum;
        few *= round > 0 ? of_sum * of_sum : of_sum;
      }
      std::vector<float> values(kMany, -1.0f);
      if (const Status s = mine.Take(values.data(), kMany * sizeof(float)); !s.ok()) return s;
      if (values[0] != few || values[kFew - 1] != few || values[kFew] != many ||
          values[kMany - 1] != many) {
        return Status(StatusCode::kInternal, "other sums");
      }
    }
    return OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(PeerGroupTest, ColumnsAreGathered) {
  constexpr int kRanks = 3, kRows = 5;
  for (const PeerOptions& options : {kDirect, kThroughHost}) {
    for (const int columns : {11, 40'001}) {
      const std::unique_ptr<PeerGroup> group = NewGroup(kRanks, options);
      const size_t bytes = sizeof(float) * kRows * static_cast<size_t>(columns);
      const auto own = NewRanks(kRanks, bytes);
      const Status status = group->Run([&](int rank) {
        const GpuRank& mine = *own[static_cast<size_t>(rank)];
        Random random(static_cast<uint64_t>(rank));
        for (int round = 0; round < 10; ++round) {
          Delay(&random);
          // The second rank has no column of its own.
          const int begin = rank == 0 ? 0 : 4, end = rank == 2 ? columns : 4;
          std::vector<float> data(bytes / sizeof(float), -1.0f), expected;
          for (size_t i = 0; i < data.size(); ++i) {
            expected.push_back(static_cast<float>(i + static_cast<size_t>(round)));
            const int column = static_cast<int>(i) % columns;
            if (column >= begin && column < end) data[i] = expected.back();
          }
          mine.Give(data.data(), bytes);
          group->communicator(rank).AllGather(*mine.stream,
                                              {mine.floats(), kRows, columns, begin, end});
          if (Status s = mine.Take(data.data(), bytes); !s.ok()) return s;
          if (data != expected) return Status(StatusCode::kInternal, "other columns");
        }
        return OkStatus();
      });
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
}

// Any bytes, from any place, more than go through mailboxes at once.
TEST(PeerGroupTest, BroadcastsAndDecisions) {
  constexpr size_t kBytes = 300'001;
  const std::unique_ptr<PeerGroup> group = NewGroup(4);
  const auto own = NewRanks(4, kBytes + 1);
  const Status status = group->Run([&](int rank) {
    const GpuRank& mine = *own[static_cast<size_t>(rank)];
    Communicator& communicator = group->communicator(rank);
    for (int from = 0; from < 4; ++from) {
      const auto of_rank = [&](int r) {
        Random random(static_cast<uint64_t>(10 * r + from));
        std::vector<uint8_t> bytes(kBytes);
        for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Below(256));
        return bytes;
      };
      std::vector<uint8_t> bytes = of_rank(rank);
      mine.Give(bytes.data(), kBytes, 1);
      communicator.Broadcast(*mine.stream, mine.buffer->data() + 1, kBytes, from);
      if (Status s = mine.Take(bytes.data(), kBytes, 1); !s.ok()) return s;
      EXPECT_TRUE(bytes == of_rank(from));
    }
    const Result<int64_t> first = communicator.OfFirst(10 * rank + 7);
    EXPECT_TRUE(first.ok() && *first == 7);
    EXPECT_TRUE(HostsGather(communicator).ok());
    return OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(PeerGroupTest, NobodyPassesABarrierAlone) {
  const std::unique_ptr<PeerGroup> group = NewGroup(4);
  const auto own = NewRanks(4, 16);
  std::atomic<int> begun = 0;
  const Status status = group->Run([&](int rank) {
    const GpuRank& mine = *own[static_cast<size_t>(rank)];
    std::this_thread::sleep_for(std::chrono::milliseconds(5 * rank));
    ++begun;
    group->communicator(rank).Barrier(*mine.stream);
    mine.stream->HostWork({}, [&] {
      EXPECT_EQ(begun, 4);
      return OkStatus();
    });
    return mine.stream->Synchronize();
  });
  EXPECT_TRUE(status.ok()) << status.message();
}

// A rank that fails ends the others, wherever they wait, and the group.
TEST(PeerGroupTest, OneErrorEndsAll) {
  for (const int64_t count : {100, 100'000}) {
    for (int failing = 0; failing < 3; ++failing) {
      for (const bool throws : {false, true}) {
        const std::unique_ptr<PeerGroup> group = NewGroup(3);
        const auto own = NewRanks(3, static_cast<size_t>(count) * sizeof(float));
        std::atomic<int> cut_short = 0;
        const Status status = group->Run([&](int rank) {
          const GpuRank& mine = *own[static_cast<size_t>(rank)];
          for (int round = 0; round < 5; ++round) {
            if (rank == failing && round == 3) {
              std::this_thread::sleep_for(std::chrono::milliseconds(2));
              if (throws) throw std::runtime_error("disk gone");
              return Status(StatusCode::kIo, "disk gone");
            }
            group->communicator(rank).AllReduceSum(*mine.stream, mine.floats(), count);
          }
          const Status s = mine.stream->Synchronize();
          if (!s.ok()) ++cut_short;
          return s;
        });
        EXPECT_EQ(cut_short, 2);
        EXPECT_THAT(status.message(), HasSubstr("rank " + std::to_string(failing) + " of 3: "));
        EXPECT_THAT(status.message(), HasSubstr("disk gone"));
        EXPECT_EQ(group->Run([](int) { return OkStatus(); }).message(), status.message());
      }
    }
  }
}

TEST(PeerGroupTest, ARankThatEndsEarlyIsNotWaitedFor) {
  const std::unique_ptr<PeerGroup> group = NewGroup(3);
  const auto own = NewRanks(3, 16);
  const Status status = group->Run([&](int rank) {
    const GpuRank& mine = *own[static_cast<size_t>(rank)];
    if (rank != 1) group->communicator(rank).Barrier(*mine.stream);
    return mine.stream->Synchronize();
  });
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("a rank that has ended"));
}

// What all ranks refuse alike cuts nothing short: the group goes on.
TEST(PeerGroupTest, ARefusalLeavesTheGroupUsable) {
  const std::unique_ptr<PeerGroup> group = NewGroup(3);
  const auto own = NewRanks(3, 16);
  const Status refused = group->Run([&](int rank) {
    group->communicator(rank).Barrier(*own[static_cast<size_t>(rank)]->stream);
    return Status(StatusCode::kInvalidArgument, "the prompt is empty");
  });
  EXPECT_EQ(refused.message(), "the prompt is empty");
  EXPECT_TRUE(group->Run([](int) { return OkStatus(); }).ok());
}

// Calls behind one that a rank has refused are not taken for it, and do not make the others wait.
TEST(PeerGroupTest, UnequalSizesAreAnError) {
  for (const int ranks : {2, 3}) {
    for (const int64_t count : {50, 100'000}) {
      const std::unique_ptr<PeerGroup> group = NewGroup(ranks);
      const auto own = NewRanks(ranks, (static_cast<size_t>(count) + 4) * sizeof(float));
      const Status status = group->Run([&](int rank) {
        const GpuRank& mine = *own[static_cast<size_t>(rank)];
        const int64_t other = rank == 1 ? count + 1 : count;
        group->communicator(rank).AllReduceSum(*mine.stream, mine.floats(), other);
        group->communicator(rank).AllReduceSum(*mine.stream, mine.floats(), count);
        return mine.stream->Synchronize();
      });
      EXPECT_THAT(status.message(), HasSubstr("unequal sizes"));
    }
  }
}

TEST(PeerGroupTest, TooManyRanksAreRefused) {
  const std::vector<int> gpus(17, 0);
  EXPECT_EQ(PeerGroup::Create(gpus).status().code(), StatusCode::kUnsupported);
}

// As engines have it: with loading and memory at any time.
TEST(PeerGroupTest, RanksThatShareAGpuMeetOnTheHost) {
  ASSERT_TRUE(g_set);
  constexpr size_t kCount = 1000;
  const std::vector<float> expected = SumsOfRanks(3, kCount);
  Result<std::unique_ptr<PeerGroup>> group = PeerGroup::Create(std::vector<int>{0, 0, 0});
  ASSERT_TRUE(group.ok()) << group.status().message();
  std::vector<std::unique_ptr<GpuRank>> own;
  for (int rank = 0; rank < 3; ++rank) own.push_back(std::make_unique<GpuRank>(0, 4 * kCount));
  const Status status = (*group)->Run([&](int rank) {
    GpuRank& mine = *own[static_cast<size_t>(rank)];
    for (int round = 0; round < 20; ++round) {
      std::vector<float> sums = ValuesOfRank(rank, kCount);
      const auto memory = mine.device->Allocate(mine.budget, 1 << 20, "more");
      mine.Give(sums.data(), 4 * kCount);
      (*group)->communicator(rank).AllReduceSum(*mine.stream, mine.floats(), kCount);
      if (Status s = mine.Take(sums.data(), 4 * kCount); !s.ok()) return s;
      if (sums != expected) return Status(StatusCode::kInternal, "another sum");
    }
    return OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status.message();
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  const Status refused = PeerGroup::Create(std::vector<int>{0, 0}).status();
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_THAT(refused.message(), HasSubstr("CUDA_DEVICE_MAX_CONNECTIONS=32"));
}

}  // namespace
}  // namespace headway
