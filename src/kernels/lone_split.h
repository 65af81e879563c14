// Parts of a lone sequence's keys in decode: as long as lets all parts that a processor attends to
// at once begin and end together. Parts that are a few more than those would run alone at the end,
// for as long as all others took.
#ifndef HEADWAY_KERNELS_LONE_SPLIT_H_
#define HEADWAY_KERNELS_LONE_SPLIT_H_

#include <cstdint>

namespace headway {

// The keys of a step's only sequence, all of which every head of a layer attends to.
struct LoneKeys {
  int64_t keys = 0;
  int kv_heads = 0;
  int64_t segment = 0;  // keys that are cut into parts by themselves
  int64_t page_slots = 0;
};

// Keys of a part: whole pages, and not fewer than `least`, which is DecodeSplit's. `at_once` is
// Kernels::PartsAtOnce.
int64_t LoneSplit(const LoneKeys& lone, int64_t least, int64_t at_once);

}  // namespace headway

#endif  // HEADWAY_KERNELS_LONE_SPLIT_H_
