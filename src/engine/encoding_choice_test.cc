#include "engine/encoding_choice.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/blueprint_testing.h"
#include "engine/report.h"

namespace headway {
namespace {

// 24 GiB of the GPU, of which the weights take 15.
struct LeftToThePlan : LlamaOnH200 {
  LeftToThePlan() {
    settings.encoding_by_plan = true;
    length = 131072;
    gpu_memory = int64_t{24} << 30;
  }
  Encoding Chosen() const {
    const Result<Blueprint> blueprint = OnGpu();
    EXPECT_TRUE(blueprint.ok()) << blueprint.status().message();
    return blueprint.ok() ? blueprint->layout.store.format.page.encoding : Encoding::kInt4;
  }
};

kv::SelectionPolicy Choosing() {
  kv::SelectionPolicy policy;
  policy.summary = {SummaryKind::kMoments, 16};
  policy.keys = 2048;
  policy.sink = 256;
  policy.recent = 1024;
  return policy;
}

TEST(EncodingChoice, IsLosslessWhereADeviceIsShortAndThatIsFaster) {
  LeftToThePlan subject;
  const PlannedBackend gpu = PlanGpuBackend(subject.gpu_memory);
  const Result<Blueprint> chosen = subject.Draw(gpu.info, *gpu.sizes);
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  EXPECT_EQ(chosen->layout.store.format.page.encoding, Encoding::kLossless);
  LeftToThePlan given = subject;
  given.settings.encoding_by_plan = false;
  const Result<Blueprint> plain = given.Draw(gpu.info, *gpu.sizes);
  ASSERT_TRUE(plain.ok());
  EXPECT_GT(plain->plan.decode.seconds, 1.2 * chosen->plan.decode.seconds);
  EXPECT_EQ(plain->plan.cache.chunk, chosen->plan.cache.chunk);
  EXPECT_EQ(plain->plan.cache.segment_tokens, chosen->plan.cache.segment_tokens);
  // The plan says so, and what it would be without.
  const PlanReport report = ReportOf(*chosen);
  EXPECT_EQ(report.kv_encoding, "lossless");
  EXPECT_LT(report.kv_bytes_per_token, ReportOf(*plain).kv_bytes_per_token * 4 / 5);
  EXPECT_NE(report.reasons.back().find("the same numbers in three quarters of the bytes"),
            std::string::npos);
  given.settings.encoding = Encoding::kLossless;
  const Result<Blueprint> asked = given.OnGpu();
  ASSERT_TRUE(asked.ok());
  EXPECT_EQ(asked->plan.decode.seconds, chosen->plan.decode.seconds);
}

TEST(EncodingChoice, IsLosslessWherePlainPagesDoNotFit) {
  LeftToThePlan subject;
  subject.settings.memory.host = int64_t{6} << 30;
  subject.settings.gpu_layers = 32;
  EXPECT_EQ(subject.Chosen(), Encoding::kLossless);
  subject.settings.encoding_by_plan = false;
  EXPECT_EQ(subject.OnGpu().status().code(), StatusCode::kOutOfBudget);
  // Where neither does the error is that of plain pages.
  const Status plain = [&] {
    subject.settings.memory.host = 0;
    return subject.OnGpu().status();
  }();
  subject.settings.encoding_by_plan = true;
  EXPECT_EQ(subject.OnGpu().status().message(), plain.message());
}

TEST(EncodingChoice, PlansSayWhereLosslessPagesTakeMore) {
  LeftToThePlan subject;
  subject.config.shape.head_dim = 64;
  subject.settings.encoding_by_plan = false;
  subject.settings.encoding = Encoding::kLossless;
  const PlannedBackend gpu = PlanGpuBackend(subject.gpu_memory);
  const auto reasons = [&](int page_slots) {
    subject.settings.cut.page_slots = page_slots;
    const Result<Blueprint> made = subject.Draw(gpu.info, *gpu.sizes);
    EXPECT_TRUE(made.ok()) << made.status().message();
    std::string all;
    for (const std::string& reason : ReportOf(*made).reasons) all += reason;
    return all;
  };
  EXPECT_NE(reasons(64).find("lossless pages of 64 tokens take 10"), std::string::npos);
  EXPECT_EQ(reasons(128).find("lossless pages"), std::string::npos);
}

// Drafts are made by chosen keys, and exact steps verify them.
TEST(EncodingChoice, IsLosslessBesideDraftsByChosenKeys) {
  LeftToThePlan subject;
  subject.settings.selection = Choosing();
  subject.settings.selection.steps = kv::SelectionPolicy::Steps::kDrafting;
  EXPECT_EQ(subject.Chosen(), Encoding::kLossless);
}

// Where all is on the device plain pages are as fast or faster; and nothing is chosen where it
// would change a bit, or where there would be no way back.
TEST(EncodingChoice, IsPlainElsewhere) {
  const std::vector<std::function<void(LeftToThePlan&)>> changes = {
      [](LeftToThePlan& s) { s.gpu_memory = int64_t{80} << 30; },
      [](LeftToThePlan& s) { s.length = 16384; },
      [](LeftToThePlan& s) { s.machine = nullptr; },
      [](LeftToThePlan& s) { s.settings.encoding_by_plan = false; },
      [](LeftToThePlan& s) { s.settings.policy = Policy::kHeadInfer; },
      [](LeftToThePlan& s) { s.settings.session = SessionSettings{"session"}; },
      [](LeftToThePlan& s) { s.settings.recompute_share = 0.5; },
      [](LeftToThePlan& s) { s.config.shape.dtype = DType::kF16; },
      // Of 64 tokens of such heads plain pages are padded, or lossless ones take as much.
      [](LeftToThePlan& s) { s.config.shape.head_dim = 80; },
      [](LeftToThePlan& s) { s.config.shape.head_dim = 64; },
      [](LeftToThePlan& s) { s.settings.selection = Choosing(); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    LeftToThePlan subject;
    changes[i](subject);
    EXPECT_EQ(subject.Chosen(), Encoding::kNone) << "change " << i;
  }
}

}  // namespace
}  // namespace headway
