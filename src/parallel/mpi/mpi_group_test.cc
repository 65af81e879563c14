// Run by mpirun, as three processes, each of which makes all tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "device/cpu/cpu_device.h"
#include "parallel/group_errors.h"
#include "parallel/process_group.h"
#include "parallel/testing/rank_values.h"

namespace headway {
namespace {

std::unique_ptr<ProcessGroup> g_group;

class MpiGroupTest : public ::testing::Test {
 protected:
  ProcessGroup& group_ = *g_group;
  std::unique_ptr<Device> device_ = NewCpuDevice(Env::Default(), nullptr);
  std::unique_ptr<Stream> stream_ = *device_->NewStream(Lane::kCompute);
  Random random_{static_cast<uint64_t>(g_group->rank())};

  // Makes ranks come in every order, and now and then so late that the others sleep.
  void Delay() {
    if (random_.Below(3) > 0) return;
    std::this_thread::sleep_for(std::chrono::microseconds(random_.Below(600)));
  }
};

TEST_F(MpiGroupTest, SumsAreInTheOrderOfTheRanks) {
  // The last are added up in two parts.
  for (const size_t count : {0u, 1u, 2u, 7u, 5000u, 300'001u}) {
    const std::vector<float> expected = SumsOfRanks(group_.ranks(), count);
    const Status status = group_.Run([&] {
      for (int round = 0; round < 5; ++round) {
        Delay();
        std::vector<float> data = ValuesOfRank(group_.rank(), count);
        group_.communicator().AllReduceSum(*stream_, data.data(), static_cast<int64_t>(count));
        if (Status s = stream_->Synchronize(); !s.ok()) return s;
        if (data != expected) return Status(StatusCode::kInternal, "another sum");
      }
      return OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST_F(MpiGroupTest, ColumnsAreGathered) {
  const int rank = group_.rank();
  // In one piece, and in some.
  for (const int64_t columns : {11, 100'003}) {
    constexpr int64_t kRows = 5;
    const Status status = group_.Run([&] {
      Delay();
      // The second rank has no column of its own.
      const int64_t begin = rank == 0 ? 0 : 4, end = rank == 2 ? columns : 4;
      std::vector<float> data(static_cast<size_t>(kRows * columns), -1.0f), expected;
      for (int64_t i = 0; i < kRows * columns; ++i) {
        expected.push_back(static_cast<float>(i));
        const int64_t column = i % columns;
        if (column >= begin && column < end) data[static_cast<size_t>(i)] = expected.back();
      }
      group_.communicator().AllGather(*stream_, {data.data(), kRows, columns, begin, end});
      if (Status s = stream_->Synchronize(); !s.ok()) return s;
      return data == expected ? OkStatus() : Status(StatusCode::kInternal, "other columns");
    });
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST_F(MpiGroupTest, WhatRanksTellEachOther) {
  const int rank = group_.rank();
  ASSERT_EQ(group_.ranks(), 3);
  Communicator& communicator = group_.communicator();
  EXPECT_EQ(communicator.rank(), rank);
  const Status status = group_.Run([&] {
    for (int from = 0; from < 3; ++from) {
      Delay();
      int64_t value = 100 + rank;
      communicator.Broadcast(*stream_, reinterpret_cast<std::byte*>(&value), 8, from);
      if (Status s = stream_->Synchronize(); !s.ok()) return s;
      EXPECT_EQ(value, 100 + from);
    }
    communicator.Barrier(*stream_);
    const Result<int64_t> first = communicator.OfFirst(10 * rank + 7);
    EXPECT_TRUE(first.ok() && *first == 7);
    EXPECT_TRUE(HostsGather(communicator).ok());
    const Result<std::string> text =
        group_.TextOfFirst(rank == 0 ? std::string(100'000, 'x') : "something else");
    EXPECT_TRUE(text.ok() && *text == std::string(100'000, 'x'));
    const int64_t own[] = {rank, 5};
    const Result<std::vector<int64_t>> all = group_.Gather(own);
    EXPECT_TRUE(all.ok());
    EXPECT_EQ(*all, (std::vector<int64_t>{0, 5, 1, 5, 2, 5}));
    // The second has nothing to say, the third much.
    const auto words_of = [](int of) {
      return std::string(of == 1 ? 0 : of == 0 ? 3 : 300'001, static_cast<char>('a' + of));
    };
    for (int round = 0; round < 3; ++round) {
      Delay();
      const Result<std::vector<std::string>> texts = group_.GatherTexts(words_of(rank));
      EXPECT_TRUE(texts.ok());
      EXPECT_EQ(texts->size(), rank == 0 ? 3u : 0u);
      for (int of = 0; rank == 0 && of < 3; ++of) {
        EXPECT_EQ((*texts)[static_cast<size_t>(of)], words_of(of)) << of;
      }
    }
    return stream_->Synchronize();
  });
  EXPECT_TRUE(status.ok()) << status.message();
}

// Where no call is cut short, an error leaves the group as it is.
TEST_F(MpiGroupTest, ErrorsAreKnownToAllRanks) {
  const int rank = group_.rank();
  const Status of_all =
      group_.Run([&] { return Status(StatusCode::kNotFound, "no file " + std::to_string(rank)); });
  EXPECT_EQ(of_all.message(), "no file " + std::to_string(rank));
  for (const bool throws : {false, true}) {
    const Status of_one = group_.Run([&] {
      Delay();
      if (rank != 1) return OkStatus();
      if (throws) throw std::runtime_error("disk gone");
      return Status(StatusCode::kIo, "disk gone");
    });
    EXPECT_THAT(of_one.message(), ::testing::HasSubstr("disk gone"));
    EXPECT_EQ(of_one.message().starts_with("rank 1 of 3: "), rank != 1);
  }
  EXPECT_TRUE(group_.broken().ok());
  EXPECT_TRUE(group_.Run([] { return OkStatus(); }).ok());
}

// Calls of devices that all have begun may be done, also when a rank has failed behind them.
TEST_F(MpiGroupTest, CallsOfDevicesAreCounted) {
  const int rank = group_.rank();
  for (int round = 0; round < 3; ++round) {
    DeviceCalls calls = DeviceCalls::kOpen;
    const Status status = group_.Run([&] {
      Delay();
      group_.CountDeviceCall();
      calls = group_.AskDeviceCalls();
      if (rank == 1) return Status(StatusCode::kIo, "disk gone");
      while (group_.AskDeviceCalls() == DeviceCalls::kOpen) std::this_thread::yield();
      calls = group_.AskDeviceCalls();
      return OkStatus();
    });
    EXPECT_THAT(status.message(), ::testing::HasSubstr("disk gone"));
    EXPECT_EQ(calls, rank == 1 ? DeviceCalls::kOpen : DeviceCalls::kDoubtful);
    EXPECT_EQ(group_.AskDeviceCalls(), DeviceCalls::kOpen);
  }
  EXPECT_TRUE(group_.broken().ok());
}

TEST_F(MpiGroupTest, RanksOfAMachineAreNumbered) {
  EXPECT_EQ(group_.rank_on_machine(), group_.rank());
}

// The second rank ends in good order, without a call of devices that the others have begun.
int LeaveADeviceCallOut(std::unique_ptr<ProcessGroup> group) {
  Status work;
  const Status all = group->Run([&] {
    group->CountDeviceCall();
    if (group->rank() == 1) return OkStatus();
    group->CountDeviceCall();
    while (group->AskDeviceCalls() != DeviceCalls::kNeverDone) std::this_thread::yield();
    group->GiveUpDeviceCalls(GaveUp::kForAnother);
    return work = WaitsInVain();
  });
  const bool ended = group->AskDeviceCalls() == DeviceCalls::kNeverDone && !group->broken().ok();
  if (group->rank() == 0 && ended) {
    printf("work: %s, all: %s\n", work.message().c_str(), all.message().c_str());
    fflush(stdout);
  }
  group.reset();
  return 1;
}

// The first rank's part is done without the others, which leave it out: the next call would get it.
// Ends the program.
int LeaveACallOut(std::unique_ptr<ProcessGroup> group) {
  const Status first = group->Run([&] {
    if (group->rank() == 1) return Status(StatusCode::kIo, "gone");
    return group->communicator().OfFirst(5).status();
  });
  const Status next = group->Run([&] { return group->communicator().OfFirst(7).status(); });
  if (group->rank() == 0) {
    printf("first: %s; next: %s; broken: %s\n", first.message().c_str(), next.message().c_str(),
           group->broken().message().c_str());
    fflush(stdout);
  }
  group.reset();
  return 1;
}

}  // namespace
}  // namespace headway

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  headway::Result<std::unique_ptr<headway::ProcessGroup>> group = headway::JoinProcesses();
  if (!group.ok()) return 1;
  if (argc > 1) {
    return argv[1] == std::string("devices") ? headway::LeaveADeviceCallOut(std::move(*group))
                                             : headway::LeaveACallOut(std::move(*group));
  }
  headway::g_group = std::move(*group);
  const int failed = RUN_ALL_TESTS();
  headway::g_group.reset();
  return failed;
}
