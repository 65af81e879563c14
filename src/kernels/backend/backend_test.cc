#include "kernels/backend/backend.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "base/env.h"
#include "base/thread_pool.h"
#include "kernels/cpu/attention_testing.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ref/ref_kernels.h"
#include "kernels/testing/attention_problem.h"

namespace headway {
namespace {

// What kernels say that they support they do as the definition does.
void ExpectSupported(Backend& backend, ThreadPool& pool, const NamedCode& code,
                     const AttentionCase& c) {
  Result<std::unique_ptr<Device>> device =
      backend.NewDevice(Env::Default(), nullptr, KernelTimes::kWhereFree);
  ASSERT_TRUE(device.ok());
  Budget budget("test", int64_t{1} << 30);
  Result<std::unique_ptr<Kernels>> kernels = backend.NewKernels(&pool, nullptr);
  ASSERT_TRUE(kernels.ok());
  SCOPED_TRACE((*kernels)->name() + " " + c.Name());
  ASSERT_TRUE((*kernels)->SupportsAttention(c.Request()));
  const KernelLimits limits = {.rows = c.tokens,
                               .max_in = 64,
                               .max_out = 64,
                               .head_dim = c.format.head_dim,
                               .group = c.group,
                               .query_heads = int64_t{c.heads} * c.group};
  ASSERT_TRUE((*kernels)->Prepare(limits, **device, budget).ok());
  Random random(7);
  AttentionProblem problem(c, random);
  const AttentionOutputs expected = problem.Expected(QueriesOf(code, c, problem.q));
  const AttentionItem item = problem.Item();
  std::unique_ptr<Stream> stream = *(*device)->NewStream(Lane::kCompute);
  (*kernels)->Attend(*stream, c.format, c.group, c.params, {&item, 1});
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ("", problem.Disagreement(PrecisionOf(TilesOf(code, c)), expected, problem.outputs));
}

// The parts of a layer's lists, with a short one and an open page for each head, fill a large GPU
// at most once, as far as parts may be that long.
TEST(Backend, GpuKernelsTakeListsInOneGo) {
  const PlannedBackend gpu = PlanGpuBackend(int64_t{24} << 30);
  EXPECT_EQ(gpu.sizes->ListedSplit(2, 3328), 128);
  EXPECT_EQ(gpu.sizes->ListedSplit(4, 3328), 128);
  EXPECT_EQ(gpu.sizes->ListedSplit(8, 3328), 256);
  EXPECT_EQ(gpu.sizes->ListedSplit(16, 3328), 512);
  EXPECT_EQ(gpu.sizes->ListedSplit(32, 3328), 512);
}

TEST(Backend, CpuKernelsDoWhatTheySupport) {
  ThreadPool pool(2);
  for (const std::string& isa : CpuIsas()) {
    Result<std::unique_ptr<Backend>> backend = NewBackend("cpu", isa);
    ASSERT_TRUE(backend.ok());
    Result<std::unique_ptr<Kernels>> kernels = (*backend)->NewKernels(&pool, nullptr);
    ASSERT_TRUE(kernels.ok());
    const NamedCode code = {isa, {}, isa == "amx"};
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const AttentionCase& c : FeatureCases(dtype, DType::kF32)) {
        ASSERT_NO_FATAL_FAILURE(ExpectSupported(**backend, pool, code, c));
      }
    }
    // The codes of a row come in pairs.
    EXPECT_FALSE((*kernels)->SupportsAttention({.encoding = Encoding::kInt4, .head_dim = 5}));
    EXPECT_TRUE((*kernels)->SupportsAttention({.head_dim = 5}));
    // Elements lie on multiples of their size.
    EXPECT_TRUE((*kernels)->SupportsAttention({.head_dim = 8, .page_alignment = 2}));
    EXPECT_FALSE((*kernels)->SupportsAttention({.head_dim = 8, .page_alignment = 1}));
    EXPECT_FALSE(
        (*kernels)->SupportsAttention({.dtype = DType::kF32, .head_dim = 8, .page_alignment = 2}));
    EXPECT_TRUE((*kernels)->SupportsAttention(
        {.encoding = Encoding::kInt4, .head_dim = 8, .param_alignment = 2}));
    EXPECT_FALSE((*kernels)->SupportsAttention(
        {.encoding = Encoding::kInt4, .head_dim = 8, .param_alignment = 1}));
  }
}

