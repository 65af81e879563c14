// Matrix × a few vectors, the products of decode: bound by reading the matrix, which is therefore
// read from memory once for all vectors.
#ifndef HEADWAY_KERNELS_CPU_MATVEC_H_
#define HEADWAY_KERNELS_CPU_MATVEC_H_

#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/linear.h"

namespace headway::cpu {

// Up to here this is faster than a matrix product. More than six vectors take two passes over each
// piece of the matrix, the second from the level-2 cache.
inline constexpr int64_t kMatVecRows = 12;

// Outputs [begin, end) of `op` for x [rows, in], rows <= kMatVecRows, on the calling thread. The
// order of additions of an output depends on `in` and the instruction set alone.
void MatVec(Isa isa, const LinearOp& op, const float* x, int64_t rows, int64_t begin, int64_t end);

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_MATVEC_H_
