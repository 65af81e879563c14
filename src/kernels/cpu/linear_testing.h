// Random products for the tests of Linear on CPUs and for the fuzzer.
#ifndef HEADWAY_KERNELS_CPU_LINEAR_TESTING_H_
#define HEADWAY_KERNELS_CPU_LINEAR_TESTING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/cpu/linear.h"

namespace headway {

struct NamedLinearCode {
  std::string name;
  cpu::LinearCode code;
};

// Every instruction set of this processor, and the code for tiles on emulated ones.
std::vector<NamedLinearCode> AllLinearCodes();

// Runs one to four ops of random dtypes on the same random tokens [rows, in] in one call, on one to
// three threads. What is wrong, in words: a result that is further from its f64 sum than rounding
// explains, one that differs between numbers of threads, or a write to what no op owns; empty where
// nothing is.
std::string LinearDisagreement(const cpu::LinearCode& code, Random& random, int64_t rows,
                               int64_t in);

}  // namespace headway

#endif  // HEADWAY_KERNELS_CPU_LINEAR_TESTING_H_
