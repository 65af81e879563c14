// Drafts as settings: how options are read.
#ifndef HEADWAY_ENGINE_DRAFT_SETTINGS_H_
#define HEADWAY_ENGINE_DRAFT_SETTINGS_H_

#include "engine/drafts/drafter.h"
#include "engine/settings.h"
#include "headway/options.h"
#include "headway/status.h"

namespace headway {

// Behind all other settings.
Status ReadDrafts(const EngineOptions& options, Settings* settings);

// Makes the drafters of sequences; null where there are no drafts, or steps over chosen keys or of
// another model alone make them.
NewDrafter DraftersOf(const DraftSettings& settings);

}  // namespace headway

#endif  // HEADWAY_ENGINE_DRAFT_SETTINGS_H_
