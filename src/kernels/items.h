// Items of several KV heads and several partial states, taken apart: for kernels that work on one
// head and one state at a time.
#ifndef HEADWAY_KERNELS_ITEMS_H_
#define HEADWAY_KERNELS_ITEMS_H_

#include <span>
#include <vector>

#include "kernels/attention.h"

namespace headway {

// Keys [begin, begin + count) of one head of the run.
KeyRun KeysOf(const PageFormat& format, const KeyRun& keys, int head, int64_t begin, int64_t count);

// Partial states of a decode item: ceil(keys / split), one without a split.
int64_t PartsOf(const AttentionItem& item);

// What an item asks for; item.keys.pages.params tells whether its pages are encoded.
AttentionRequest RequestOf(const PageFormat& format, int group, const AttentionParams& params,
                           const AttentionItem& item);

// The same work as items of one head and one state each. `activation_bytes` is the size of an
// element of q.
std::vector<AttentionItem> SingleStates(const PageFormat& format, int group,
                                        std::span<const AttentionItem> items,
                                        int64_t activation_bytes = sizeof(float));

}  // namespace headway

#endif  // HEADWAY_KERNELS_ITEMS_H_
