// What heads keep in encoded pages: the bytes that the reference's kernels make of the same tokens,
// and steps that read the numbers that these stand for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "base/half.h"
#include "kernels/page_codec.h"
#include "kernels/ref/ref_kernels.h"
#include "support/forwarding_kernels.h"
#include "support/grid.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

using Bytes = std::vector<std::byte>;

// A closed page of a head, without what pads it.
struct Page {
  Bytes k, v, params;
};

// Closed pages that a head keeps.
std::vector<Page> PagesOf(StepHarness& h, kv::SequenceId id, int layer, int head) {
  const kv::CacheFormat& format = h.kept_store().format();
  std::vector<Page> pages;
  Result<std::vector<KeyRun>> runs = h.kept_store().KeysOf(id, layer, head);
  EXPECT_TRUE(runs.ok()) << runs.status().message();
  if (!runs.ok()) return pages;
  runs->pop_back();  // the open page
  const auto copy = [&](const std::byte* from, int64_t bytes) {
    Bytes to(static_cast<size_t>(bytes));
    h.compute().Copy(to.data(), from, to.size());
    return to;
  };
  const auto closed = static_cast<int64_t>(format.page.closed_bytes());
  for (const KeyRun& run : *runs) {
    for (int64_t i = 0; i < run.pages.count / format.page.page_slots; ++i) {
      Page& page = pages.emplace_back();
      page.k = copy(run.pages.k + i * run.pages.page_stride, closed);
      page.v = copy(run.pages.v + i * run.pages.page_stride, closed);
      if (!format.encoded()) continue;
      page.params = copy(run.pages.params + i * run.pages.params_page_stride, format.param_bytes());
    }
  }
  h.kept_store().FinishKeys(id, layer, head);
  EXPECT_TRUE(h.compute().Synchronize().ok());
  return pages;
}

// The page as the reference's kernels encode it.
Page Encoded(StepHarness& h, const PageFormat& format, Page plain) {
  Page page{Bytes(format.closed_bytes()), Bytes(format.closed_bytes()),
            Bytes(static_cast<size_t>(ParamBytes(format)))};
  EncodePagesItem item;
  item.from = {.k = plain.k.data(), .v = plain.v.data(), .count = format.page_slots};
  item.to = {.k = page.k.data(),
             .v = page.v.data(),
             .count = format.page_slots,
             .params = page.params.data()};
  NewRefKernels()->EncodePages(h.compute(), format, {&item, 1});
  return page;
}

// Attention in which whole pages of keys are what their codes stand for, once they are to be.
class Rounding : public ForwardingKernels {
 public:
  Rounding(std::unique_ptr<Kernels> kernels, Encoding encoding, const bool* on)
      : ForwardingKernels(std::move(kernels)), encoding_(encoding), on_(*on) {}

  void Attend(Stream& stream, const PageFormat& format, int group, const AttentionParams& params,
              std::span<const AttentionItem> items) override {
    if (!on_) return ForwardingKernels::Attend(stream, format, group, params, items);
    std::vector<AttentionItem> rounded(items.begin(), items.end());
    std::vector<std::unique_ptr<Bytes>> memory;
    for (AttentionItem& item : rounded) {
      if (item.keys.pages.count % format.page_slots != 0) continue;  // the open page is there
      memory.push_back(std::make_unique<Bytes>());
      Round(format, item.heads, &item.keys.pages, memory.back().get());
    }
    ForwardingKernels::Attend(stream, format, group, params, rounded);
    ASSERT_TRUE(stream.Synchronize().ok());
  }

