#include "engine/device_memory.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace headway {
namespace {

TEST(DeviceMemory, WhatFitsIsFine) {
  EXPECT_TRUE(CheckDeviceMemory({.planned = 17 * kGiB, .taken = 1 * kGiB, .free = 16 * kGiB}).ok());
}

TEST(DeviceMemory, NamesTheSmallestBudgetAndThatItFits) {
  const Status status = CheckDeviceMemory(
      {.planned = 17 * kGiB, .taken = 1 * kGiB, .free = 8 * kGiB, .smallest = 6 * kGiB});
  EXPECT_EQ(status.code(), StatusCode::kOutOfBudget);
  EXPECT_EQ(status.message(),
            "16.0 GiB more of the GPU's memory are needed, and 8.0 GiB are free: other programs "
            "have the rest; gpu_memory 6291456KiB (6.0 GiB) is the smallest that would do, and "
            "up to 9437184KiB fits now");
}

TEST(DeviceMemory, SaysWhenEvenTheSmallestDoesNotFit) {
  const Status status = CheckDeviceMemory(
      {.planned = 17 * kGiB, .taken = 1 * kGiB, .free = 2 * kGiB, .smallest = 6 * kGiB});
  EXPECT_EQ(status.message(),
            "16.0 GiB more of the GPU's memory are needed, and 2.0 GiB are free: other programs "
            "have the rest; even gpu_memory 6291456KiB (6.0 GiB), the smallest that would do, "
            "does not fit; end those programs, or choose another GPU with device cuda:N");
}

TEST(DeviceMemory, AnUnsetBudgetIsWhatIsFree) {
  const Status status =
      ExplainFreeMemory(Status(StatusCode::kOutOfBudget, "too much"), 3 * kGiB, 24 * kGiB);
  EXPECT_EQ(status.code(), StatusCode::kOutOfBudget);
  EXPECT_EQ(status.message(),
            "too much; without gpu_memory the GPU's free memory is the limit: 3.0 GiB of 24.0 "
            "GiB");
  EXPECT_EQ(ExplainFreeMemory(Status(StatusCode::kIo, "other"), 1, 2).message(), "other");
}

}  // namespace
}  // namespace headway
