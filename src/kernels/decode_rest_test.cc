#include "kernels/decode_rest.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <vector>

namespace headway {
namespace {

// Five heads in groups of two: rows of pages are K, K, V, V, K, K, V, V, K, V.
TEST(DecodeRest, OpenPagesAreOneMoreStateAndAllAreMerged) {
  const PageFormat format = {DType::kBF16, 4, 8};
  std::vector<std::byte> pages(1), result(1);
  std::vector<float> q(1), o(1), lse(1);
  std::array<AttendBlocksItem, 2> items;
  AttendBlocksItem& item = items[1];
  item.q = q.data();
  item.keys.heads = 5;
  item.keys.group_heads = 2;
  item.parts = 7;
  item.o = o.data();
  item.o_part_stride = 1000;
  item.lse = lse.data();
  item.lse_part_stride = 20;
  item.rest = {result.data(), pages.data(), 64, 3};
  const RestCalls calls = RestOf(format, 3, items);
  ASSERT_EQ(calls.attend.size(), 3u);
  for (int group = 0; group < 3; ++group) {
    const AttentionItem& open = calls.attend[static_cast<size_t>(group)];
    EXPECT_EQ(open.heads, group < 2 ? 2 : 1);
    EXPECT_EQ(open.q, q.data() + group * 2 * 3 * 8);
    EXPECT_EQ(open.tokens, 1);
    EXPECT_EQ(open.q_position, 2);  // it sees all three keys
    EXPECT_EQ(open.keys.pages.k, pages.data() + group * 4 * 64);
    EXPECT_EQ(open.keys.pages.v, pages.data() + (group * 4 + open.heads) * 64);
    EXPECT_EQ(open.keys.pages.head_stride, 64);
    EXPECT_EQ(open.keys.pages.count, 3);
    EXPECT_EQ(open.keys.pages.readable, 4);
    EXPECT_EQ(open.split, 0);
    EXPECT_EQ(open.o, o.data() + 7 * 1000 + group * 2 * 3 * 8);
    EXPECT_EQ(open.lse, lse.data() + 7 * 20 + group * 2 * 3);
  }
  ASSERT_EQ(calls.merge.size(), 1u);
  EXPECT_EQ(calls.merge[0].parts, 8);
  EXPECT_EQ(calls.merge[0].rows, 15);
  EXPECT_EQ(calls.merge[0].o_part_stride, 1000);
  EXPECT_EQ(calls.merge[0].lse_part_stride, 20);
  EXPECT_EQ(calls.merge[0].o, result.data());
}

TEST(DecodeRest, WithoutOneNothingIsCalled) {
  const AttendBlocksItem item;
  const RestCalls calls = RestOf({DType::kBF16, 4, 8}, 3, {&item, 1});
  EXPECT_TRUE(calls.attend.empty() && calls.merge.empty());
}

}  // namespace
}  // namespace headway
