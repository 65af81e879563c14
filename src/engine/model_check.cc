#include "engine/model_check.h"

#include <algorithm>
#include <cstdint>

#include "engine/refused.h"

namespace headway {

Status CheckModel(const Settings& settings, const ModelConfig& whole) {
  const bool only_windows =
      !whole.windows.empty() && std::all_of(whole.windows.begin(), whole.windows.end(),
                                            [](int64_t window) { return window > 0; });
  if (!settings.selection.selects() || !only_windows) return OkStatus();
  return Unsupported({AskedForBy(settings.selection),
                      ": all layers of this model have sliding windows, which leave nothing to "
                      "choose among; leave it out"});
}

Status CheckWeightForm(const Settings& settings, const WeightBytes& weights,
                       const std::string& folder) {
  if (!settings.lossless_weights || weights.layer_code > 0) return OkStatus();
  return Unsupported(
      {Option::kWeightEncoding, " lossless takes matrices of bf16; leave it out for ", folder});
}

}  // namespace headway
