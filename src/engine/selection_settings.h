// Selection as options ask for it.
#ifndef HEADWAY_ENGINE_SELECTION_SETTINGS_H_
#define HEADWAY_ENGINE_SELECTION_SETTINGS_H_

#include "engine/settings.h"
#include "headway/options.h"
#include "headway/status.h"

namespace headway {

// Fills in the settings' selection, whose policy and placement are there. kInvalidArgument for what
// makes no sense.
Status ReadSelection(const EngineOptions& options, Settings* settings);

}  // namespace headway

#endif  // HEADWAY_ENGINE_SELECTION_SETTINGS_H_
