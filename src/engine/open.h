// Engine::Open over another Env, for tests that make calls fail.
#ifndef HEADWAY_ENGINE_OPEN_H_
#define HEADWAY_ENGINE_OPEN_H_

#include <memory>
#include <string>

#include "base/env.h"
#include "engine/settings.h"
#include "headway/engine.h"
#include "parallel/process_group.h"

namespace headway {

struct EngineOpener {
  // All files and memory of the engine and its contexts go through `env`, which outlives them.
  static Result<std::unique_ptr<Engine>> Open(Env* env, const std::string& model,
                                              const EngineOptions& options);
  // One with its own settings, of all ranks' ones: with a group it is that of this process.
  static Result<std::unique_ptr<Engine>> OpenRank(Env* env, const std::string& model,
                                                  const Settings& all, Settings own,
                                                  ProcessGroup* group);
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_OPEN_H_
