// Which chunk and segment a plan has under which budgets, and that more of a budget never hurts.
#include <gtest/gtest.h>

#include <cctype>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "plan/choose.h"
#include "plan/optimize.h"
#include "support/test_machines.h"

namespace headway::plan {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

PlanRequest RequestOf(const ModelShape& shape, std::vector<int64_t> lengths) {
  PlanRequest request;
  request.shape = shape;
  request.lengths = std::move(lengths);
  request.costs.cache = CacheCosts(shape);
  request.costs.activations = [](const CacheChoice& c) { return c.chunk * 17 * kKiB; };
  request.costs.workspace = [](const CacheChoice&) { return kMiB; };
  return request;
}

// Everything resident.
PlanRequest Unlimited(PlanRequest request) {
  request.budgets = {kUnlimited, kUnlimited, 0, kUnlimited};
  request.keep_on_device = request.keep_on_host = true;
  request.weight_layers = request.disk_layers = std::nullopt;
  return request;
}

PlanRequest Fixed(PlanRequest request, const CacheChoice& cut) {
  request.fixed.chunk = cut.chunk;
  request.fixed.segment_tokens = cut.segment_tokens;
  return request;
}

// The budget that a message offers behind `option`, in bytes; 0: none.
int64_t Offered(const std::string& message, const std::string& option) {
  const size_t found = message.find(option + " ");
  if (found == std::string::npos) return 0;
  const size_t at = found + option.size() + 1;
  if (std::isdigit(static_cast<unsigned char>(message[at])) == 0) return 0;
  return std::stoll(message.substr(at)) * kKiB;
}

PlanRequest WithOffer(PlanRequest request, const std::string& message) {
  const auto take = [&](const char* option, int64_t* budget) {
    if (const int64_t bytes = Offered(message, option); bytes > 0) *budget = bytes;
  };
  take("gpu_memory", &request.budgets.device);
  take("kv_memory", &request.budgets.kv);
  take("host_memory", &request.budgets.host);
  take("disk_memory", &request.budgets.disk);
  return request;
}

struct Counts {
  int same = 0;
  int short_of_room = 0;
  int faster = 0;
};

// The plan has the chunk and segment of an all-resident run, or says why not, which is true.
void ExpectTheResidentCut(const PlanRequest& request, Counts* counts) {
  const Result<Plan> plan = MakePlan(request);
  if (!plan.ok()) return;
  const CacheChoice resident = MakePlan(Unlimited(request))->cache;
  const std::string notice = plan->cut_notice.Text();
  if (SameCut(request, plan->cache, resident)) {
    EXPECT_EQ(notice, "");
    ++counts->same;
    return;
  }
  const auto says = [&](const char* what, int64_t now, int64_t instead_of) {
    if (now == instead_of) return;
    const std::string text = std::string(what) + " of " + std::to_string(now) +
                             " tokens instead of " + std::to_string(instead_of);
    EXPECT_NE(notice.find(text), std::string::npos) << notice;
  };
  says("chunks", plan->cache.chunk, resident.chunk);
  says("segments", plan->cache.segment_tokens, resident.segment_tokens);
  const Result<Plan> forced = MakePlan(Fixed(request, resident));
  if (forced.ok()) {
    ASSERT_NE(request.machine, nullptr) << "the resident cut fits and was not taken";
    EXPECT_NE(notice.find("predicted to be faster"), std::string::npos) << notice;
    const auto seconds = [&](const Plan& of) {
      return WorkloadSeconds(*request.machine, SubjectOf(request, of.cache),
                             ExecutionOf(of, request.lengths), request.lengths);
    };
    EXPECT_LT(seconds(*plan), seconds(*forced)) << notice;
    ++counts->faster;
    return;
  }
  EXPECT_NE(notice.find("would hold the same cut"), std::string::npos) << notice;
  const Result<Plan> offered = MakePlan(Fixed(WithOffer(request, notice), resident));
  EXPECT_TRUE(offered.ok() || notice.find("no single budget") != std::string::npos) << notice;
  ++counts->short_of_room;
}

TEST(Cut, IsThatOfAnAllResidentRunWhereItFits) {
  Counts counts;
  for (const int64_t tokens : {100, 700, 1500, 5000, 16'384, 70'000}) {
    for (int64_t kv = kMiB / 2; kv <= 64 * kMiB; kv *= 2) {
      for (const int64_t host : {int64_t{0}, 2 * kMiB, 48 * kMiB, kGiB}) {
        for (const int64_t disk : {int64_t{0}, kGiB}) {
          for (const int placement : {0, 1, 2}) {
            PlanRequest request = RequestOf({8, 384, 8, 4, 64, 1024, 8192, DType::kBF16}, {tokens});
            request.weight_bytes = 34 * kMiB;
            request.budgets = {kv, host, disk};
            request.keep_on_device = placement == 0;
            request.keep_on_host = placement != 2;
            SCOPED_TRACE(std::to_string(tokens) + " tokens, " + FormatBytes(kv) + " + " +
                         FormatBytes(host) + " + " + FormatBytes(disk));
            ExpectTheResidentCut(request, &counts);
          }
        }
      }
    }
  }
  EXPECT_GT(counts.same, 100);
  EXPECT_GT(counts.short_of_room, 10);
  EXPECT_EQ(counts.faster, 0);
}

// Llama-3-8B on a GPU.
PlanRequest OnGpu(const MachineProfile* machine, std::vector<int64_t> lengths, int64_t device) {
  PlanRequest request = RequestOf(kLlama8B, std::move(lengths));
  request.costs.activations = [](const CacheChoice& c) { return c.chunk * 100 * kKiB; };
  request.layer_weight_bytes = request.layer_read_bytes = 416 * kMiB;
  request.weight_bytes = 32 * request.layer_weight_bytes + 2 * kGiB;
  request.chunk = 8192;
  request.segment = 131072;
  request.budgets = {kUnlimited, 256 * kGiB, 256 * kGiB, device};
  request.map_share = 1.0 / 512;
  request.host_attention = true;
  request.machine = machine;
  return request;
}

TEST(Cut, IsThatOfAnAllResidentRunOnAGpuOrFaster) {
  Counts counts;
  for (const char* name : {"rtx-4090", "h200"}) {
    const MachineProfile machine = Shipped(name);
    for (const std::vector<int64_t>& lengths :
         {std::vector<int64_t>{3000}, {33'000}, {131'098}, {16'384, 16'384, 6000}}) {
      for (const int64_t gib : {3, 4, 6, 10, 16, 17, 24, 80}) {
        SCOPED_TRACE(std::string(name) + ", " + std::to_string(lengths[0]) + " tokens, " +
                     std::to_string(gib) + " GiB");
        ExpectTheResidentCut(OnGpu(&machine, lengths, gib * kGiB), &counts);
      }
    }
  }
  EXPECT_GT(counts.same, 20);
  EXPECT_GT(counts.faster + counts.short_of_room, 5);
}

// A step of a short context has no more tokens than there are: a longer chunk would only take room.
TEST(Cut, AChunkIsNoLongerThanTheContext) {
  PlanRequest request = RequestOf({8, 384, 8, 4, 64, 1024, 8192, DType::kBF16}, {300});
  request.budgets = {2 * kMiB, 0, 0};
  EXPECT_EQ(AutoChunk(request), 320);
  request.lengths = {300, 300, 300};
  EXPECT_EQ(AutoChunk(request), 960);
  request.lengths = {16'384};
  EXPECT_EQ(AutoChunk(request), 1024);
}

// What fits still fits with more of one budget: neither are there too many pages of host memory for
// the device to hold their tables, nor do buffers on the way to a disk leave too little to slabs.
TEST(Cut, MoreOfABudgetNeverMakesARequestFail) {
  Random random(7);
  int fitted = 0, tight = 0;
  for (int i = 0; i < 3000; ++i) {
    PlanRequest request =
        RequestOf({8, 384, 8, 4, 64, 1024, 8192, DType::kBF16}, {1 + random.Below(20'000)});
    request.weight_bytes = 34 * kMiB;
    const auto up_to = [&](int64_t most) { return 4096 * random.Below(most / 4096); };
    request.budgets = {up_to(6 * kMiB), up_to(i % 2 == 0 ? 2 * kMiB : 150 * kMiB),
                       i % 3 == 0 ? 0 : up_to(200 * kMiB)};
    if (i % 2 == 1) {
      request.layer_weight_bytes = 3 * kMiB;
      request.layer_read_bytes = i % 4 == 1 ? 0 : 4 * kMiB;
      request.budgets.kv = kUnlimited;
      request.budgets.device = 16 * kMiB + up_to(48 * kMiB);
      request.map_share = 1.0 / 16;
    }
    request.keep_on_device = random.Below(3) != 0;
    if (random.Below(4) == 0) request.session = kSession;
    const auto fits = [](const PlanRequest& of) { return ChooseCut(of).has_value(); };
    if (!fits(request)) continue;
    ++fitted;
    for (int64_t Budgets::*field :
         {&Budgets::kv, &Budgets::host, &Budgets::disk, &Budgets::device}) {
      for (const int64_t more : {int64_t{4096}, kMiB, 100 * kMiB, int64_t{1} << 40}) {
        PlanRequest larger = request;
        if (larger.budgets.*field > kUnlimited - more) continue;
        // Nothing of host memory is no host tier; a little of it must hold the disk's buffers.
        if (field == &Budgets::host && request.budgets.host == 0) continue;
        larger.budgets.*field += more;
        EXPECT_TRUE(fits(larger)) << "request " << i << ": " << request.lengths[0] << " tokens, kv "
                                  << request.budgets.kv << " host " << request.budgets.host
                                  << " disk " << request.budgets.disk << " device "
                                  << request.budgets.device << ", " << FormatBytes(more) << " more";
        ++tight;
      }
    }
  }
  EXPECT_GT(fitted, 500);
  EXPECT_GT(tight, fitted);
}

// They go down to a disk, of which there is none where nothing must lie there; but a session's file
// is one.
TEST(Cut, BounceBuffersAreThereWhereADiskIs) {
  PlanRequest request = RequestOf({8, 384, 8, 4, 64, 1024, 8192, DType::kBF16}, {4096});
  request.budgets = {kGiB, 0, kGiB};
  const auto bounce = [](const Result<Plan>& plan) {
    int64_t bytes = 0;
    for (const MemoryRow& row : plan->memory) {
      bytes += row.tag == "KV: bounce buffers" ? row.bytes : 0;
    }
    return bytes;
  };
  EXPECT_EQ(bounce(MakePlan(request)), 0);
  request.session = kSession;
  EXPECT_EQ(bounce(MakePlan(request)), 2 * kMiB);
  request.budgets.host = 4096;  // which they would not fit into
  EXPECT_EQ(MakePlan(request).status().code(), StatusCode::kOutOfBudget);
  request.budgets.host = 2 * kMiB;
  EXPECT_EQ(bounce(MakePlan(request)), 2 * kMiB);
  request.session = std::nullopt;
  request.budgets = {8 * kMiB, 30 * kMiB, kGiB};
  EXPECT_EQ(bounce(MakePlan(request)), 0);  // the host holds what the device does not
  request.budgets.host = 26 * kMiB;
  const Result<Plan> plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_GT(plan->slabs[2], 0);
  EXPECT_GT(bounce(plan), 0);
  EXPECT_LE(plan->Bytes(Tier::kHost), request.budgets.host);
}

// The smallest budgets of a refusal are true, each alone.
TEST(Cut, EveryBudgetThatARefusalOffersWouldDo) {
  Random random(11);
  int refused = 0, offers = 0;
  for (int i = 0; i < 400; ++i) {
    PlanRequest request =
        RequestOf({8, 384, 8, 4, 64, 1024, 8192, DType::kBF16}, {1 + random.Below(30'000)});
    request.weight_bytes = 34 * kMiB;
    request.budgets = {random.Below(4 * kMiB), i % 2 == 0 ? 0 : random.Below(8 * kMiB),
                       i % 3 == 0 ? 0 : random.Below(20 * kMiB)};
    request.keep_on_device = random.Below(3) != 0;
    request.keep_on_host = random.Below(4) != 0;
    if (random.Below(3) == 0) request.session = kSession;
    if (request.session && random.Below(2) == 0) {
      request.fixed.group_heads = 4;
      request.fixed.segment_tokens = 1024;
    }
    const Result<Plan> plan = MakePlan(request);
    if (plan.ok()) continue;
    ++refused;
    const std::string& message = plan.status().message();
    const auto check = [&](const char* option, int64_t Budgets::*field) {
      const int64_t bytes = Offered(message, option);
      if (bytes == 0) return;
      ++offers;
      PlanRequest larger = request;
      larger.budgets.*field = bytes;
      EXPECT_TRUE(MakePlan(larger).ok()) << option << " of: " << message;
      larger.budgets.*field = bytes - 4096;
      EXPECT_FALSE(MakePlan(larger).ok()) << option << " of: " << message;
    };
    check("kv_memory", &Budgets::kv);
    check("host_memory", &Budgets::host);
    check("disk_memory", &Budgets::disk);
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(offers, refused);
}

}  // namespace
}  // namespace headway::plan
