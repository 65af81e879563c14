// Which launches are alone on a GPU. Skipped where there is none.
#include "device/cuda/waiting_kernels.h"

#include <gtest/gtest.h>

#include <mutex>
#include <optional>
#include <thread>

namespace headway::cuda {
namespace {

TEST(WaitingKernelsTest, OnlyALineWithoutOthersIsAlone) {
  int stream = 0, next = 0;  // addresses tell lines apart
  WaitingKernels first(0);
  const WaitingKernels idle(0);  // launches nothing
  EXPECT_TRUE(first.Take(&stream).alone);
  EXPECT_TRUE(first.Take(&stream).alone);
  {
    WaitingKernels second(0);
    EXPECT_TRUE(first.Take(&stream).alone);
    EXPECT_FALSE(second.Take(&stream).alone);  // the same address is another's line
    EXPECT_FALSE(first.Take(&stream).alone);
  }
  EXPECT_TRUE(first.Take(&stream).alone);
  {
    WaitingKernels ranks(0);
    ranks.Join();
    EXPECT_FALSE(first.Take(&stream).alone);
  }
  EXPECT_TRUE(first.Take(&stream).alone);
  EXPECT_FALSE(first.Take(&next).alone);  // two lines of its own
  EXPECT_FALSE(first.Take(&stream).alone);
}

TEST(WaitingKernelsTest, ATurnKeepsOthersWaiting) {
  WaitingKernels first(0), second(0);
  std::optional<WaitingKernels::Turn> turn = first.Take(&first);
  std::mutex& mutex = *turn->lock.mutex();
  std::thread([&] { EXPECT_FALSE(std::unique_lock(mutex, std::try_to_lock).owns_lock()); }).join();
  turn.reset();
  EXPECT_FALSE(second.Take(&second).alone);
}

}  // namespace
}  // namespace headway::cuda
