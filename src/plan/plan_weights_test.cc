// Plans for a device with its own memory: which weights stay on it, and where the others are.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

#include "base/bytes.h"
#include "plan/optimize.h"
#include "plan/plan_testing.h"
#include "support/test_machines.h"

namespace headway::plan {
namespace {

TEST(Plan, WeightsThatDoNotFitStreamAndComeBeforeKeysAndValues) {
  // All that is resident takes 34 MiB of weights and 128 of the cache.
  int last = 9;
  for (const int64_t device : {220, 60, 50, 45, 40, 35, 30}) {
    SCOPED_TRACE(device);
    const PlanRequest request = OnDevice(16384, device * kMiB);
    Result<Plan> plan = MakePlan(request);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_LE(plan->Bytes(Tier::kDevice), device * kMiB);
    EXPECT_LE(plan->weight_layers, last);
    last = plan->weight_layers;
    const int streamed = 8 - last;
    EXPECT_EQ(plan->streamed_weight_bytes, streamed * 3 * kMiB);
    EXPECT_EQ(BytesOf(*plan, Tier::kDevice, "weights"), (34 - 3 * streamed) * kMiB);
    EXPECT_EQ(BytesOf(*plan, Tier::kDevice, "weights: buffers"), std::min(streamed, 2) * 3 * kMiB);
    EXPECT_EQ(BytesOf(*plan, Tier::kHost, "weights"), streamed * 3 * kMiB);
    if (streamed == 0) continue;
    // No layer more would fit, even with nothing else to spare.
    EXPECT_LT(plan->slabs[0] * plan->slab_bytes, 3 * kMiB);
    EXPECT_NE(plan->reasons.front().find("stream from host memory"), std::string::npos);
  }
  EXPECT_EQ(MakePlan(OnDevice(16384, 220 * kMiB))->weight_layers, 8);
  EXPECT_LT(last, 6);
}

// A sixteenth, where GPUs take a 512th.
TEST(Plan, PageTablesOfHostMemoryAreOnTheDevice) {
  const char* const tag = "page tables of host memory";
  PlanRequest request = OnDevice(16384, kGiB);
  request.map_share = 1.0 / 16;
  EXPECT_EQ(BytesOf(*MakePlan(request), Tier::kDevice, tag), 0);  // all is resident
  request.weight_layers = 0;
  EXPECT_EQ(BytesOf(*MakePlan(request), Tier::kDevice, tag), 24 * kMiB / 16);
  request.keep_on_device = false;
  EXPECT_EQ(BytesOf(*MakePlan(request), Tier::kDevice, tag), (24 + 128) * kMiB / 16);
  request.weight_layers = 8;
  EXPECT_EQ(BytesOf(*MakePlan(request), Tier::kDevice, tag), 128 * kMiB / 16);
  // They take of the smallest budget, to the byte that it is found by.
  const int64_t smallest = FindSmallestBudgets(request).device;
  request.map_share = 0.0;
  EXPECT_EQ(FindSmallestBudgets(request).device + 128 * kMiB / 16, smallest);
  // Of the cache's own budget they take nothing.
  const int64_t kv = FindSmallestBudgets(request).kv;
  request.map_share = 1.0 / 16;
  EXPECT_EQ(FindSmallestBudgets(request).kv, kv);
  // And leave less to what is resident.
  request.map_share = 1.0 / 16;
  request.keep_on_device = true;
  for (const int64_t device : {60, 80, 100, 130}) {
    request.budgets.device = device * kMiB;
    const Result<Plan> plan = MakePlan(request);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_GT(plan->slabs[0], 0);
    EXPECT_GT(plan->slabs[1], 0);
    EXPECT_GE(BytesOf(*plan, Tier::kDevice, tag), plan->slabs[1] * plan->slab_bytes / 16);
    EXPECT_LE(plan->Bytes(Tier::kDevice), device * kMiB);
    EXPECT_GT(plan->Bytes(Tier::kDevice) + plan->slab_bytes, device * kMiB);
  }
}

TEST(Plan, LayersThatTheUserFixesStay) {
  for (const int layers : {0, 3, 8, 99}) {
    PlanRequest request = OnDevice(4096, kGiB);
    request.weight_layers = layers;
    Result<Plan> plan = MakePlan(request);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->weight_layers, std::min(layers, 8));
    // Also where the device's memory is the host's.
    request.budgets.device = std::numeric_limits<int64_t>::max();
    EXPECT_EQ(MakePlan(request)->weight_layers, std::min(layers, 8));
  }
}

TEST(Plan, TheSmallestDeviceHoldsNoLayer) {
  PlanRequest request = OnDevice(16384, 8 * kMiB);
  Result<Plan> plan = MakePlan(request);
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.status().message().find("gpu_memory"), std::string::npos);
  const int64_t smallest = FindSmallestBudgets(request).device;
  ASSERT_GT(smallest, 16 * kMiB);  // other weights and two buffers
  EXPECT_LT(smallest, 34 * kMiB);
  request.budgets.device = smallest;
  plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->weight_layers, 0);
  request.budgets.device = smallest - 4096;
  EXPECT_FALSE(MakePlan(request).ok());
}

