// Parts of keys that end together: steps take them where all heads have all keys, and where a page
// lies changes no bit of what they add up to.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "support/forwarding_kernels.h"
#include "support/grid.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

constexpr int64_t kLength = 2900;
constexpr int64_t kDecode = 20;
constexpr int kPage = 64;

// Splits of decode items, of layers with a window and of others.
struct Splits {
  std::set<int64_t> of_windows;
  std::set<int64_t> others;
  int64_t least = 0;
};

// Kernels that attend to four parts of each of three heads at once, and to one more.
class FourParts : public ForwardingKernels {
 public:
  FourParts(std::unique_ptr<Kernels> inner, Splits* splits)
      : ForwardingKernels(std::move(inner)), splits_(splits) {
    splits->least = RoundUp(DecodeSplit(kLength, 3), kPage);
  }

  int64_t PartsAtOnce() const override { return 13; }
  void Attend(Stream& stream, const PageFormat& format, int group, const AttentionParams& params,
              std::span<const AttentionItem> items) override {
    for (const AttentionItem& item : items) {
      if (item.split > 0)
        (params.window > 0 ? splits_->of_windows : splits_->others).insert(item.split);
    }
    ForwardingKernels::Attend(stream, format, group, params, items);
  }

 private:
  Splits* splits_;
};

HarnessConfig Resident() {
  HarnessConfig config = HarnessConfig::Default();
  config.placement = kv::PlacementKind::kFirstFit;
  config.device_slabs = 1 << 20;
  config.group_heads = 0;
  config.chunk = 256;
  config.page_slots = kPage;
  config.segment_pages = 16;
  return config;
}

HarnessConfig InFourParts(HarnessConfig config, Splits* splits) {
  config.wrap_kernels = [splits](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<FourParts>(std::move(kernels), splits);
  };
  return config;
}

TEST(Split, NoResidenceChangesABitOfPartsThatEndTogether) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kBF16));
  const std::vector<TokenId> tokens = RandomTokens(kLength, 96, 5);
  Splits splits;
  const LogitRows expected = RunTokens(*model, InFourParts(Resident(), &splits), tokens, kDecode);
  // A part of each segment: of two there would be six, and the open page.
  EXPECT_EQ(splits.others, std::set<int64_t>{1024});
  EXPECT_TRUE(splits.of_windows.empty());
  ExpectNear(*model, RunTokens(*model, Resident(), tokens, kDecode), expected, "other parts");
  for (const kv::PlacementKind placement :
       {kv::PlacementKind::kFirstFit, kv::PlacementKind::kLru, kv::PlacementKind::kHostOnly,
        kv::PlacementKind::kDiskOnly}) {
    for (const int group : {0, 1}) {
      for (const int x_segments : {0, 1}) {
        if (x_segments > 0 && (placement == kv::PlacementKind::kDiskOnly || group > 0)) continue;
        HarnessConfig config = InFourParts(Resident(), &splits);
        config.placement = placement;
        config.group_heads = group;
        config.x_segments = x_segments;
        config.device_slabs = 2;
        config.host_slabs = 4;
        const std::string what = "placement " + std::to_string(static_cast<int>(placement)) +
                                 " group " + std::to_string(group) + " recomputed " +
                                 std::to_string(x_segments);
        const LogitRows actual = RunTokens(*model, config, tokens, kDecode);
        if (x_segments == 0) {
          ExpectSameAnywhere(*model, config, expected, actual, what);
        } else {
          ExpectNear(*model, expected, actual, what);
        }
      }
    }
  }
  EXPECT_EQ(splits.others, std::set<int64_t>{1024});
}

// Each layer by itself, so that ranks with a run of layers cut as one device does.
TEST(Split, LayersWithWindowsKeepShortParts) {
  ModelConfig windows = TinyConfig(DType::kBF16);
  windows.windows = {0, 700, 0};
  const std::unique_ptr<Model> model = Tiny(windows);
  Splits splits;
  RunTokens(*model, InFourParts(Resident(), &splits), RandomTokens(kLength, 96, 6), kDecode);
  EXPECT_EQ(splits.others, std::set<int64_t>{1024});
  EXPECT_EQ(splits.of_windows, std::set<int64_t>{splits.least});
  EXPECT_LT(splits.least, 1024);
}

}  // namespace
}  // namespace headway::testing
