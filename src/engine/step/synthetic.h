// Random keys and values, for measuring steps over long contexts without computing them.
#ifndef HEADWAY_ENGINE_STEP_SYNTHETIC_H_
#define HEADWAY_ENGINE_STEP_SYNTHETIC_H_

#include <cstdint>

#include "engine/step/step_context.h"
#include "headway/status.h"

namespace headway {

// Fills k and v of the first `rows` rows of the activations, and X, with numbers drawn from `seed`.
Status DrawActivations(const StepContext& context, int64_t rows, uint64_t seed);

// Draws k of these rows anew, in runs of 16 rows whose sizes differ: the deviation of their
// logarithms is `spread`. So some blocks of keys are chosen again and again, as those of a text
// are, where the others are all alike.
Status DrawUnequalKeys(const StepContext& context, int64_t rows, uint64_t seed, double spread);

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_SYNTHETIC_H_