TEST(Plan, HostMemoryHoldsStreamedWeightsBeforeTheCache) {
  PlanRequest request = OnDevice(16384, kGiB);
  request.weight_layers = 0;
  request.keep_on_device = false;
  request.budgets.host = (24 + 128) * kMiB - 4096;
  EXPECT_EQ(MakePlan(request).status().code(), StatusCode::kOutOfBudget);
  EXPECT_NE(MakePlan(request).status().message().find("host_memory"), std::string::npos);
  EXPECT_EQ(FindSmallestBudgets(request).host, (24 + 128) * kMiB);
  request.budgets.host = (24 + 128) * kMiB;
  EXPECT_TRUE(MakePlan(request).ok());
}

// 8 layers of 3 MiB, of which host memory holds ever fewer; a read takes 4 MiB.
TEST(Plan, WeightsThatHostMemoryDoesNotHoldComeFromDisk) {
  PlanRequest request = OnDevice(4096, kGiB);
  request.weight_layers = 0;
  request.layer_read_bytes = 4 * kMiB;
  // All are resident on the device: of the cache nothing needs the host.
  const auto on_disk = [&](int64_t host) {
    request.budgets.host = host;
    Result<Plan> plan = MakePlan(request);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    if (!plan.ok()) return -1;
    EXPECT_LE(plan->Bytes(Tier::kHost), host);
    const int64_t n = plan->disk_layers;
    EXPECT_EQ(plan->streamed_weight_bytes, 24 * kMiB);
    EXPECT_EQ(plan->disk_weight_bytes, n * 3 * kMiB);
    EXPECT_EQ(plan->weights_on_disk, static_cast<double>(n) / 8);
    EXPECT_EQ(BytesOf(*plan, Tier::kHost, "weights"), (8 - n) * 3 * kMiB);
    EXPECT_EQ(BytesOf(*plan, Tier::kHost, "weights: bounce buffers"),
              std::min<int64_t>(n, 2) * 4 * kMiB);
    EXPECT_EQ(BytesOf(*plan, Tier::kDisk, "weights, in the model's files"), n * 3 * kMiB);
    return plan->disk_layers;
  };
  EXPECT_EQ(on_disk(24 * kMiB), 0);
  EXPECT_EQ(on_disk(24 * kMiB - 1), 3);  // 5 × 3 + 2 × 4
  EXPECT_EQ(on_disk(23 * kMiB), 3);
  EXPECT_EQ(on_disk(23 * kMiB - 1), 4);
  EXPECT_EQ(on_disk(8 * kMiB), 8);
  request.budgets.host = 8 * kMiB - 4096;
  EXPECT_EQ(MakePlan(request).status().code(), StatusCode::kOutOfBudget);
  EXPECT_EQ(FindSmallestBudgets(request).host, 8 * kMiB);
  // A cache that the disk may not hold comes before weights that it may: 32 slabs of 1 MiB.
  request.keep_on_device = false;
  EXPECT_EQ(on_disk(56 * kMiB), 0);
  EXPECT_EQ(on_disk(55 * kMiB), 3);
  EXPECT_EQ(on_disk(40 * kMiB), 8);
  // As many as an earlier plan had, however much room there is.
  request.disk_layers = 5;
  EXPECT_EQ(on_disk(kGiB), 5);
}

