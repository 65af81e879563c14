#include "kernels/items.h"

#include <gtest/gtest.h>

#include <vector>

namespace headway {
namespace {

TEST(Items, SeveralHeadsAndStatesAreTakenApart) {
  const PageFormat format = {DType::kBF16, 4, 8};
  const int group = 3;
  std::vector<std::byte> k(1), v(1);
  std::vector<float> q(1), o(1), lse(1), mass(1);
  std::vector<int32_t> positions(1);
  AttentionItem item;
  item.q = q.data();
  item.heads = 2;
  item.keys = {.pages = {.k = k.data(),
                         .v = v.data(),
                         .page_stride = 1000,
                         .head_stride = 77000,
                         .first_slot = 3,
                         .count = 13},
               .position = 100,
               .positions = positions.data()};
  item.split = 6;
  item.o = o.data();
  item.o_part_stride = 5000;
  item.lse = lse.data();
  item.lse_part_stride = 50;
  item.key_mass = mass.data();
  EXPECT_EQ(PartsOf(item), 3);
  const std::vector<AttentionItem> single = SingleStates(format, group, {&item, 1});
  ASSERT_EQ(single.size(), 6u);
  for (int part = 0; part < 3; ++part) {
    for (int head = 0; head < 2; ++head) {
      const AttentionItem& one = single[static_cast<size_t>(part * 2 + head)];
      EXPECT_EQ(one.heads, 1);
      EXPECT_EQ(one.split, 0);
      EXPECT_EQ(one.q, q.data() + head * group * 8);
      const int64_t slot = 3 + part * 6;
      EXPECT_EQ(one.keys.pages.k, k.data() + head * 77000 + slot / 4 * 1000);
      EXPECT_EQ(one.keys.pages.v, v.data() + head * 77000 + slot / 4 * 1000);
      EXPECT_EQ(one.keys.pages.first_slot, slot % 4);
      EXPECT_EQ(one.keys.pages.count, part < 2 ? 6 : 1);
      EXPECT_EQ(one.keys.position, 100 + part * 6);
      EXPECT_EQ(one.keys.positions, positions.data() + part * 6);
      EXPECT_EQ(one.o, o.data() + part * 5000 + head * group * 8);
      EXPECT_EQ(one.lse, lse.data() + part * 50 + head * group);
      EXPECT_EQ(one.key_mass, mass.data() + head * 13 + part * 6);
    }
  }
}

// A part that begins in a later page leaves less memory behind its first page.
TEST(Items, APartReadsNoFurtherThanItsRun) {
  const PageFormat format = {DType::kBF16, 4, 8};
  std::vector<std::byte> k(1), params(1);
  const KeyRun keys = {.pages = {.k = k.data(),
                                 .v = k.data(),
                                 .page_stride = 1000,
                                 .first_slot = 3,
                                 .count = 13,
                                 .readable = 20,
                                 .params = params.data(),
                                 .params_page_stride = 30}};
  for (int64_t begin = 0; begin <= 13; ++begin) {
    const KeyRun part = KeysOf(format, keys, 0, begin, 13 - begin);
    const int64_t page = (part.pages.k - k.data()) / 1000;
    EXPECT_EQ(part.pages.params - params.data(), page * 30);
    EXPECT_EQ(page * 4 + part.pages.first_slot, 3 + begin);
    EXPECT_EQ(page * 4 + part.pages.readable, 20) << begin;
  }
  KeyRun unsaid = keys;
  unsaid.pages.readable = 0;
  EXPECT_EQ(KeysOf(format, unsaid, 0, 9, 4).pages.readable, 0);
}

TEST(Items, NoKeysAreOneEmptyState) {
  AttentionItem item;
  EXPECT_EQ(PartsOf(item), 1);
  EXPECT_EQ(SingleStates(PageFormat{DType::kF32, 4, 8}, 1, {&item, 1}).size(), 1u);
}

TEST(Items, ARequestNamesWhatAnItemAsks) {
  const PageFormat format = {DType::kF16, 4, 8, Encoding::kInt8};
  AttentionItem item;
  AttentionRequest request = RequestOf(format, 3, {}, item);
  EXPECT_EQ(request.dtype, DType::kF16);
  EXPECT_EQ(request.encoding, Encoding::kNone);  // this run of pages is not encoded
  EXPECT_EQ(request.head_dim, 8);
  EXPECT_EQ(request.group, 3);
  EXPECT_FALSE(request.softcap || request.positions || request.key_transform || request.key_mass);

  std::byte params{};
  int32_t position = 0;
  float number = 0;
  item.keys.pages.params = &params;
  item.keys.positions = &position;
  item.transform.inv_freq = &number;
  item.key_mass = &number;
  request = RequestOf(format, 3, {.softcap = 2.0f}, item);
  EXPECT_EQ(request.encoding, Encoding::kInt8);
  EXPECT_TRUE(request.softcap && request.positions && request.key_transform && request.key_mass);
}

TEST(Items, ARequestNamesTheAlignmentOfPages) {
  const PageFormat format = {DType::kF16, 4, 8, Encoding::kInt8};
  alignas(64) static std::byte memory[256];
  AttentionItem item;
  item.keys.pages = {.k = memory, .v = memory + 64, .page_stride = 192, .head_stride = -64};
  EXPECT_EQ(RequestOf(format, 1, {}, item).page_alignment, 64);
  item.keys.pages.head_stride = 80;
  item.keys.pages.params = memory + 4;
  EXPECT_EQ(RequestOf(format, 1, {}, item).page_alignment, 16);
  EXPECT_EQ(RequestOf(format, 1, {}, item).param_alignment, 4);
  item.keys.pages.v = memory + 2;
  item.keys.pages.params_head_stride = 6;
  EXPECT_EQ(RequestOf(format, 1, {}, item).page_alignment, 2);
  EXPECT_EQ(RequestOf(format, 1, {}, item).param_alignment, 2);
}

}  // namespace
}  // namespace headway
