// Self-Extend beside a plain reference with explicit positions, beside exact attention, and in
// every place that pages may lie in.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/half.h"
#include "base/test_dir.h"
#include "support/api.h"
#include "support/forwarding_kernels.h"
#include "support/grid.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

// The definition: keys and queries stay as they were projected, and each pair of them is rotated to
// the positions at which it counts.
class AttendsPlainly : public ForwardingKernels {
 public:
  AttendsPlainly(std::unique_ptr<Kernels> inner, const SelfExtend& extend,
                 const RopeFrequencies& rope)
      : ForwardingKernels(std::move(inner)), extend_(extend), rope_(rope) {}

  void RopeStoreKv(Stream& s, const PageFormat& format,
                   std::span<const RopeStoreItem> items) override {
    for (const RopeStoreItem& item : items) inner_->StoreKv(s, format, {&item.kv, 1});
  }
  void Attend(Stream&, const PageFormat& format, int group, const AttentionParams& params,
              std::span<const AttentionItem> items) override {
    for (const AttentionItem& item : items) {
      for (int64_t t = 0; t < item.tokens; ++t) {
        for (int64_t head = 0; head < item.heads * group; ++head) {
          const int64_t part = item.split == 0 ? item.keys.pages.count : item.split;
          for (int64_t first = 0, i = 0; first < item.keys.pages.count; first += part, ++i) {
            const int64_t end = std::min(first + part, item.keys.pages.count);
            AttendPart({format, group, params.scale, item}, {t, head, first, end, i});
          }
        }
      }
    }
  }

 private:
  struct Call {
    const PageFormat& format;
    int group;
    float scale;
    const AttentionItem& item;
  };
  struct Part {
    int64_t token, head, first, end, number;  // of a query head, keys [first, end)
  };

  std::vector<double> Turned(std::vector<double> x, int64_t position) const {
    const size_t half = rope_.inv_freq.size();
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * double{rope_.inv_freq[i]};
      const double low = x[i], high = x[i + half];
      x[i] = low * std::cos(angle) - high * std::sin(angle);
      x[i + half] = high * std::cos(angle) + low * std::sin(angle);
    }
    return x;
  }

  void AttendPart(const Call& call, const Part& part) const {
    const AttentionItem& item = call.item;
    const auto dim = static_cast<size_t>(call.format.head_dim);
    const PageRun& pages = item.keys.pages;
    const auto* q = static_cast<const float*>(item.q) + part.token * item.q_stride +
                    part.head * call.format.head_dim;
    const int64_t at = item.q_position + part.token;
    float* o = item.o + part.number * item.o_part_stride + part.token * item.o_stride +
               part.head * call.format.head_dim;
    float* lse =
        item.lse + part.number * item.lse_part_stride + part.token * item.lse_stride + part.head;
    const double before = item.merge ? std::exp(double{*lse}) : 0.0;
    double sum = before;
    std::vector<double> weighed(dim, 0.0);
    for (size_t i = 0; i < dim && item.merge; ++i) weighed[i] = before * double{o[i]};
    for (int64_t key = part.first; key < part.end; ++key) {
      const int64_t position = item.keys.position + key;
      if (position > at) continue;
      const int64_t slot = pages.first_slot + key;
      const int64_t page = part.head / call.group * pages.head_stride +
                           slot / call.format.page_slots * pages.page_stride;
      std::vector<double> k(dim), v(dim);
      for (size_t i = 0; i < dim; ++i) {
        const int64_t element =
            slot % call.format.page_slots * call.format.head_dim + static_cast<int64_t>(i);
        k[i] = LoadAsFloat(pages.k + page, element, call.format.dtype);
        v[i] = LoadAsFloat(pages.v + page, element, call.format.dtype);
      }
      const bool far = extend_.on() && at - position >= extend_.window;
      k = Turned(k, far ? extend_.FarKey(position) : position);
      const std::vector<double> turned_q =
          Turned(std::vector<double>(q, q + dim), far ? extend_.FarQuery(at) : at);
      double dot = 0.0;
      for (size_t i = 0; i < dim; ++i) dot += turned_q[i] * k[i];
      const double weight = std::exp(dot * double{call.scale});
      sum += weight;
      for (size_t i = 0; i < dim; ++i) weighed[i] += weight * v[i];
    }
    for (size_t i = 0; i < dim; ++i) {
      o[i] = sum == 0.0 ? 0.0f : static_cast<float>(weighed[i] / sum);
    }
    *lse = static_cast<float>(std::log(sum));
  }

  const SelfExtend extend_;
  const RopeFrequencies rope_;
};

