// Which of Highway's targets the kernels are compiled for: AVX2 and AVX3 (AVX-512), one function
// table each. Included before hwy/highway.h. Highway's own dispatch is a choice for the whole
// process; ours is one of each Kernels object, so the tables are picked by Isa instead.
#ifndef HEADWAY_KERNELS_CPU_HWY_TARGETS_H_
#define HEADWAY_KERNELS_CPU_HWY_TARGETS_H_

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)

#endif  // HEADWAY_KERNELS_CPU_HWY_TARGETS_H_
