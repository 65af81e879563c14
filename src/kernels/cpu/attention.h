// Attention over pages for CPUs: the part of CpuKernels that works on KV caches. The contracts are
// those of Kernels; results do not depend on the number of threads, on where pages lie, nor on the
// other items of a call.
#ifndef HEADWAY_KERNELS_CPU_ATTENTION_H_
#define HEADWAY_KERNELS_CPU_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/cache.h"
#include "kernels/cpu/isa.h"
#include "kernels/sizes.h"

namespace headway::cpu {

// Everything that the interface has, at any address that the elements have. Encoded rows are read
// in pairs of elements, and their codes and parameters lie on 2 bytes.
constexpr bool SupportsAttention(const AttentionRequest& request) {
  const bool encoded = request.encoding != Encoding::kNone;
  const auto element = encoded ? int64_t{2} : static_cast<int64_t>(DTypeBytes(request.dtype));
  return request.head_dim > 0 && request.group > 0 && request.page_alignment % element == 0 &&
         (!encoded || (request.head_dim % 2 == 0 && request.param_alignment % 2 == 0)) &&
         (request.encoding != Encoding::kLossless ||
          (request.dtype == DType::kBF16 && request.head_dim % 8 == 0));
}

// Working memory of Attend: AttentionScratchBytes(limits, threads) bytes, 64-byte aligned, for
// calls within `limits` on pools of at most `threads`.
struct AttentionScratch {
  std::byte* data = nullptr;
  KernelLimits limits;
  int threads = 0;
};

int64_t AttentionScratchBytes(const KernelLimits& limits, int threads);

// The arguments of Kernels::Attend.
struct AttentionCall {
  const PageFormat& format;
  int group;
  const AttentionParams& params;
  std::span<const AttentionItem> items;
};

// `isa` is one of SupportedIsas().
void Attend(ThreadPool& pool, Isa isa, const AttentionCall& call, const AttentionScratch& scratch);
void Merge(ThreadPool& pool, int head_dim, std::span<const MergeItem> items);
void ScaleHeld(ThreadPool& pool, int head_dim, int group, std::span<const ScaleHeldItem> items);
void StoreKv(ThreadPool& pool, Isa isa, const PageFormat& format,
             std::span<const StoreKvItem> items);
void TurnKeys(ThreadPool& pool, Isa isa, const PageFormat& format, const TurnKeysItem& item);
void EncodePages(ThreadPool& pool, Isa isa, const PageFormat& format,
                 std::span<const EncodePagesItem> items);

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_ATTENTION_H_
