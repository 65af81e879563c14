// What the tests of attention on CPUs share: every implementation that this processor runs, and
// what each may be off by.
#ifndef HEADWAY_KERNELS_CPU_ATTENTION_TESTING_H_
#define HEADWAY_KERNELS_CPU_ATTENTION_TESTING_H_

#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/attention_ops.h"
#include "kernels/testing/attention_problem.h"

namespace headway {

struct NamedCode {
  std::string name;
  cpu::AttentionCode code;
  bool has_tiles = false;
};

// Every instruction set of this processor, and the code for tiles on emulated ones.
std::vector<NamedCode> AllCodes();

// Whether the code takes the item on tiles: many queries, with queries and weights in bf16, or few,
// with all of the queries and weights in two parts.
enum class OnTiles { kNot, kMany, kFew };
OnTiles TilesOf(const NamedCode& code, const AttentionCase& c);

AttentionPrecision PrecisionOf(OnTiles on_tiles);

// The queries that the code computes with: many on tiles are rounded to bf16, scale included.
std::vector<float> QueriesOf(const NamedCode& code, const AttentionCase& c,
                             const std::vector<float>& q);

// Attend of items whose format, group and parameters are those of the case; scratch is of the size
// that the kernels ask for, filled with NaN before.
void RunOn(const NamedCode& code, int threads, const AttentionCase& c,
           std::span<const AttentionItem> items);

}  // namespace headway

#endif  // HEADWAY_KERNELS_CPU_ATTENTION_TESTING_H_
