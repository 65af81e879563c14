// How a context of lossless pages goes on where the numbers of some do not fit them: with plain
// ones.
#include <mutex>
#include <utility>

#include "engine/engine_impl.h"
#include "headway/refusal.h"

namespace headway {

bool Engine::Impl::MayGoOnPlain(const Blueprint& blueprint) const {
  return blueprint.layout.store.format.page.encoding == Encoding::kLossless &&
         settings.all_ranks() == 1 && !settings.session.has_value() && !settings.eviction.evicts();
}

Result<PlainContext> Engine::Impl::DrawPlain(const Workload& workload,
                                             const plan::CacheChoice& cut) {
  {
    const std::lock_guard lock(moving);
    if (!plain.has_value()) {
      plain = settings;
      plain->encoding = Encoding::kNone;
      plain->encoding_by_plan = false;
      plain->recompute_share = 0.0;
    }
  }
  Settings same = *plain;
  same.cut.chunk = cut.chunk;
  same.cut.segment = cut.segment_tokens;
  Result<Blueprint> blueprint = DrawUnder(same, workload, nullptr);
  if (!blueprint.ok()) {
    return blueprint.status().Within(
        {"the numbers of some keys or values do not fit lossless pages, and without them "});
  }
  PlanReport report = Report(*blueprint, {});
  return PlainContext{std::move(*blueprint), std::move(report), &*plain};
}

}  // namespace headway
