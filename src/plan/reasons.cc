// Why a plan is as it is, in sentences.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "plan/choose.h"
#include "plan/fit.h"
#include "plan/words.h"

namespace headway::plan {
namespace {

// Where weights are that each step reads from disk.
std::string WhereOnDisk(const PlanRequest& request) {
  if (request.layer_disk_bytes == 0) return "the model's files";
  if (request.layer_disk_bytes >= request.layer_weight_bytes) return "a temporary file";
  return "the model's files, and columns from a temporary file,";
}

// Why keys and values are recomputed, or not.
void ExplainRecompute(const PlanRequest& request, const Fit& fit, Plan* plan) {
  const int64_t width = static_cast<int64_t>(DTypeBytes(request.shape.dtype));
  const std::string bytes =
      "of a token and layer X is " + FormatBytes(request.shape.d_model * width) + ", K and V are " +
      FormatBytes(2 * int64_t{request.shape.kv_heads} * request.shape.head_dim * width);
  if (fit.x_slabs > 0) {
    plan->reasons.push_back(
        (request.recompute ? "keys and values are recomputed where that takes the device less time "
                             "than their copy takes the bus: "
                           : "so much is recomputed as was asked for: ") +
        bytes);
  } else if (!request.recompute || fit.slabs[1] == 0) {
    return;
  } else if (!XIsSmaller(request.shape)) {
    plan->reasons.push_back("nothing is recomputed: " + bytes + ", so that it never pays");
  } else if (request.machine == nullptr) {
    plan->reasons.push_back(
        "nothing is recomputed: without a machine's profile it is not known whether that pays");
  } else {
    plan->reasons.push_back(
        "nothing is recomputed: the device would take longer than the copies "
        "that it saves");
  }
}

std::string WhyNoLargerGroup(const PlanRequest& request, const Fit& fit, const Plan& plan) {
  if (request.machine == nullptr) {
    return "larger staging buffers would take over half of the fast tier or not fit";
  }
  CacheChoice larger = plan.cache;
  larger.group_heads = std::min(2 * larger.group_heads, request.shape.kv_heads);
  if (!TryFit(request, larger).ok) return "larger staging buffers would not fit";
  if (fit.slabs[0] > 0) {
    return "larger staging buffers would leave less to resident keys than they gain";
  }
  return request.slab_heads.empty() ? "predicted to be faster than a larger one"
                                    : "larger ones would leave more of the slabs empty";
}

// Why a cut's chunk or segment is shorter than `longer`'s, which is the next longer one.
std::string WhyNoLonger(const PlanRequest& request, const CacheChoice& longer,
                        const std::string& what_does_not_fit) {
  if (request.machine != nullptr && TryFit(request, longer).ok) {
    return "predicted to be faster than a longer one";
  }
  return what_does_not_fit + " of a longer one would not fit";
}

// Why sketches of keys lie in host memory.
std::string WhySketchesOnHost(const PlanRequest& request, const Fit& fit, const Plan& plan) {
  if (request.costs.sketch_tiers.size() == 1) return "as asked";
  CacheChoice there = plan.cache;
  there.sketches = Tier::kDevice;
  const Fit on_device = TryFit(request, there);
  if (!on_device.ok) return "they would not fit on the device";
  if (on_device.weight_layers < fit.weight_layers) return "on the device weights would have to go";
  return request.machine != nullptr ? "predicted to be faster than on the device"
                                    : "on the device they would take the room of keys";
}

// Where the weights are that do not stay on the device.
void ExplainWeights(const PlanRequest& request, const Fit& fit, Plan* plan) {
  const auto say = [&](std::string sentence) { plan->reasons.push_back(std::move(sentence)); };
  if (plan->streamed_weight_bytes > 0) {
    const int layers = request.shape.layers;
    const bool all_on_disk = fit.weight_layers + fit.disk_layers == layers;
    say("the weights of " + std::to_string(layers - fit.weight_layers) + " of " +
        std::to_string(layers) + " layers stream from " + (all_on_disk ? "disk" : "host memory") +
        ", " + FormatBytes(plan->streamed_weight_bytes) + " in each step of any size" +
        (request.weight_layers.has_value()
             ? ""
             : "; they do not fit, and those that do come before keys and "
               "values, since a step needs all of them from the first on"));
  }
  if (fit.disk_layers > 0) {
    say("host memory does not hold those of " + std::to_string(fit.disk_layers) +
        " layers, evenly among the others: each step reads their " +
        FormatBytes(plan->disk_weight_bytes) + " from " + WhereOnDisk(request) +
        " again, a layer ahead");
  }
}

}  // namespace

void GiveReasons(const PlanRequest& request, const Fit& fit, Plan* plan) {
  const auto say = [&](std::string sentence) { plan->reasons.push_back(std::move(sentence)); };
  ExplainWeights(request, fit, plan);
  if (!request.fixed.chunk.has_value() && plan->cache.chunk > AutoChunk(request)) {
    say("chunk " + std::to_string(plan->cache.chunk) +
        ": the weights cross the bus once for more tokens");
  }
  if (const int64_t stretch = plan->cache.stretch_tokens; stretch > 0) {
    say("prompts pass through one layer after the other, " + std::to_string(stretch) +
        " tokens at a time" +
        (request.prompt_order == PromptOrder::kLayers
             ? ", as asked"
             : ": each layer's weights come to the device once for all of them"));
  }
  const int64_t total = fit.slabs[0] + fit.slabs[1] + fit.slabs[2] + fit.x_slabs;
  if (fit.slabs[0] == total) {
    say("everything is resident: the KV cache fits in the fast tier");
  } else {
    const auto share = [&](int64_t slabs) {
      const double percent =
          100.0 * static_cast<double>(slabs) / static_cast<double>(std::max<int64_t>(total, 1));
      return std::to_string(std::lround(percent)) + " %";
    };
    say("of the closed KV " + share(fit.slabs[0]) + " is resident, " + share(fit.slabs[1]) +
        " in host memory, " + share(fit.slabs[2]) + " on disk" +
        (fit.x_slabs > 0 ? ", " + share(fit.x_slabs) + " recomputed from X in host memory" : ""));
  }
  ExplainRecompute(request, fit, plan);
  if (plan->cache.sketches == Tier::kHost) {
    say("second looks read their 2 bits of each key in host memory: " +
        WhySketchesOnHost(request, fit, *plan));
  }
  const int64_t heads = int64_t{request.shape.layers} * request.shape.kv_heads;
  if (const int64_t streaming = heads - SlabHeads(request); streaming > 0) {
    say(std::to_string(streaming) + " of " + std::to_string(heads) +
        " KV heads stream: they keep sink and recent tokens, on the device, and no others");
  }
  if (!request.fixed.group_heads.has_value() && plan->cache.group_heads < request.shape.kv_heads) {
    say("head group " + std::to_string(plan->cache.group_heads) + " of " +
        std::to_string(request.shape.kv_heads) + ": " + WhyNoLargerGroup(request, fit, *plan));
  }
  if (!request.fixed.chunk.has_value() && plan->cache.chunk < AutoChunk(request)) {
    CacheChoice longer = plan->cache;
    longer.chunk *= 2;
    say("chunk " + std::to_string(plan->cache.chunk) + ": " +
        WhyNoLonger(request, longer, "the append buffer"));
  }
  if (plan->host_share > 0.0) {
    const int64_t percent = std::lround(100.0 * plan->host_share);
    const char* why = !request.host_attention           ? ", as asked"
                      : percent < 100                   ? ", so that they end with the bus"
                      : plan->streamed_weight_bytes > 0 ? ": the bus brings weights"
                                                        : "";
    say("the host's cores attend to " + std::to_string(percent) + " % of what is in host memory" +
        why);
  }
  if (plan->cache.staging_slabs > kStaging && fit.slabs[2] > 0) {
    say(std::to_string(plan->cache.staging_slabs) +
        " staging buffers: most is read from disk, which is faster with many requests");
  }
  if (!request.fixed.segment_tokens.has_value() && plan->cache.recompute == 0.0 &&
      plan->cache.segment_tokens < AutoSegment(request)) {
    CacheChoice longer = plan->cache;
    longer.segment_tokens *= 2;
    say("segment " + std::to_string(plan->cache.segment_tokens) + ": " +
        WhyNoLonger(request, longer, "the staging buffers"));
  }
}

}  // namespace headway::plan
