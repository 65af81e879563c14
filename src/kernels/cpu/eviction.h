// Eviction's kernels for CPUs: the part of CpuKernels that weighs a prompt's tokens and gathers the
// kept ones. The contracts are those of Kernels; results do not depend on the number of threads.
#ifndef HEADWAY_KERNELS_CPU_EVICTION_H_
#define HEADWAY_KERNELS_CPU_EVICTION_H_

#include <span>

#include "base/thread_pool.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/eviction.h"

namespace headway::cpu {

// The arguments of Kernels::KeyLogits, and of others that go over keys, that all items share.
struct KeyLogitsCall {
  const PageFormat& format;
  int group;
  float scale;
};

void KeyLogits(ThreadPool& pool, const Elementwise& code, const KeyLogitsCall& call,
               std::span<const KeyLogitsItem> items);
void KeyWeights(ThreadPool& pool, std::span<const KeyWeightsItem> items);
void GatherSlots(ThreadPool& pool, const PageFormat& format,
                 std::span<const GatherSlotsItem> items);

struct QueryShape {
  int64_t head_dim;
  int heads;
};

void QueryMoments(ThreadPool& pool, const QueryShape& shape,
                  std::span<const QueryMomentsItem> items);
void ExpectedLogits(ThreadPool& pool, const Elementwise& code, const KeyLogitsCall& call,
                    std::span<const ExpectedLogitsItem> items);
void ValueNorms(ThreadPool& pool, const Elementwise& code, const PageFormat& format,
                std::span<const ValueNormsItem> items);
// The call's scale is not asked for.
void ProjectedNorms(ThreadPool& pool, const Elementwise& code, const KeyLogitsCall& call,
                    std::span<const ProjectedNormsItem> items);

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_EVICTION_H_
