// Finds the weights of a model folder, whatever form they have.
#ifndef HEADWAY_MODEL_WEIGHTS_OPEN_WEIGHTS_H_
#define HEADWAY_MODEL_WEIGHTS_OPEN_WEIGHTS_H_

#include <memory>
#include <string>

#include "base/env.h"
#include "headway/status.h"
#include "model/weights/weight_source.h"

namespace headway {

// Safetensors, which are mapped; nothing but their headers is read. kNotFound where there are none.
Result<std::unique_ptr<WeightSource>> OpenWeights(Env& env, const std::string& folder);

}  // namespace headway

#endif  // HEADWAY_MODEL_WEIGHTS_OPEN_WEIGHTS_H_
