// The definition of attention over pages and of its partial states, with f64 sums; RefKernels
// forwards to these. The contracts are those of Kernels.
#ifndef HEADWAY_KERNELS_REF_REF_ATTENTION_H_
#define HEADWAY_KERNELS_REF_REF_ATTENTION_H_

#include <cstdint>
#include <span>

#include "kernels/attention.h"
#include "kernels/cache.h"

namespace headway::ref {

void TurnKeys(const PageFormat& format, const TurnKeysItem& item);
void StoreKv(const PageFormat& format, std::span<const StoreKvItem> items);
void EncodePages(const PageFormat& format, std::span<const EncodePagesItem> items);
void Attend(const PageFormat& format, int group, const AttentionParams& params,
            std::span<const AttentionItem> items);
void Merge(int head_dim, std::span<const MergeItem> items);
void ScaleHeld(int head_dim, int group, std::span<const ScaleHeldItem> items);

}  // namespace headway::ref

#endif  // HEADWAY_KERNELS_REF_REF_ATTENTION_H_
