// Runs of an engine under calls to the system that fail: what is tried again, and what has to hold
// however a run ends.
#ifndef HEADWAY_TESTS_SUPPORT_FAULT_RUN_H_
#define HEADWAY_TESTS_SUPPORT_FAULT_RUN_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/fault_env.h"
#include "engine/open.h"
#include "support/api.h"

namespace headway {

struct FaultRun {
  Status status;  // of the first call that failed
  bool opened = false;
  bool answered = false;  // the last request
};

// An engine and a context of it, of one sequence of `length` tokens; without one where that failed.
struct FaultContext {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Context> context;
};
inline FaultContext OpenUnderFaults(Env* env, const std::string& model,
                                    const EngineOptions& options, int64_t length, FaultRun* run) {
  FaultContext made;
  Result<std::unique_ptr<Engine>> engine = EngineOpener::Open(env, model, options);
  run->status = engine.status();
  if (!engine.ok()) return made;
  made.engine = std::move(*engine);
  Result<std::unique_ptr<Context>> context = made.engine->NewContext({{length}});
  run->status = context.status();
  if (!context.ok()) return made;
  made.context = std::move(*context);
  run->opened = true;
  return made;
}

// What failed is tried again on what it left, and then, as a page may be lost for good, from the
// beginning.
inline Result<Generation> GenerateUnderFaults(Context& context, const Request& request,
                                              FaultRun* run) {
  Result<Generation> made = GenerateOne(context, request);
  if (run->status.ok()) run->status = made.status();
  if (!made.ok()) made = GenerateOne(context, request);
  if (!made.ok()) {
    context.Reset();
    made = GenerateOne(context, request);
  }
  run->answered = made.ok();
  return made;
}

// As headway run does, however the answer ended.
inline void SaveUnderFaults(Context& context, FaultRun* run) {
  const Status saved = context.SaveSession();
  if (run->status.ok()) run->status = saved;
  if (!saved.ok()) (void)context.SaveSession().ok();
}

// What failed once works when it is tried again, the error is one line, and nothing leaks.
inline void ExpectHandled(const FaultEnv& env, const FaultRun& run, FaultTimes times) {
  EXPECT_TRUE(run.answered || !run.opened || times == FaultTimes::kForGood) << run.status.message();
  EXPECT_TRUE(env.faults() > 0 || run.status.ok()) << run.status.message();
  EXPECT_EQ(run.status.message().find('\n'), std::string::npos) << run.status.message();
  EXPECT_EQ(env.LiveAllocations(), 0);
  EXPECT_EQ(env.LiveBytes(), 0);
  EXPECT_EQ(env.LiveFiles(), 0);
  EXPECT_EQ(env.LiveMaps(), 0);
}

}  // namespace headway

#endif  // HEADWAY_TESTS_SUPPORT_FAULT_RUN_H_
