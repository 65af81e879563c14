#include "engine/encoding_choice.h"

#include <fmt/format.h>

#include <utility>

#include "engine/page_size.h"
#include "plan/optimize.h"

namespace headway {
namespace {

// Shares of the time that plain pages take, at most: predictions are no better.
constexpr double kClearly = 0.95;

// Whether lossless pages give the bits of plain ones, in the settings' pages. Kernels for prompts
// attend to decoded pages as to plain ones that lie side by side.
bool SameBits(const BlueprintInputs& inputs) {
  const ModelShape& shape = inputs.config->shape;
  const int slots = inputs.settings->cut.page_slots;
  kv::CacheFormat plain;
  plain.page = {shape.dtype, slots, shape.head_dim};
  return shape.dtype == DType::kBF16 && slots % LosslessPageSlots(shape.head_dim) == 0 &&
         plain.page_stride() == static_cast<int64_t>(plain.page.bytes());
}

bool MayChoose(const BlueprintInputs& inputs) {
  const Settings& settings = *inputs.settings;
  return settings.encoding_by_plan && settings.all_ranks() == 1 &&
         settings.policy == Policy::kAuto && !settings.session.has_value() &&
         !settings.eviction.evicts() && !settings.salience.chooses() &&
         !settings.selection.approximates() && !settings.self_extend.on() &&
         inputs.backend.own_memory && inputs.machine != nullptr && inputs.plan == nullptr &&
         SameBits(inputs);
}

bool AllOnDevice(const Blueprint& blueprint) {
  const plan::Plan& plan = blueprint.plan;
  return plan.slabs[1] + plan.slabs[2] + plan.x_slabs == 0 && plan.streamed_weight_bytes == 0;
}

double SecondsOf(const plan::Plan& plan) {
  return plan::kScoredSteps * plan.decode.seconds + plan.prefill.seconds;
}

double TokensPerSecond(const Blueprint& blueprint) {
  return static_cast<double>(blueprint.lengths.size()) / blueprint.plan.decode.seconds;
}

}  // namespace

Result<Blueprint> ChooseEncoding(
    const BlueprintInputs& inputs,
    const std::function<Result<Blueprint>(const BlueprintInputs& inputs)>& make) {
  Result<Blueprint> plain = make(inputs);
  const bool misfit = plain.status().code() == StatusCode::kOutOfBudget;
  if (!MayChoose(inputs) || !(misfit || (plain.ok() && !AllOnDevice(*plain)))) return plain;
  Settings settings = *inputs.settings;
  settings.encoding = Encoding::kLossless;
  BlueprintInputs changed = inputs;
  changed.settings = &settings;
  Result<Blueprint> lossless = make(changed);
  if (!lossless.ok()) return plain;
  if (plain.ok() && SecondsOf(lossless->plan) > kClearly * SecondsOf(plain->plan)) return plain;
  lossless->encoding_reason =
      "full pages are lossless, the same numbers in three quarters of the bytes: ";
  lossless->encoding_reason +=
      misfit ? "plain ones do not fit"
             : fmt::format("predicted to decode {:.3g} tokens a second, with plain ones {:.3g}",
                           TokensPerSecond(*lossless), TokensPerSecond(*plain));
  return lossless;
}

}  // namespace headway
