// What of a model's configuration decides the keys and values that a prompt gives, as text: a
// session file keeps it, so that a changed value is told by its name.
#ifndef HEADWAY_MODEL_CONFIG_IDENTITY_H_
#define HEADWAY_MODEL_CONFIG_IDENTITY_H_

#include <string>
#include <string_view>

#include "model/config.h"

namespace headway {

// A line "name=value" for each value that the computation reads, in a fixed order, by the names of
// config.json. Equal exactly where two models of the same weights compute the same.
std::string ConfigIdentity(const ModelConfig& config);

// What differs first between two of them: "rms_norm_eps 1e-06, the model now has 1e-05". Empty
// where nothing does.
std::string IdentityDifference(std::string_view before, std::string_view now);

}  // namespace headway

#endif  // HEADWAY_MODEL_CONFIG_IDENTITY_H_
