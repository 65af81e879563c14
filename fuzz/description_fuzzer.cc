// What users describe in files: a machine, by which plans are made, and heads.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "hardware/profile_json.h"
#include "kv/policy/head_pattern.h"
#include "kv/policy/head_profile.h"
#include "plan/plan.h"

namespace {

using headway::plan::Plan;
using headway::plan::PlanRequest;

constexpr int kLayers = 2, kKvHeads = 2;

// A model of 8 layers, with byte counts of about its size; of a GPU, layers that may stream.
PlanRequest RequestOf(const headway::MachineProfile& machine) {
  using headway::kMiB;
  PlanRequest request;
  request.shape = {8, 384, 8, 4, 64, 1024, 8192, headway::DType::kBF16};
  request.lengths = {16384};
  request.weight_bytes = 34 * kMiB;
  request.budgets = {24 * kMiB, 256 * kMiB, 0};
  if (machine.own_memory) {
    request.layer_weight_bytes = 3 * kMiB;
    request.budgets = {std::numeric_limits<int64_t>::max(), 256 * kMiB, 0, 80 * kMiB};
    request.host_attention = true;
  }
  request.costs.cache = [](const headway::plan::CacheChoice& c) {
    headway::plan::CacheBytes bytes;
    bytes.open_pages = 512 * headway::kKiB;
    bytes.append_buffer = c.chunk * 2048;
    bytes.slab = c.group_heads * c.segment_tokens * 256;
    bytes.staging = c.staging_slabs * bytes.slab;
    bytes.bounce = c.bounce_slabs * bytes.slab;
    return bytes;
  };
  request.costs.activations = [](const headway::plan::CacheChoice& c) { return c.chunk * 17408; };
  request.costs.workspace = [](const headway::plan::CacheChoice&) { return kMiB; };
  request.machine = &machine;
  return request;
}

void CheckError(const headway::Status& status) {
  const std::string& message = status.message();
  if (message.empty() || message.find('\n') != std::string::npos) abort();
}

void CheckTime(const headway::plan::StepTime& time) {
  if (!std::isfinite(time.seconds) || time.seconds < 0.0) abort();
}

// Of a machine that was let through every plan has times, or there is a reason for none.
void CheckPlan(const PlanRequest& request) {
  const headway::Result<Plan> plan = headway::plan::MakePlan(request);
  if (!plan.ok()) return CheckError(plan.status());
  CheckTime(plan->prefill);
  CheckTime(plan->decode);
}

void CheckMachine(std::string_view text) {
  const auto machine = headway::hardware::ParseProfile(text, "fuzz");
  if (!machine.ok()) return CheckError(machine.status());
  const std::string written = headway::hardware::WriteProfile(*machine);
  const auto again = headway::hardware::ParseProfile(written, "fuzz");
  if (!again.ok() || headway::hardware::WriteProfile(*again) != written) abort();
  PlanRequest request = RequestOf(*machine);
  CheckPlan(request);
  request.group = {2, 1};
  CheckPlan(request);
}

void CheckHeads(const std::string& text) {
  headway::kv::HeadPatternChoice choice{.layers = kLayers, .kv_heads = kKvHeads};
  if (const headway::Status s = headway::kv::ReadDuoAttentionConfig(text, "fuzz", &choice);
      !s.ok()) {
    CheckError(s);
  }
  const auto pattern = headway::kv::ParseHeadPattern(text, "fuzz", choice);
  if (!pattern.ok()) {
    CheckError(pattern.status());
  } else if (!pattern->streaming.empty() && std::ssize(pattern->streaming) != kLayers) {
    abort();
  }
  const auto profile = headway::kv::ParseHeadProfile(text, "fuzz", {kLayers, kKvHeads, "0123"});
  if (!profile.ok()) return CheckError(profile.status());
  double sum = 0.0;
  for (const double of_head : *profile) sum += of_head;
  if (!(std::abs(sum - kLayers * kKvHeads) < 1e-6)) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  CheckMachine(text);
  CheckHeads(text);
  return 0;
}
