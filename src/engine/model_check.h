// What settings ask of a model as a whole, whatever part of it a rank has.
#ifndef HEADWAY_ENGINE_MODEL_CHECK_H_
#define HEADWAY_ENGINE_MODEL_CHECK_H_

#include <string>

#include "engine/settings.h"
#include "headway/status.h"
#include "model/model.h"

namespace headway {

// kUnsupported, with the option that asks for it, for what this model has no use of.
Status CheckModel(const Settings& settings, const ModelConfig& whole);

// Likewise for weights that do not have the form that is asked for; `folder` names the model.
Status CheckWeightForm(const Settings& settings, const WeightBytes& weights,
                       const std::string& folder);

}  // namespace headway

#endif  // HEADWAY_ENGINE_MODEL_CHECK_H_
