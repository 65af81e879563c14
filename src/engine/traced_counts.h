// TracedCounts: what each step chose of its keys and where it found them, as graphs of a trace.
#ifndef HEADWAY_ENGINE_TRACED_COUNTS_H_
#define HEADWAY_ENGINE_TRACED_COUNTS_H_

#include "base/env.h"
#include "device/trace.h"
#include "engine/assembly.h"
#include "headway/context.h"

namespace headway {

class TracedCounts {
 public:
  // All outlive the counts.
  TracedCounts(const Assembly& assembly, Env& env, Trace& trace)
      : assembly_(assembly), env_(env), trace_(trace) {}

  // After each step, which is waited for. What is 0 is not drawn: steps may choose nothing.
  void Add();

 private:
  const Assembly& assembly_;
  Env& env_;
  Trace& trace_;
  Timings before_;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_TRACED_COUNTS_H_
