#include "kv/pages/page_table.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace headway::kv {
namespace {

// 2 layers of 3 groups of one head; segments of 2 pages of 4 tokens.
CacheFormat Format() {
  CacheFormat format;
  format.layers = 2;
  format.kv_heads = 3;
  format.page.page_slots = 4;
  format.page.head_dim = 8;
  format.segment_pages = 2;
  return format;
}

constexpr auto kKeep = [](SlabId) { FAIL() << "no slab is given up here"; };

TEST(PageTable, KnowsPagesSegmentsAndSlabs) {
  PageTable table(Format(), {0, 3});
  EXPECT_EQ(table.segments(), 0);
  EXPECT_EQ(table.PagesIn(0), 0);
  EXPECT_EQ(table.Exchange(1, 2, 7), kNoSlab);
  EXPECT_EQ(table.segments(), 3);
  EXPECT_EQ(table.slab(1, 2), 7);
  EXPECT_EQ(table.slab(0, 2), kNoSlab);
  EXPECT_EQ(table.Exchange(1, 2, 8), 7);
  table.set_pages(5);
  EXPECT_EQ(table.PagesIn(0), 2);
  EXPECT_EQ(table.PagesIn(2), 1);
  EXPECT_EQ(table.PagesIn(3), 0);
  EXPECT_EQ(table.PositionOf(3), 12);
}

TEST(PageTable, GivesUpTheSlabsThatItForgets) {
  PageTable table(Format(), {0, 2});
  for (int segment = 0; segment < 4; ++segment) {
    for (int group = 0; group < 2; ++group) table.Exchange(group, segment, 10 * segment + group);
  }
  std::vector<SlabId> dropped;
  const auto drop = [&](SlabId id) { dropped.push_back(id); };
  table.FreeBefore(2, drop);
  EXPECT_EQ(dropped, (std::vector<SlabId>{0, 1, 10, 11}));
  EXPECT_EQ(table.first_kept(), 2);
  table.FreeBefore(1, kKeep);  // they are gone already
  EXPECT_EQ(table.first_kept(), 2);
  dropped.clear();
  table.Resize(3, drop);
  EXPECT_EQ(dropped, (std::vector<SlabId>{30, 31}));
  std::vector<std::vector<int>> left;
  table.ForEachSlab([&](int group, int segment, SlabId id) {
    left.push_back({group, segment, id});
  });
  EXPECT_EQ(left, (std::vector<std::vector<int>>{{0, 2, 20}, {1, 2, 21}}));
  table.Resize(1, drop);
  EXPECT_EQ(table.first_kept(), 1);
  EXPECT_EQ(dropped.size(), 4u);
}

TEST(PageTables, DenseCachesShareOneTableALayer) {
  PageTables tables(Format(), PageTables::Sharing::kLayer);
  EXPECT_EQ(tables.all().size(), 2u);
  EXPECT_EQ(&tables.of(1, 0), &tables.of(1, 2));
  EXPECT_NE(&tables.of(0, 0), &tables.of(1, 0));
  EXPECT_EQ(tables.of_layer(1).size(), 1u);
  EXPECT_EQ(tables.of(0, 1).groups().size(), 3);
}

// What a cache with a budget for each head holds: lengths, positions and slabs of their own.
TEST(PageTables, HeadsMayDiffer) {
  const CacheFormat format = Format();
  PageTables tables(format, PageTables::Sharing::kGroup);
  ASSERT_EQ(tables.all().size(), 6u);
  const int64_t pages[] = {1, 3, 5};
  for (int group = 0; group < 3; ++group) {
    PageTable& table = tables.of(1, group);
    table.set_pages(pages[group]);
    for (int segment = 0; segment * format.segment_pages < pages[group]; ++segment) {
      table.Exchange(group, segment, 100 * group + segment);
    }
  }
  // The first keeps each fifth token, the last is dense.
  std::vector<int32_t> kept(4);
  std::iota(kept.begin(), kept.end(), 0);
  for (int32_t& position : kept) position *= 5;
  tables.of(1, 0).Keep(kept, 5);
  std::vector<int32_t> middle(12);
  std::iota(middle.begin(), middle.end(), 30);
  tables.of(1, 1).Keep(middle, 11);

  EXPECT_EQ(tables.of(1, 0).segments(), 1);
  EXPECT_EQ(tables.of(1, 2).segments(), 3);
  EXPECT_EQ(tables.of(1, 2).slab(2, 2), 202);
  EXPECT_EQ(tables.of(1, 1).PagesIn(1), 1);
  EXPECT_EQ(tables.of(1, 1).PositionOf(2), 38);
  EXPECT_EQ(tables.of(1, 0).left_out(), 4);
  EXPECT_EQ(tables.of(1, 0).PositionOf(0), 0);
  EXPECT_EQ(tables.of(1, 2).PositionOf(4), 16);
  EXPECT_EQ(tables.of(0, 1).pages(), 0);

  // What comes behind is of the sequence's next tokens.
  tables.of(1, 0).set_pages(3);
  EXPECT_EQ(tables.of(1, 0).kept_pages(), 1);
  EXPECT_EQ(tables.of(1, 0).PositionOf(1), 20);
  EXPECT_EQ(tables.of(1, 0).PositionOf(2), 24);

  // One head gives pages up; the others keep theirs.
  std::vector<SlabId> dropped;
  tables.of(1, 1).Resize(1, [&](SlabId id) { dropped.push_back(id); });
  tables.of(1, 1).set_pages(2);
  EXPECT_EQ(dropped, (std::vector<SlabId>{101}));
  EXPECT_EQ(tables.of(1, 1).PositionOf(1), 34);
  EXPECT_EQ(tables.of(1, 1).left_out(), 8);
  EXPECT_EQ(tables.of(1, 2).pages(), 5);
  const PageTables copy = tables;
  EXPECT_EQ(copy.of(1, 0).slab(0, 0), 0);
}

}  // namespace
}  // namespace headway::kv
