// Parts of the keys of a step's sequences in decode, as long as lets those that a processor attends
// to at once begin and end together. Parts that are a few more than those run alone at the end, for
// as long as all others took: a sequence of 40,960 keys lost a quarter of attention's time to them.
#ifndef HEADWAY_KERNELS_FITTED_SPLIT_H_
#define HEADWAY_KERNELS_FITTED_SPLIT_H_

#include <cstdint>
#include <span>

namespace headway {

// How the keys of sequences are cut, all of which every head of a layer attends to.
struct KeyCut {
  int kv_heads = 0;
  int64_t segment = 0;  // keys that are cut into parts by themselves
  int64_t page_slots = 0;
  int64_t least = 0;    // of a part: KernelSizes::DecodeSplit
  int64_t at_once = 0;  // Kernels::PartsAtOnce
};

// Keys of a part of sequences of these lengths, in whole pages. Depends on its arguments alone.
int64_t FittedSplit(std::span<const int64_t> lengths, const KeyCut& cut);

}  // namespace headway

#endif  // HEADWAY_KERNELS_FITTED_SPLIT_H_