// Two layers of eight fit into host memory.
PlanRequest FromDisk(int64_t layer_disk_bytes) {
  PlanRequest request = OnDevice(4096, kGiB);
  request.weight_layers = 0;
  request.layer_read_bytes = 4 * kMiB;
  request.layer_disk_bytes = layer_disk_bytes;
  request.budgets.host = 14 * kMiB;  // 2 × 3 + 2 × 4
  return request;
}

// On their own, such as random ones, they take of the disk's budget.
TEST(Plan, WeightsInNoFileTakeDiskMemory) {
  PlanRequest request = FromDisk(OnDevice(4096, kGiB).layer_weight_bytes);
  EXPECT_EQ(MakePlan(request).status().code(), StatusCode::kOutOfBudget);
  EXPECT_EQ(FindSmallestBudgets(request).disk, 18 * kMiB);
  request.budgets.disk = 18 * kMiB;
  // Buffers for slabs on disk are there where there is such a budget.
  const Result<Plan> plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->disk_layers, 6);
  EXPECT_EQ(BytesOf(*plan, Tier::kDisk, "weights"), 18 * kMiB);
}

// Of ranks some of a layer lies in the files and some, in columns, does not.
TEST(Plan, WeightsInFilesAndNotTakeDiskMemoryForTheRest) {
  PlanRequest request = FromDisk(kMiB);
  EXPECT_EQ(FindSmallestBudgets(request).disk, 6 * kMiB);
  request.budgets.disk = 6 * kMiB;
  const Result<Plan> plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->disk_layers, 6);
  EXPECT_EQ(BytesOf(*plan, Tier::kDisk, "weights"), 6 * kMiB);
  EXPECT_EQ(BytesOf(*plan, Tier::kDisk, "weights, in the model's files"), 12 * kMiB);
}

// What does not fit the GPU goes to host memory, and what does not fit that to disk.
TEST(Plan, WeightsFillOneTierAfterTheOther) {
  PlanRequest request = OnDevice(4096, 35 * kMiB);
  request.layer_read_bytes = 4 * kMiB;
  const Result<Plan> two = MakePlan(request);
  ASSERT_TRUE(two.ok()) << two.status().message();
  EXPECT_EQ(two->disk_layers, 0);
  ASSERT_LT(two->weight_layers, 8);
  request.budgets.device = 30 * kMiB;
  request.budgets.host = 44 * kMiB;
  const Result<Plan> three = MakePlan(request);
  ASSERT_TRUE(three.ok()) << three.status().message();
  EXPECT_GT(three->weight_layers, 0);
  EXPECT_GT(three->disk_layers, 0);
  EXPECT_LT(three->weight_layers + three->disk_layers, 8);
  EXPECT_LE(three->Bytes(Tier::kDevice), 30 * kMiB);
  EXPECT_LE(three->Bytes(Tier::kHost), 44 * kMiB);
}

// As much as can be is no reason to count beyond it.
TEST(Plan, ExplainsABudgetWithoutBounds) {
  const MachineProfile machine = Simple();
  PlanRequest request = OnDevice(4096, std::numeric_limits<int64_t>::max() - 1);
  request.weight_layers = 0;
  request.machine = &machine;
  const Result<Plan> plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(ExplainSpeed(request, *plan).front(), "1 GiB more on the GPU: no faster");
}

