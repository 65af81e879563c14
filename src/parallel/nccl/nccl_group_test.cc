// Ranks in processes on GPUs. Run by mpirun, as two processes or more, each with a GPU of its own,
// each of which makes all tests; or with the name of an ending, in which one rank ends the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "parallel/nccl/nccl_communicator.h"
#include "parallel/process_group.h"
#include "parallel/testing/gpu_rank.h"
#include "parallel/testing/rank_values.h"

namespace headway {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr size_t kMost = 1'000'003;  // floats of a call

std::unique_ptr<ProcessGroup> g_group;
std::unique_ptr<Communicator> g_communicator;
std::unique_ptr<GpuRank> g_own;

class NcclGroupTest : public ::testing::Test {
 protected:
  ProcessGroup& group_ = *g_group;
  Communicator& communicator_ = *g_communicator;
  GpuRank& own_ = *g_own;
  const int rank_ = g_group->rank(), ranks_ = g_group->ranks();
  Random random_{static_cast<uint64_t>(g_group->rank())};

  // Makes ranks come in every order.
  void Delay() {
    if (random_.Below(3) > 0) return;
    std::this_thread::sleep_for(std::chrono::microseconds(random_.Below(600)));
  }
  void ExpectOk(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

  // The first rank has ones and the others zeros: after a sum all have ones, after the next one as
  // many as there are ranks, and so on.
  void GiveOnes(size_t count) {
    const std::vector<float> begin(count, rank_ == 0 ? 1.0f : 0.0f);
    own_.Give(begin.data(), count * sizeof(float));
  }
};

// Of two ranks those in the order of the ranks. Of more the order is NCCL's: each of two orders
// rounds each of its additions by half an epsilon of at most the sum of the absolute values.
TEST_F(NcclGroupTest, SumsAreThoseOfTheHost) {
  for (const size_t count :
       {size_t{0}, size_t{1}, size_t{7}, size_t{4096}, size_t{300'001}, kMost}) {
    const std::vector<float> expected = SumsOfRanks(ranks_, count);
    std::vector<double> most(count, 0.0);
    for (int rank = 0; rank < ranks_; ++rank) {
      const std::vector<float> values = ValuesOfRank(rank, count);
      for (size_t i = 0; i < count; ++i) most[i] += std::abs(static_cast<double>(values[i]));
    }
    const double slack = ranks_ == 2 ? 0.0 : 2.0 * (ranks_ - 1) * std::ldexp(1.0, -24);
    const std::vector<float> values = ValuesOfRank(rank_, count);
    const Status status = group_.Run([&] {
      for (int round = 0; round < 5; ++round) {
        Delay();
        std::vector<float> sums(count, -1.0f);
        own_.Give(values.data(), count * sizeof(float));
        communicator_.AllReduceSum(*own_.stream, own_.floats(), static_cast<int64_t>(count));
        if (Status s = own_.Take(sums.data(), count * sizeof(float)); !s.ok()) return s;
        for (size_t i = 0; i < count; ++i) {
          if (std::abs(double{sums[i]} - double{expected[i]}) <= slack * most[i]) continue;
          return Status(StatusCode::kInternal, "another sum of " + std::to_string(count));
        }
        // The same bits on all ranks.
        std::vector<float> all(count * static_cast<size_t>(ranks_));
        if (Status s = communicator_.GatherOnHost(std::as_bytes(std::span(sums)),
                                                  std::as_writable_bytes(std::span(all)));
            !s.ok()) {
          return s;
        }
        for (size_t i = 0; i < all.size(); ++i) {
          if (all[i] != sums[i % count]) return Status(StatusCode::kInternal, "ranks differ");
        }
      }
      return OkStatus();
    });
    ExpectOk(status);
  }
}

// Without a wait of the host between: more than the host may be ahead of the GPU.
TEST_F(NcclGroupTest, CallsFollowOneAnother) {
  constexpr size_t kFew = 5000, kMany = 40'000;
  constexpr int kRounds = 100;
  const Status status = group_.Run([&] {
    GiveOnes(kMany);
    float few = 1.0f;
    for (int round = 0; round < kRounds; ++round) {
      Delay();
      communicator_.AllReduceSum(*own_.stream, own_.floats(), kFew);
      if (round % 8 == 7) {  // so that values stay small
        GiveOnes(kMany);
        few = 1.0f;
        continue;
      }
      if (round % 8 > 0) few *= static_cast<float>(ranks_);
      communicator_.Broadcast(*own_.stream, own_.buffer->data(), 37, round % ranks_);
      if (round % 3 == 0) communicator_.Barrier(*own_.stream);
      if (round % 8 != 6) continue;
      std::vector<float> made(kMany);
      if (Status s = own_.Take(made.data(), kMany * sizeof(float)); !s.ok()) return s;
      for (size_t i = 0; i < kMany; ++i) {
        if (made[i] == (i < kFew ? few : rank_ == 0 ? 1.0f : 0.0f)) continue;
        return Status(StatusCode::kInternal, "a sum of " + std::to_string(made[i]));
      }
    }
    for (int call = 0; call < 100; ++call) {
      communicator_.Broadcast(*own_.stream, own_.buffer->data(), 1000, call % ranks_);
    }
    return own_.stream->Synchronize();
  });
  ExpectOk(status);
}

// Sums on a stream of their own, between calls on the other one.
TEST_F(NcclGroupTest, CallsOfTwoStreamsFollowOneAnother) {
  constexpr size_t kFew = 5000, kMany = 400'000;
  const Status status = group_.Run([&] {
    for (int repeat = 0; repeat < 20; ++repeat) {
      GiveOnes(kMany);
      float few = 1.0f, many = 1.0f;
      for (int round = 0; round < 6; ++round) {
        Delay();
        own_.Aside([&](Stream& s) { communicator_.AllReduceSum(s, own_.floats(), kMany); });
        communicator_.AllReduceSum(*own_.stream, own_.floats(), kFew);
        const auto ranks = static_cast<float>(ranks_);
        if (round > 0) many *= ranks;
        few *= round > 0 ? ranks * ranks : ranks;
      }
      std::vector<float> values(kMany, -1.0f);
      if (Status s = own_.Take(values.data(), kMany * sizeof(float)); !s.ok()) return s;
      if (values[0] != few || values[kFew - 1] != few || values[kFew] != many ||
          values[kMany - 1] != many) {
        return Status(StatusCode::kInternal, "other sums");
      }
    }
    return OkStatus();
  });
  ExpectOk(status);
}

TEST_F(NcclGroupTest, ColumnsAreGathered) {
  constexpr int64_t kRows = 5;
  for (const int64_t columns : {11, 100'003}) {
    const Status status = group_.Run([&] {
      for (int round = 0; round < 5; ++round) {
        Delay();
        // The first rank has four columns, the last the rest, and others none.
        const int64_t begin = rank_ == 0 ? 0 : 4, end = rank_ == ranks_ - 1 ? columns : 4;
        std::vector<float> data(static_cast<size_t>(kRows * columns), -1.0f), expected;
        for (size_t i = 0; i < data.size(); ++i) {
          expected.push_back(static_cast<float>(i + static_cast<size_t>(round)));
          const int64_t column = static_cast<int64_t>(i) % columns;
          if (column >= begin && column < end) data[i] = expected.back();
        }
        own_.Give(data.data(), data.size() * sizeof(float));
        communicator_.AllGather(*own_.stream, {own_.floats(), kRows, columns, begin, end});
        if (Status s = own_.Take(data.data(), data.size() * sizeof(float)); !s.ok()) return s;
        if (data != expected) return Status(StatusCode::kInternal, "other columns");
      }
      return OkStatus();
    });
    ExpectOk(status);
  }
}

TEST_F(NcclGroupTest, BroadcastsAndDecisions) {
  constexpr size_t kBytes = 300'001;
  const Status status = group_.Run([&] {
    for (int from = 0; from < ranks_; ++from) {
      const auto of_rank = [&](int rank) {
        Random random(static_cast<uint64_t>(10 * rank + from));
        std::vector<uint8_t> bytes(kBytes);
        for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Below(256));
        return bytes;
      };
      std::vector<uint8_t> bytes = of_rank(rank_);
      own_.Give(bytes.data(), kBytes, 1);
      communicator_.Broadcast(*own_.stream, own_.buffer->data() + 1, kBytes, from);
      if (Status s = own_.Take(bytes.data(), kBytes, 1); !s.ok()) return s;
      EXPECT_TRUE(bytes == of_rank(from));
    }
    EXPECT_EQ(communicator_.rank(), rank_);
    EXPECT_EQ(communicator_.ranks(), ranks_);
    const Result<int64_t> first = communicator_.OfFirst(10 * rank_ + 7);
    EXPECT_TRUE(first.ok() && *first == 7);
    return HostsGather(communicator_);
  });
  ExpectOk(status);
}

// Rank r comes r times 50 ms late.
TEST_F(NcclGroupTest, NobodyPassesABarrierAlone) {
  const Status status = group_.Run([&] {
    const Result<int64_t> met = communicator_.OfFirst(0);
    if (!met.ok()) return met.status();
    const Clock::time_point begin = Clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(50 * rank_));
    communicator_.Barrier(*own_.stream);
    const Status s = own_.stream->Synchronize();
    EXPECT_GT(Clock::now() - begin, std::chrono::milliseconds(50 * (ranks_ - 1) - 20));
    return s;
  });
  ExpectOk(status);
}

// What is refused behind calls that all have made cuts nothing short, whoever refuses it: calls are
// done as before.
TEST_F(NcclGroupTest, ARefusalLeavesTheGroupUsable) {
  for (const bool by_all : {true, false}) {
    const Status refused = group_.Run([&] {
      communicator_.Barrier(*own_.stream);
      if (by_all || rank_ == 1) return Status(StatusCode::kInvalidArgument, "the prompt is empty");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return own_.stream->Synchronize();
    });
    EXPECT_THAT(refused.message(), HasSubstr("the prompt is empty"));
    ExpectOk(group_.Run([&] {
      communicator_.Barrier(*own_.stream);
      return own_.stream->Synchronize();
    }));
  }
}

// Another communicator at the same time, which goes first.
TEST_F(NcclGroupTest, CommunicatorsAreIndependent) {
  std::unique_ptr<Communicator> other;
  ExpectOk(group_.Run([&] {
    Result<std::unique_ptr<Communicator>> made = ConnectGpus(group_, group_.rank_on_machine());
    if (!made.ok()) return made.status();
    other = std::move(*made);
    other->Barrier(*own_.stream);
    communicator_.Barrier(*own_.stream);
    return own_.stream->Synchronize();
  }));
  other.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  ExpectOk(group_.Run([&] {
    communicator_.Barrier(*own_.stream);
    return own_.stream->Synchronize();
  }));
}

// Two ranks may not have one GPU.
TEST_F(NcclGroupTest, AGpuIsOneRanks) {
  const Status status = group_.Run([&] { return ConnectGpus(group_, 0).status(); });
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("need a GPU each"));
  EXPECT_TRUE(group_.broken().ok());
}

// How one rank ends the others, which wait for five calls.
struct Ending {
  const char* name;
  int rank;   // that ends
  int calls;  // that it makes before
  enum { kFails, kLeaves, kDies } how;
};
constexpr Ending kEndings[] = {
    {"fails", 1, 2, Ending::kFails},
    {"first-fails", 0, 2, Ending::kFails},
    {"leaves", 1, 4, Ending::kLeaves},
    {"dies", 1, 2, Ending::kDies},
};

Status EndAs(const Ending& ending) {
  Stream& stream = *g_own->stream;
  for (int call = 0; call < ending.calls; ++call) {
    g_communicator->AllReduceSum(stream, g_own->floats(), 1000);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  if (ending.how == Ending::kDies) raise(SIGKILL);
  return ending.how == Ending::kLeaves ? OkStatus() : Status(StatusCode::kIo, "disk gone");
}

// Another rank prints what becomes of it. The group is at its end, and with it the processes.
int RunEnding(const Ending& ending) {
  const bool ends = g_group->rank() == ending.rank;
  const Clock::time_point begin = Clock::now();
  Status sums;
  const Status told = g_group->Run([&] {
    if (ends) return EndAs(ending);
    for (int call = 0; call < 5; ++call) {
      g_communicator->AllReduceSum(*g_own->stream, g_own->floats(), 1000);
    }
    return sums = g_own->stream->Synchronize();
  });
  const bool in_time = Clock::now() - begin < std::chrono::seconds(10);
  const Status next = g_group->Run([] { return OkStatus(); });
  if (!ends) {
    printf("sums: %s, all: %s, next: %s, %s\n", sums.message().c_str(), told.message().c_str(),
           next.message().c_str(), in_time ? "in time" : "late");
    fflush(stdout);
  }
  // Rank 0 ends all processes.
  std::this_thread::sleep_for(std::chrono::seconds(1));
  g_communicator.reset();
  g_own.reset();
  g_group.reset();
  return 1;
}

int RunAll(const char* ending) {
  const Status connected = g_group->Run([] {
    const int gpu = g_group->rank_on_machine();
    g_own = std::make_unique<GpuRank>(gpu, kMost * sizeof(float));
    Result<std::unique_ptr<Communicator>> made = ConnectGpus(*g_group, gpu);
    if (made.ok()) g_communicator = std::move(*made);
    return made.status();
  });
  if (!connected.ok()) {
    printf("%s\n", connected.message().c_str());
    return 1;
  }
  for (const Ending& known : kEndings) {
    if (ending != nullptr && known.name == std::string(ending)) return RunEnding(known);
  }
  const int failed = ending == nullptr ? RUN_ALL_TESTS() : 1;
  g_communicator.reset();
  g_own.reset();
  return failed;
}

}  // namespace
}  // namespace headway

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  headway::Result<std::unique_ptr<headway::ProcessGroup>> group = headway::JoinProcesses();
  if (!group.ok()) return 1;
  headway::g_group = std::move(*group);
  int failed = 0;
  const headway::Result<int> gpus = headway::CountCudaDevices();
  if (gpus.ok() && *gpus >= headway::g_group->ranks()) {
    failed = headway::RunAll(argc > 1 ? argv[1] : nullptr);
  } else {
    printf("skipped: %s\n",
           gpus.ok() ? "no NVIDIA GPU can be used by each rank" : gpus.status().message().c_str());
  }
  headway::g_group.reset();
  return failed;
}