// What they do not support is an error of the stream: nothing is written.
TEST(Backend, CpuKernelsRefuseWhatTheyLack) {
  ThreadPool pool(1);
  Result<std::unique_ptr<Backend>> backend = NewBackend("cpu", "auto");
  ASSERT_TRUE(backend.ok());
  Result<std::unique_ptr<Device>> device =
      (*backend)->NewDevice(Env::Default(), nullptr, KernelTimes::kWhereFree);
  ASSERT_TRUE(device.ok());
  Budget budget("test", int64_t{1} << 30);
  const PageFormat odd = {DType::kBF16, 4, 5, Encoding::kInt8};
  const PageFormat even = {DType::kBF16, 4, 8};
  alignas(16) std::byte memory[256] = {};
  float o = 3.0f, lse = 4.0f;
  AttentionItem item;
  item.q = memory;
  item.tokens = 1;
  item.keys.pages = {.k = memory, .v = memory, .count = 1, .params = memory};
  item.o = &o;
  item.lse = &lse;
  AttentionItem shifted = item;
  shifted.keys.pages.params = nullptr;
  shifted.keys.pages.v = memory + 1;
  const EncodePagesItem pages = {.from = {.k = memory, .v = memory, .count = 4}, .to = {}};
  using Call = std::function<void(Kernels&, Stream&)>;
  const std::vector<Call> calls = {[&](Kernels& kernels, Stream& s) {
                                     kernels.Attend(s, odd, 1, {}, {&item, 1});
                                   },
                                   [&](Kernels& kernels, Stream& s) {
                                     kernels.Attend(s, even, 1, {}, {&shifted, 1});
                                   },
                                   [&](Kernels& kernels, Stream& s) {
                                     kernels.EncodePages(s, odd, {&pages, 1});
                                   }};
  for (const Call& call : calls) {
    Result<std::unique_ptr<Kernels>> kernels = (*backend)->NewKernels(&pool, nullptr);
    ASSERT_TRUE(kernels.ok());
    ASSERT_TRUE((*kernels)->Prepare({.rows = 1, .head_dim = 8, .group = 1}, **device, budget).ok());
    std::unique_ptr<Stream> stream = *(*device)->NewStream(Lane::kCompute);
    call(**kernels, *stream);
    EXPECT_EQ(stream->Synchronize().code(), StatusCode::kUnsupported);
    EXPECT_EQ(o, 3.0f);
    EXPECT_EQ(lse, 4.0f);
  }
}

TEST(Backend, TheDefinitionSupportsEverything) {
  for (const AttentionCase& c : FeatureCases(DType::kBF16, DType::kF32)) {
    EXPECT_TRUE(NewRefKernels()->SupportsAttention(c.Request())) << c.Name();
  }
}

TEST(Backend, APlannedGpuSaysWhatItLacks) {
  const PlannedBackend gpu = PlanGpuBackend(int64_t{80} << 30);
  for (const AttentionCase& c : FeatureCases(DType::kBF16, DType::kBF16)) {
    EXPECT_EQ(gpu.sizes->SupportsAttention(c.Request()), !c.key_mass && c.rotary_dim == 0)
        << c.Name();
  }
  for (const int head_dim : {8, 80, 256}) {
    EXPECT_TRUE(gpu.sizes->SupportsAttention({.head_dim = head_dim})) << head_dim;
  }
  for (const int head_dim : {0, 4, 20, 264}) {
    EXPECT_FALSE(gpu.sizes->SupportsAttention({.head_dim = head_dim})) << head_dim;
  }
  EXPECT_TRUE(gpu.sizes->SupportsAttention({.head_dim = 8, .page_alignment = 4096}));
  EXPECT_FALSE(gpu.sizes->SupportsAttention({.head_dim = 8, .page_alignment = 8}));
  // Parameters are those of encoded pages.
  EXPECT_TRUE(gpu.sizes->SupportsAttention({.head_dim = 8, .param_alignment = 2}));
  EXPECT_FALSE(gpu.sizes->SupportsAttention(
      {.encoding = Encoding::kInt8, .head_dim = 8, .param_alignment = 2}));
}

TEST(Backend, RanksHaveGpusOfTheirOwn) {
  EXPECT_EQ(*DeviceOfRank("cpu", 3, 4), "cpu");
  EXPECT_EQ(*DeviceOfRank("cuda", 3, 4), "cuda:3");
  EXPECT_EQ(*DeviceOfRank("cuda:2", 3, 4), "cuda:5");
  EXPECT_EQ(*DeviceOfRank("cuda:7,0,1,5", 3, 4), "cuda:5");
  EXPECT_FALSE(DeviceOfRank("cuda:7,0,1", 3, 4).ok());
  // The second rank of the second machine. A list has a place for each rank.
  EXPECT_EQ(*DeviceOfRank("cuda", 3, 4, 1), "cuda:1");
  EXPECT_EQ(*DeviceOfRank("cuda:2", 3, 4, 1), "cuda:3");
  EXPECT_EQ(*DeviceOfRank("cuda:7,0,1,5", 3, 4, 1), "cuda:5");
}

}  // namespace
}  // namespace headway