 private:
  void Round(const PageFormat& format, int heads, PageRun* run, Bytes* memory) const {
    ASSERT_EQ(run->first_slot, 0);
    PageFormat codes = format;
    codes.encoding = encoding_;
    const int64_t pages = run->count / format.page_slots;
    const auto bytes = static_cast<int64_t>(format.bytes());
    memory->resize(static_cast<size_t>(2 * heads * pages * bytes));
    PageRun to = *run;
    to.k = memory->data();
    to.v = memory->data() + heads * pages * bytes;
    to.page_stride = bytes;
    to.head_stride = pages * bytes;
    to.readable = 0;
    Page page{Bytes(codes.closed_bytes()), Bytes(codes.closed_bytes()),
              Bytes(static_cast<size_t>(ParamBytes(codes)))};
    std::vector<double> row(static_cast<size_t>(format.head_dim));
    for (int64_t i = 0; i < heads * pages; ++i) {
      const int64_t from = i / pages * run->head_stride + i % pages * run->page_stride;
      EncodePage(codes, run->k + from, run->v + from, page.k.data(), page.v.data(),
                 page.params.data());
      for (int64_t slot = 0; slot < format.page_slots; ++slot) {
        const auto store = [&](std::byte* plane) {
          for (int64_t j = 0; j < format.head_dim; ++j) {
            StoreFloat(plane + i * bytes, slot * format.head_dim + j, format.dtype,
                       static_cast<float>(row[static_cast<size_t>(j)]));
          }
        };
        DecodeKeyRow(codes, page.k.data(), page.params.data(), slot, row.data());
        store(to.k);
        DecodeValueRow(codes, page.v.data(), page.params.data(), slot, row.data());
        store(to.v);
      }
    }
    *run = to;
  }

  const Encoding encoding_;
  const bool& on_;
};

kv::EvictionPolicy PolicyOf(kv::EvictionMethod method) {
  kv::EvictionPolicy policy;
  policy.method = method;
  policy.budget = 70;
  policy.window = 8;
  return policy;
}

HarnessConfig ConfigOf(Encoding encoding, kv::EvictionMethod method) {
  HarnessConfig config;
  config.chunk = 50;
  config.poison_freed = true;
  config.encoding = encoding;
  config.eviction = PolicyOf(method);
  return config;
}

constexpr int64_t kPrompt = 203;  // 11 tokens behind the last whole page of 16

// A prompt of which heads keep some.
struct Kept {
  Kept(Model& model, const HarnessConfig& config)
      : tokens(RandomTokens(kPrompt + 64, 96, 7)), rope(RopeOf(model, kPrompt + 64)) {
    Result<std::unique_ptr<StepHarness>> made = StepHarness::Create(model, config, 1, kPrompt + 64);
    EXPECT_TRUE(made.ok()) << made.status().message();
    h = std::move(*made);
    const kv::SequenceId prompt = *h->NewSequence();
    EXPECT_TRUE(h->Append(prompt, std::span(tokens).first(kPrompt), rope).ok());
    const Result<kv::SequenceId> kept = h->evictor().Evict(prompt);
    EXPECT_TRUE(kept.ok()) << kept.status().message();
    id = *kept;
    h->store().Drop(prompt);
  }
  // The logits of `count` more tokens, in one step.
  std::vector<std::vector<float>> Step(int64_t count) {
    const StepInput input{id, std::span(tokens).subspan(static_cast<size_t>(at), count), &rope,
                          LogitsMode::kAll};
    at += count;
    Result<std::vector<LogitRows>> rows = h->StepKept({&input, 1});
    EXPECT_TRUE(rows.ok()) << rows.status().message();
    return rows.ok() ? std::move((*rows)[0]) : LogitRows();
  }

  const std::vector<TokenId> tokens;
  const RopeFrequencies rope;
  std::unique_ptr<StepHarness> h;
  kv::SequenceId id = -1;
  int64_t at = kPrompt;
};

double Distance(const LogitRows& a, const LogitRows& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[i].size(); ++j) {
      largest = std::max(largest, std::abs(double{a[i][j]} - double{b[i][j]}));
    }
  }
  return largest;
}

class KeptEncodings : public ::testing::TestWithParam<Encoding> {};

TEST_P(KeptEncodings, KeptTokensAreEncodedAsTheReferenceDoes) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const std::unique_ptr<Model> model = Tiny(TinyConfig(dtype));
    const ModelShape& shape = model->shape();
    for (const kv::EvictionMethod method :
         {kv::EvictionMethod::kStreaming, kv::EvictionMethod::kAdaSnap}) {
      Kept plain(*model, ConfigOf(Encoding::kNone, method));
      Kept encoded(*model, ConfigOf(GetParam(), method));
      const PageFormat& format = encoded.h->kept_store().format().page;
      ASSERT_EQ(format.encoding, GetParam());
      ASSERT_EQ(encoded.h->store().format().page.encoding, Encoding::kNone);
      int64_t pages = 0;
      for (int head = 0; head < shape.layers * shape.kv_heads; ++head) {
        const int layer = head / shape.kv_heads;
        const std::vector<Page> from = PagesOf(*plain.h, plain.id, layer, head % shape.kv_heads);
        const std::vector<Page> to = PagesOf(*encoded.h, encoded.id, layer, head % shape.kv_heads);
        ASSERT_EQ(from.size(), to.size());
        for (size_t i = 0; i < to.size(); ++i) {
          const Page expected = Encoded(*plain.h, format, from[i]);
          EXPECT_TRUE(to[i].k == expected.k && to[i].v == expected.v);
          EXPECT_TRUE(to[i].params == expected.params);
        }
        pages += std::ssize(to);
      }
      EXPECT_GT(pages, 3 * shape.layers * shape.kv_heads);
    }
  }
}

