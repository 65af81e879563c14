// Whether numbers are finite.
#ifndef HEADWAY_MODEL_WEIGHTS_FINITE_H_
#define HEADWAY_MODEL_WEIGHTS_FINITE_H_

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace headway {

// True where one of `count` numbers is a NaN or an infinity. `data` needs no alignment.
bool HasNonFinite(const std::byte* data, DType dtype, int64_t count);

}  // namespace headway

#endif  // HEADWAY_MODEL_WEIGHTS_FINITE_H_
