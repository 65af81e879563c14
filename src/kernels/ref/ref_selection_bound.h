// Lists that bound what they leave out, by the definition: see selection_bound.h.
#ifndef HEADWAY_KERNELS_REF_REF_SELECTION_BOUND_H_
#define HEADWAY_KERNELS_REF_REF_SELECTION_BOUND_H_

#include "kernels/ref/ref_selection_keys.h"
#include "kernels/ref/ref_selection_parts.h"

namespace headway::ref {

// What is listed of an item whose budget has a bound, by the codes of all blocks' worth.
Lists ListBounded(const KeyScoring& scoring, const Codes& codes);

}  // namespace headway::ref

#endif  // HEADWAY_KERNELS_REF_REF_SELECTION_BOUND_H_
