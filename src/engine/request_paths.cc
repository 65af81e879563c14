#include "engine/request_paths.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/refused.h"
#include "plan/choose.h"

namespace headway {
namespace {

bool HasWindows(const plan::PlanRequest& request) {
  return std::any_of(request.window.begin(), request.window.end(),
                     [](int64_t window) { return window > 0; });
}

// Why nothing can be recomputed under these settings; empty where something can.
Message WhyNoRecompute(const Settings& settings, const plan::PlanRequest& request,
                       Encoding encoding) {
  const int group = request.fixed.group_heads.value_or(request.shape.kv_heads);
  if (settings.session.has_value()) {
    return {"a session keeps keys and values; leave out ", Option::kSession};
  }
  if (encoding != Encoding::kNone) {
    return {"the cache is encoded; leave out ", Option::kKvEncoding};
  }
  if (!request.slab_heads.empty()) {
    return {"there are streaming heads; leave out ", Option::kHeadPattern};
  }
  if (settings.self_extend.on()) {
    return {"far keys are turned as they lie; leave out ", Option::kSelfExtend};
  }
  if (HasWindows(request)) return {"this model's layers have sliding windows"};
  if (!request.keep_on_host) {
    return {"X is kept in host memory; leave out ", Option::kPlacement, " disk-only"};
  }
  if (group < request.shape.kv_heads) {
    return {"X is that of all heads; leave out ", Option::kHeadGroup};
  }
  return {};
}

// Why prompts pass through the model chunk by chunk under these settings; empty where they need
// not.
Message WhyByChunks(const Settings& settings, const plan::PlanRequest& request) {
  if (settings.all_ranks() > 1) return {"several ranks share the model"};
  if (HasWindows(request)) return {"this model's layers have sliding windows"};
  if (!request.slab_heads.empty()) {
    return {"there are streaming heads; leave out ", Option::kHeadPattern};
  }
  if (settings.eviction.evicts()) return {"tokens are let go of; leave out ", Option::kEvict};
  if (settings.salience.chooses()) return {"salient tokens are chosen; leave out ", Option::kHgca};
  if (request.fixed.recompute > 0.0) return {"keys are recomputed; leave out ", Option::kRecompute};
  return {};
}

}  // namespace

void ApplyPolicy(Policy policy, plan::PlanRequest* request) {
  if (policy == Policy::kAuto) return;
  request->fixed.staging_slabs = 2;
  if (policy == Policy::kKvpr) {
    if (request->machine == nullptr) return;  // refused by ApplyRecompute
    request->fixed.recompute =
        plan::RecomputeSplit(request->shape, 1.0, request->machine->host_to_device.Peak(),
                             request->machine->gemm.Peak());
    return;
  }
  request->fixed.group_heads = policy == Policy::kHeadInfer ? 1 : request->shape.kv_heads;
  request->fixed.segment_tokens = plan::WholeSegment(*request);
}

Status ApplyRecompute(const BlueprintInputs& inputs, Encoding encoding,
                      plan::PlanRequest* request) {
  const Settings& settings = *inputs.settings;
  const bool kvpr = settings.policy == Policy::kKvpr;
  if (kvpr && request->machine == nullptr) {
    return Wrong(
        {"policy kvpr recomputes as much as the machine's speeds say: run headway probe "
         "once, or give ",
         Option::kMachine});
  }
  const Message why = WhyNoRecompute(settings, *request, encoding);
  if (!settings.recompute_share.has_value()) {
    // Without a bus there is nothing to save.
    request->recompute =
        inputs.backend.own_memory && settings.policy == Policy::kAuto && why.empty();
  } else if (!kvpr) {
    request->fixed.recompute = *settings.recompute_share;
  }
  if (kvpr || request->fixed.recompute > 0.0) {
    if (!why.empty()) {
      Message refused =
          kvpr ? Message{Option::kPolicy, " kvpr: "} : Message{Option::kRecompute, ": "};
      refused += why;
      return Unsupported(std::move(refused));
    }
    request->fixed.group_heads = request->shape.kv_heads;
  }
  return OkStatus();
}

Status ApplyPromptOrder(const BlueprintInputs& inputs, plan::PlanRequest* request) {
  const Settings& settings = *inputs.settings;
  request->prompt_order = settings.prompt_order;
  Message why = WhyByChunks(settings, *request);
  if (settings.prompt_order == plan::PromptOrder::kLayers) {
    if (!why.empty()) {
      Message refused = {Option::kPromptOrder, " layers: "};
      refused += why;
      return Unsupported(std::move(refused));
    }
    request->recompute = false;
  } else if (!why.empty() || settings.policy != Policy::kAuto) {
    request->prompt_order = plan::PromptOrder::kChunks;
  }
  return OkStatus();
}

}  // namespace headway
