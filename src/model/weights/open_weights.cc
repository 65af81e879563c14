#include "model/weights/open_weights.h"

#include <utility>

#include "model/weights/safetensors.h"

namespace headway {

Result<std::unique_ptr<WeightSource>> OpenWeights(Env& env, const std::string& folder) {
  Result<Safetensors> weights = Safetensors::Open(env, folder);
  if (!weights.ok()) return weights.status();
  return std::unique_ptr<WeightSource>(std::make_unique<Safetensors>(std::move(*weights)));
}

}  // namespace headway
