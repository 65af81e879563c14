// What the tests of selection on CPUs share.
#ifndef HEADWAY_KERNELS_CPU_SELECTION_TESTING_H_
#define HEADWAY_KERNELS_CPU_SELECTION_TESTING_H_

#include <string>

#include "kernels/testing/selection_problem.h"

namespace headway {

// A random problem of the case on CpuKernels of `isa`, one of CpuIsas(), compared with the
// definition; and with itself on more threads, with all pages elsewhere. Empty where all agree.
std::string SelectionDisagreement(const SelectionCase& c, const std::string& isa, Random& random);

// The same of the rest of a decode behind the blocks.
std::string RestDisagreement(const SelectionCase& c, const std::string& isa, Random& random);

}  // namespace headway

#endif  // HEADWAY_KERNELS_CPU_SELECTION_TESTING_H_
