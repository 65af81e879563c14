// How many tokens the pages of a cache have, where nobody says.
#ifndef HEADWAY_ENGINE_PAGE_SIZE_H_
#define HEADWAY_ENGINE_PAGE_SIZE_H_

#include "base/types.h"
#include "engine/settings.h"

namespace headway {

// The fewest tokens, kDefaultPageSlots or that times a power of two, whose lossless codes take at
// most 5/6 of what plain numbers take in a slab: both are padded to whole blocks of the disk, which
// of 64 tokens of a head of 64 elements makes them equal.
int LosslessPageSlots(int head_dim);

// Sets the settings' page for a model. Self-Extend keeps it, whose window is read in pages.
void FitPages(const ModelShape& shape, Settings* settings);

}  // namespace headway

#endif  // HEADWAY_ENGINE_PAGE_SIZE_H_
