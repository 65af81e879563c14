// What attention takes: of one launch on the device, and of the host's cores.
#ifndef HEADWAY_PLAN_ATTENTION_COST_H_
#define HEADWAY_PLAN_ATTENTION_COST_H_

#include "base/machine_profile.h"
#include "base/types.h"
#include "plan/cost.h"

namespace headway::plan {

enum class AttendsOn { kDevice, kHost };
// Codes are turned into numbers more slowly than they are read: so many unencoded bytes take as
// long as `bytes` of `keys` keys, counted for each head.
double BytesInTime(const Subject& subject, double bytes, double keys, AttendsOn on);

// One launch over `keys` keys of `heads` KV heads, which fills the device as `filling` of its
// `queries` do.
double AttentionSeconds(const MachineProfile& machine, const Subject& subject, int heads,
                        double keys, double queries, double filling);

// Merging a prefill's f32 state with another: both are written and read once.
double MergeSeconds(const MachineProfile& machine, const ModelShape& shape, int heads,
                    double queries);

// Of a decode step that verifies drafts, so many tokens of a sequence in all: times as long as one
// token takes on the device, and share of the rate at which the host's cores take one's keys.
double VerifyingTimes(const ModelShape& shape, double tokens);
double VerifyingHostRate(double tokens);

}  // namespace headway::plan

#endif  // HEADWAY_PLAN_ATTENTION_COST_H_
