#include "engine/page_size.h"

#include <gtest/gtest.h>

#include "headway/options.h"
#include "kv/pages/format.h"

namespace headway {
namespace {

kv::CacheFormat Format(int head_dim, int heads, Encoding encoding) {
  kv::CacheFormat format;
  format.page = {DType::kBF16, LosslessPageSlots(head_dim), head_dim, encoding};
  format.group_heads = heads;
  format.segment_pages = 1;
  return format;
}

TEST(PageSize, OfLosslessPages) {
  EXPECT_EQ(LosslessPageSlots(128), 64);
  EXPECT_EQ(LosslessPageSlots(80), 64);
  EXPECT_EQ(LosslessPageSlots(96), 128);
  EXPECT_EQ(LosslessPageSlots(64), 128);
  EXPECT_EQ(LosslessPageSlots(8), 1024);
}

// With parameters and padding.
TEST(PageSize, LosslessPagesTakeLessThanPlainOnes) {
  for (int head_dim = 8; head_dim <= 512; head_dim += 8) {
    for (int heads = 1; heads <= 8; ++heads) {
      const int64_t plain = Format(head_dim, heads, Encoding::kNone).slab_bytes();
      const int64_t lossless = Format(head_dim, heads, Encoding::kLossless).slab_bytes();
      EXPECT_LE(100 * lossless, 92 * plain) << head_dim << " elements, " << heads << " heads";
    }
  }
}

// The page of a model with heads of 64 elements.
int PageUnder(const EngineOptions& options) {
  Result<Settings> settings = ReadSettings(options);
  EXPECT_TRUE(settings.ok()) << settings.status().message();
  ModelShape shape;
  shape.head_dim = 64;
  FitPages(shape, &*settings);
  EXPECT_TRUE(!settings->selection.searches_pages() ||
              settings->selection.search_slots == settings->cut.page_slots);
  return settings->cut.page_slots;
}

TEST(PageSize, IsAsGivenOrFollowsTheEncoding) {
  EngineOptions options;
  EXPECT_EQ(PageUnder(options), 64);
  options.kv_encoding = "int8";
  EXPECT_EQ(PageUnder(options), 64);
  options.kv_encoding = "lossless";
  EXPECT_EQ(PageUnder(options), 128);
  options.selector = "pages";
  options.sparse_levels = 2;
  EXPECT_EQ(PageUnder(options), 128);
  options.page_slots = 64;
  EXPECT_EQ(PageUnder(options), 64);
}

}  // namespace
}  // namespace headway
