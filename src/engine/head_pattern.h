// The pattern of streaming heads that the options name.
#ifndef HEADWAY_ENGINE_HEAD_PATTERN_H_
#define HEADWAY_ENGINE_HEAD_PATTERN_H_

#include "base/env.h"
#include "base/types.h"
#include "headway/engine.h"
#include "headway/status.h"
#include "kv/policy/head_pattern.h"

namespace headway {

// No streaming heads without a file. The error is that of the file, or kInvalidArgument for options
// that make no sense together.
Result<kv::HeadPattern> LoadHeadPattern(Env& env, const EngineOptions& options,
                                        const ModelShape& shape);

}  // namespace headway

#endif  // HEADWAY_ENGINE_HEAD_PATTERN_H_