HarnessConfig Extending(int64_t group, int64_t window) {
  HarnessConfig config = HarnessConfig::Default();
  config.self_extend = {group, window};
  return config;
}

std::string NameOf(const HarnessConfig& config) {
  return std::to_string(config.self_extend.group) + ":" +
         std::to_string(config.self_extend.window) + ", chunks of " + std::to_string(config.chunk) +
         ", groups of " + std::to_string(config.group_heads);
}

constexpr int64_t kDecode = 9;

TEST(SelfExtendTest, EqualsAPlainReferenceWithExplicitPositions) {
  const std::vector<TokenId> tokens = RandomTokens(410, 96, 31);
  for (const ModelConfig& tiny : {TinyConfig(DType::kF32), TinyNeoXConfig(DType::kF32, false)}) {
    SCOPED_TRACE(tiny.architecture);
    const std::unique_ptr<Model> plain_model = Tiny(tiny), model = Tiny(tiny);
    const RopeFrequencies rope = RopeOf(*plain_model, 410);
    const auto reference = [&](const SelfExtend& extend) {
      HarnessConfig config = HarnessConfig::Default();
      config.use_ref_kernels = true;
      config.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
        return std::make_unique<AttendsPlainly>(std::move(kernels), extend, rope);
      };
      return RunTokens(*plain_model, config, tokens, kDecode);
    };
    const LogitRows exact = RunTokens(*model, HarnessConfig::Default(), tokens, kDecode);
    ExpectNear(*model, exact, reference({}), "the reference itself");
    for (const SelfExtend& extend :
         {SelfExtend{4, 96}, SelfExtend{3, 130}, SelfExtend{8, 200}, SelfExtend{1, 96}}) {
      const LogitRows expected = reference(extend);
      for (const int64_t chunk : {27, 64}) {
        HarnessConfig config = Extending(extend.group, extend.window);
        config.chunk = chunk;
        config.segment_pages = chunk == 27 ? 3 : 2;
        config.group_heads = chunk == 27 ? 2 : 0;
        const LogitRows got = RunTokens(*model, config, tokens, kDecode);
        ExpectNear(*model, expected, got, NameOf(config));
        if (extend.group == 1) ExpectNear(*model, exact, got, "groups of one are exact");
        EXPECT_NE(exact.back(), got.back()) << "far keys are turned";
      }
    }
  }
}

class SelfExtendOf : public ::testing::TestWithParam<DType> {};

TEST_P(SelfExtendOf, AWindowThatHoldsTheSequenceIsExactBitForBit) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  const std::vector<TokenId> tokens = RandomTokens(300, 96, 32);
  const LogitRows exact = RunTokens(*model, HarnessConfig::Default(), tokens, kDecode);
  ExpectSameBits(exact, RunTokens(*model, Extending(4, 300), tokens, kDecode), "all near");
  ExpectSameBits(exact, RunTokens(*model, Extending(4, 4096), tokens, kDecode), "a wide window");
  // In a context that is longer, too.
  const HarnessConfig config = Extending(4, 300);
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 1, 1000);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const Result<LogitRows> rows = (*h)->Append(*(*h)->NewSequence(), tokens, RopeOf(*model, 1000));
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  const LogitRows prompt = RunTokens(*model, HarnessConfig::Default(), tokens, 0);
  ExpectSameBits(prompt, *rows, "a longer context");
}

TEST_P(SelfExtendOf, WherePagesLieNeverChangesABit) {
  for (const ModelConfig& tiny : {TinyConfig(GetParam()), TinyNeoXConfig(GetParam(), true)}) {
    const std::unique_ptr<Model> model = Tiny(tiny);
    const std::vector<TokenId> tokens = RandomTokens(400, 96, 33);
    const HarnessConfig config = Extending(4, 96);
    const LogitRows expected = RunTokens(*model, config, tokens, kDecode);
    for (const int group_heads : {0, 1, 2}) {
      for (const int64_t device_slabs : {0, 5}) {
        HarnessConfig other = config;
        other.group_heads = group_heads;
        other.device_slabs = device_slabs;
        other.host_slabs = 7;
        other.threads = 1 + group_heads;
        ExpectSameBits(expected, RunTokens(*model, other, tokens, kDecode),
                       NameOf(other) + ", " + std::to_string(device_slabs) + " slabs");
      }
    }
  }
}

