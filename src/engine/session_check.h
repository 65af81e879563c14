// Whether a session that was saved goes on under settings, with a model.
#ifndef HEADWAY_ENGINE_SESSION_CHECK_H_
#define HEADWAY_ENGINE_SESSION_CHECK_H_

#include <string>

#include "base/types.h"
#include "engine/settings.h"
#include "headway/status.h"
#include "kv/session/manifest.h"
#include "model/config.h"

namespace headway {

// `saved` is the manifest of the settings' session. kInvalidArgument for another model's
// configuration, cache, encoding or choice of what heads keep; kCorrupt where heads keep more than
// they may.
Status CheckSession(const kv::Manifest& saved, const Settings& settings, const ModelConfig& config,
                    Encoding encoding);

// The error for a session of another model; `what` says how it differs.
Status OtherModel(const SessionSettings& session, const std::string& what);

}  // namespace headway

#endif  // HEADWAY_ENGINE_SESSION_CHECK_H_
