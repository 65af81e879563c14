// Decode of large groups through a cache of blocks.
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "kernels/cuda/selection_testing.h"

namespace headway::cuda {
namespace {

// Of groups that several blocks of threads attend for, another launch brings the blocks.
TEST_F(CudaSelectionTest, LargeGroupsHaveTheirBlocksBroughtAhead) {
  int expected = 0;
  for (const Encoding encoding : {Encoding::kNone, Encoding::kInt8}) {
    for (const auto& [head_dim, group] : {std::pair{128, 12}, {64, 16}, {256, 5}}) {
      for (const int64_t pages : {40, 700}) {  // of which the table is in memory
        SelectionCase c;
        c.format = {DType::kBF16, 64, head_dim, encoding};
        c.summary = {.kind = SummaryKind::kMoments, .block_slots = 16};
        c.group = group;
        c.segment_pages = 2;
        c.pages = pages;
        c.budget = {.far_begin = 3, .far_end = c.blocks() - 5, .far_blocks = 90};
        c.split = 256;
        c.scale = 0.1f;
        c.activation = DType::kBF16;
        Check(c, 700);
        EXPECT_EQ(cached(), expected += 3);
      }
    }
  }
}

}  // namespace
}  // namespace headway::cuda