PlanRequest OptOnDevice(const MachineProfile* machine, int64_t device) {
  PlanRequest request = OnDevice(300, device);
  request.shape = kOpt67B;
  request.costs.cache = CacheCosts(request.shape);
  request.layer_weight_bytes = 384 * kMiB;
  request.weight_bytes = 32 * request.layer_weight_bytes + kGiB;
  request.chunk = 8192;
  request.budgets.host = 200 * kGiB;
  request.machine = machine;
  return request;
}

TEST(Plan, ChunksGrowWhereWeightsStream) {
  const MachineProfile machine = Shipped("h200");
  PlanRequest request = OptOnDevice(&machine, 80 * kGiB);
  request.costs.activations = [](const CacheChoice& c) { return c.chunk * 100 * kKiB; };
  request.lengths.assign(256, 288);
  Result<Plan> resident = MakePlan(request);
  ASSERT_TRUE(resident.ok());
  EXPECT_EQ(resident->weight_layers, 32);
  EXPECT_EQ(resident->cache.chunk, 8192);
  request.weight_layers = 0;
  Result<Plan> streamed = MakePlan(request);
  ASSERT_TRUE(streamed.ok());
  EXPECT_GT(streamed->cache.chunk, 8192);
  EXPECT_LE(streamed->cache.chunk, 4 * 8192);
  // A decode step takes as long as its weights need, and less than they and all else in turn.
  const double bus = machine.host_to_device.Peak();
  const double weights = static_cast<double>(streamed->streamed_weight_bytes) / bus;
  EXPECT_GT(streamed->decode.seconds, weights);
  EXPECT_LT(streamed->decode.seconds, resident->decode.seconds + 1.02 * weights);
}

// A stretch brings weights once, in the chunks that were there; what of it lies between layers
// takes host memory, which says how long it is.
TEST(Plan, PromptsPassLayerByLayerWhereWeightsStream) {
  const MachineProfile machine = Shipped("h200");
  PlanRequest request = OptOnDevice(&machine, 80 * kGiB);
  const auto cache = request.costs.cache;
  const int64_t token = request.shape.d_model * int64_t{sizeof(float)};
  request.costs.cache = [cache, token](const CacheChoice& choice) {
    CacheBytes bytes = cache(choice);
    bytes.hidden = choice.stretch_tokens * token;
    return bytes;
  };
  request.lengths.assign(8, 2048);
  request.fixed.chunk = 1024;
  request.weight_layers = 0;
  Result<Plan> chunks = MakePlan(request);
  request.prompt_order = PromptOrder::kAuto;
  Result<Plan> layers = MakePlan(request);
  ASSERT_TRUE(chunks.ok() && layers.ok());
  EXPECT_EQ(chunks->cache.stretch_tokens, 0);
  EXPECT_EQ(layers->cache.stretch_tokens, 8 * 2048);
  EXPECT_EQ(layers->cache.chunk, chunks->cache.chunk);
  EXPECT_LT(layers->prefill.seconds, 0.5 * chunks->prefill.seconds);
  EXPECT_EQ(BytesOf(*layers, Tier::kHost, "prompts between layers"), 8 * 2048 * token);
  // Nothing is gained where weights stay on the device; as asked, prompts pass so all the same.
  request.weight_layers = request.shape.layers;
  EXPECT_EQ(MakePlan(request)->cache.stretch_tokens, 0);
  request.prompt_order = PromptOrder::kLayers;
  Result<Plan> asked = MakePlan(request);
  ASSERT_TRUE(asked.ok());
  EXPECT_EQ(asked->cache.stretch_tokens, 8 * 2048);
  request.budgets.host = asked->Bytes(Tier::kHost) - request.other_bytes - 1;
  Result<Plan> shorter = MakePlan(request);
  ASSERT_TRUE(shorter.ok()) << shorter.status().message();
  EXPECT_EQ(shorter->cache.stretch_tokens, 4 * 2048);
  EXPECT_EQ(shorter->cache.stretch_tokens % shorter->cache.chunk, 0);
}

