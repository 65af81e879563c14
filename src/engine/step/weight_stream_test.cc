#include "engine/step/weight_stream.h"

#include <gtest/gtest.h>

namespace headway {
namespace {

TEST(WeightStream, StreamedLayersLieEvenlyAmongTheOthers) {
  EXPECT_EQ(StreamedLayers(4, 4), (std::vector<int>{}));
  EXPECT_EQ(StreamedLayers(4, 9), (std::vector<int>{}));
  EXPECT_EQ(StreamedLayers(4, 0), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(StreamedLayers(4, 3), (std::vector<int>{3}));
  EXPECT_EQ(StreamedLayers(8, 4), (std::vector<int>{1, 3, 5, 7}));
  for (int layers = 1; layers < 40; ++layers) {
    for (int resident = 0; resident <= layers; ++resident) {
      EXPECT_EQ(StreamedLayers(layers, resident).size(), static_cast<size_t>(layers - resident));
    }
  }
}

TEST(WeightStream, LayersOnDiskLieEvenlyAmongTheStreamed) {
  const std::vector<int> streamed = {1, 3, 4, 6, 7, 9};
  EXPECT_EQ(DiskLayers(streamed, 0), std::vector<int>{});
  EXPECT_EQ(DiskLayers(streamed, 1), std::vector<int>{9});
  EXPECT_EQ(DiskLayers(streamed, 3), (std::vector<int>{3, 6, 9}));
  EXPECT_EQ(DiskLayers(streamed, 6), streamed);
  EXPECT_EQ(DiskLayers({}, 0), std::vector<int>{});
}

}  // namespace
}  // namespace headway