TEST_P(SelfExtendOf, BatchesLiveAsExactOnesWithGroupsOfOne) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config = Extending(1, 32);
  config.chunk = 16;
  HarnessConfig exact = HarnessConfig::Default();
  exact.chunk = 16;
  ExpectBatchesNear(*model, {exact, config});
}

// A layer that sees no farther than its own window has no far distances.
TEST_P(SelfExtendOf, LayersWithAWindowStayAsTheyAre) {
  ModelConfig tiny = TinyConfig(GetParam());
  tiny.windows.assign(3, 150);
  const std::unique_ptr<Model> model = Tiny(tiny);
  const std::vector<TokenId> tokens = RandomTokens(400, 96, 34);
  ExpectSameBits(RunTokens(*model, HarnessConfig::Default(), tokens, kDecode),
                 RunTokens(*model, Extending(4, 96), tokens, kDecode), "windows of 150");
}

INSTANTIATE_TEST_SUITE_P(DTypes, SelfExtendOf, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& instance) {
                           return std::string(DTypeName(instance.param));
                         });

// A model that was trained for 512 tokens, with a context of 1,000.
struct Extended {
  Context& Make() {
    context.reset();
    engine = Open(kGolden + "llama2", options);
    Result<std::unique_ptr<Context>> made = engine->NewContext({{1000}});
    EXPECT_TRUE(made.ok()) << made.status().message();
    context = std::move(*made);
    return *context;
  }
  EngineOptions options;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Context> context;
};

Generation Generated(Context& context, const Request& request) {
  Result<std::vector<Generation>> made = context.Generate({&request, 1}, {});
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? std::move((*made)[0]) : Generation{};
}

TEST(SelfExtendTest, ASessionGoesOnAtTheSamePositionsOnly) {
  const TestDir dir;
  const Request request = RequestOf(Tokens(900, 160, 3), 40);
  const Request part = RequestOf({request.prompt.begin(), request.prompt.begin() + 700}, 5);
  Extended extended;
  extended.options.self_extend = "8:256";
  EXPECT_EQ(Generated(extended.Make(), part).reused_tokens, 0);
  const Generation uninterrupted = Generated(*extended.context, request);
  extended.options.session = dir.File("s.session");
  Generated(extended.Make(), part);
  ASSERT_TRUE(extended.context->SaveSession().ok());
  const Generation continued = Generated(extended.Make(), request);
  EXPECT_EQ(continued.reused_tokens, 640);  // whole pages
  EXPECT_EQ(continued.tokens, uninterrupted.tokens);
  EXPECT_TRUE(continued.notices.empty());
  const auto notice_of = [&](const std::string& positions, const std::string& selector) {
    extended.options.self_extend = positions;
    extended.options.selector = selector;
    const EngineOptions absent;
    const bool selects = selector != absent.selector;
    extended.options.sparse_keys = selects ? 64 : absent.sparse_keys;
    extended.options.sparse_recent = selects ? 64 : absent.sparse_recent;
    extended.options.sparse_sink = selects ? 16 : absent.sparse_sink;
    const Generation other = Generated(extended.Make(), request);
    EXPECT_EQ(other.reused_tokens, 0);
    return other.notices.empty() ? "" : other.notices[0];
  };
  const std::string others = "with other groups of positions (Self-Extend)";
  EXPECT_NE(notice_of("9:256", "none").find(others), std::string::npos);
  EXPECT_NE(notice_of("", "pages").find(others), std::string::npos);
  EXPECT_NE(notice_of("", "none").find(others), std::string::npos);
}

TEST(SelfExtendTest, ThePlanSaysWhatHappens) {
  Extended extended;
  extended.options.self_extend = "8:256";
  const std::vector<std::string> reasons = extended.Make().plan().reasons;
  EXPECT_TRUE(std::any_of(reasons.begin(), reasons.end(), [](const std::string& reason) {
    return reason.find("keys that lie 256 or more tokens back count in groups of 8") !=
           std::string::npos;
  }));
  EXPECT_LE(extended.context->plan().chunk, 256 - 64);
}

}  // namespace
}  // namespace headway::testing