// Its activations take room of resident keys, which decode would miss.
TEST(Plan, ALargerChunkDoesNotMakeTheWholeSlower) {
  const MachineProfile machine = Shipped("h200");
  int larger = 0, kept = 0;
  for (int64_t device = 4; device <= 60; device += 4) {
    PlanRequest request = OptOnDevice(&machine, device * kGiB);
    request.costs.activations = [](const CacheChoice& c) { return c.chunk * 200 * kKiB; };
    request.lengths.assign(64, 640);
    request.weight_layers = 0;
    const Result<Plan> plan = MakePlan(request);
    if (!plan.ok()) continue;
    PlanRequest same = request;
    same.fixed.chunk = request.chunk;
    const auto seconds = [&](const Plan& of) {
      return WorkloadSeconds(machine, SubjectOf(request, of.cache),
                             ExecutionOf(of, request.lengths), request.lengths);
    };
    ++(plan->cache.chunk > request.chunk ? larger : kept);
    if (plan->cache.chunk <= request.chunk) continue;
    EXPECT_LE(seconds(*plan), seconds(*MakePlan(same)) * (1 + 1e-9)) << device;
  }
  EXPECT_GT(larger, 0);
  EXPECT_GT(kept, 0);
}

// Llama-3-8B, whose weights do not all fit.
PlanRequest LlamaOnACard(const MachineProfile* machine) {
  PlanRequest request = OnDevice(33'000, 0);
  request.shape = kLlama8B;
  request.costs.cache = CacheCosts(request.shape);
  request.costs.activations = [](const CacheChoice& c) { return c.chunk * 100 * kKiB; };
  request.layer_weight_bytes = request.layer_read_bytes = 416 * kMiB;
  request.weight_bytes = 32 * request.layer_weight_bytes + 2 * kGiB;
  request.chunk = 8192;
  request.segment = 131072;
  request.budgets.host = request.budgets.disk = 256 * kGiB;
  request.map_share = 1.0 / 512;
  request.machine = machine;
  return request;
}

// With more of the device no plan is clearly slower. MakePlan takes 5 % of gain for another cut,
// and does not score all of them.
void ExpectMoreIsNotSlower(PlanRequest request, int from_mib, int to_mib, int step) {
  double best = std::numeric_limits<double>::max();
  for (int64_t device = from_mib; device < to_mib; device += step) {
    request.budgets.device = device * kMiB;
    const Result<Plan> plan = MakePlan(request);
    if (!plan.ok()) continue;
    const double seconds = plan->prefill.seconds + kScoredSteps * plan->decode.seconds;
    EXPECT_LT(seconds, best * 1.2) << device << " MiB, chunk " << plan->cache.chunk;
    best = std::min(best, seconds);
  }
  EXPECT_LT(best, std::numeric_limits<double>::max());
}

// Neither do chunks of a few tokens make room for one more layer of weights, nor do layers go to
// disk to save the page tables that they take in host memory.
TEST(Plan, WeightsDoNotComeBeforeAllElse) {
  const MachineProfile machine = Shipped("rtx-4090");
  const PlanRequest request = LlamaOnACard(&machine);
  ExpectMoreIsNotSlower(request, 3000, 4000, 20);
  ExpectMoreIsNotSlower(request, 14'800, 16'300, 25);
}

// Where a part is recomputed all heads move together, so that only the segment can give way.
TEST(Plan, LongSegmentsDoNotLeaveShortChunks) {
  const MachineProfile machine = Shipped("a100-80-sxm");
  PlanRequest request = LlamaOnACard(&machine);
  request.lengths.assign(32, 56'605);
  request.budgets.host = 1024 * kGiB;
  request.fixed.recompute = 0.3;
  ExpectMoreIsNotSlower(request, 4000, 5000, 25);
}

}  // namespace
}  // namespace headway::plan
