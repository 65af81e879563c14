// What infinitehip has beside other selectors: its stages, what they are renewed after, and the
// keys of outer layers.
#ifndef HEADWAY_ENGINE_STAGE_SETTINGS_H_
#define HEADWAY_ENGINE_STAGE_SETTINGS_H_

#include "headway/options.h"
#include "headway/status.h"
#include "kv/policy/selection.h"

namespace headway {

// Reads them into a policy that has its blocks, keys and refresh. Chunks of a stage are cut into
// those of the next, and of the last one into blocks.
Status ReadStages(const EngineOptions& options, kv::SelectionPolicy* policy);

}  // namespace headway

#endif  // HEADWAY_ENGINE_STAGE_SETTINGS_H_
