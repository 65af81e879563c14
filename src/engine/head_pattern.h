// The pattern of streaming heads that the settings name.
#ifndef HEADWAY_ENGINE_HEAD_PATTERN_H_
#define HEADWAY_ENGINE_HEAD_PATTERN_H_

#include "base/env.h"
#include "base/types.h"
#include "engine/settings.h"
#include "headway/status.h"
#include "kv/policy/head_pattern.h"

namespace headway {

// No streaming heads unless the settings have them. The error is that of the file, or
// kInvalidArgument for a session together with heads that stream.
Result<kv::HeadPattern> LoadHeadPattern(Env& env, const Settings& settings,
                                        const ModelShape& shape);

}  // namespace headway

#endif  // HEADWAY_ENGINE_HEAD_PATTERN_H_