TEST_P(KeptEncodings, StepsReadWhatCodesStandFor) {
  if (TestDevice() != "cpu") GTEST_SKIP() << "reads pages where kernels have them";
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kF32));
  const auto method = kv::EvictionMethod::kAdaSnap;
  bool on = false;
  HarnessConfig config = ConfigOf(Encoding::kNone, method);
  config.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
    return std::make_unique<Rounding>(std::move(kernels), GetParam(), &on);
  };
  Kept rounded(*model, config);
  on = true;
  Kept encoded(*model, ConfigOf(GetParam(), method));
  Kept plain(*model, ConfigOf(Encoding::kNone, method));
  for (const int64_t count : {1, 2, 1}) {  // no page closes
    const LogitRows expected = rounded.Step(count), actual = encoded.Step(count);
    const double exact = Distance(plain.Step(count), actual);
    EXPECT_GT(exact, 0.0);
    EXPECT_LT(Distance(expected, actual), 0.02 * exact);
  }
}

// What comes behind is encoded as its pages close.
TEST_P(KeptEncodings, PagesBehindCloseEncoded) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kBF16));
  const auto method = kv::EvictionMethod::kSnap;
  Kept encoded(*model, ConfigOf(GetParam(), method));
  Kept plain(*model, ConfigOf(Encoding::kNone, method));
  HarnessConfig other = ConfigOf(GetParam(), method);
  other.poison_freed = false;
  other.placement = kv::PlacementKind::kHostOnly;
  other.device_slabs = 0;
  Kept elsewhere(*model, other);
  const size_t before = PagesOf(*encoded.h, encoded.id, 0, 0).size();
  for (const int64_t count : {3, 20, 1, 30, 1}) {
    const LogitRows rows = encoded.Step(count);
    EXPECT_LT(Distance(rows, plain.Step(count)), 0.5);
    ExpectSameBits(rows, elsewhere.Step(count), "a prompt that was elsewhere");
  }
  EXPECT_EQ(PagesOf(*encoded.h, encoded.id, 0, 0).size(), before + 4);
}

// Without loss: the bits of plain pages, and the reference's codes.
TEST(KeptLossless, EqualsPlainPagesBitForBit) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kBF16));
  for (const kv::EvictionMethod method :
       {kv::EvictionMethod::kStreaming, kv::EvictionMethod::kAdaSnap}) {
    Kept encoded(*model, ConfigOf(Encoding::kLossless, method));
    Kept plain(*model, ConfigOf(Encoding::kNone, method));
    const PageFormat& format = encoded.h->kept_store().format().page;
    const std::vector<Page> from = PagesOf(*plain.h, plain.id, 1, 2);
    const std::vector<Page> to = PagesOf(*encoded.h, encoded.id, 1, 2);
    ASSERT_EQ(from.size(), to.size());
    for (size_t i = 0; i < to.size(); ++i) {
      const Page expected = Encoded(*plain.h, format, from[i]);
      EXPECT_TRUE(to[i].k == expected.k && to[i].v == expected.v);
      EXPECT_TRUE(to[i].params == expected.params);
    }
    for (const int64_t count : {3, 20, 1, 30, 1}) {
      ExpectSameBits(plain.Step(count), encoded.Step(count), "kept");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, KeptEncodings,
                         ::testing::Values(Encoding::kInt8, Encoding::kFp8E4M3, Encoding::kInt4),
                         [](const auto& param) { return EncodingName(param.param); });

}  // namespace
}  // namespace headway::testing
