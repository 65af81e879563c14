// What the kernels for GPUs take of memory, how they cut decode, and what they can do: arithmetic
// of the host alone, so that a plan for a GPU can be made on a machine, and by a build, without
// one.
#ifndef HEADWAY_KERNELS_CUDA_WORKSPACE_H_
#define HEADWAY_KERNELS_CUDA_WORKSPACE_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/lossless_codec.h"
#include "kernels/sizes.h"

namespace headway::cuda {

// Device memory that a product may use at most.
inline constexpr int64_t kGemmWorkspaceBytes = int64_t{32} << 20;
// cuDNN's attention asks for some KiB at most; a plan that wants more is not used.
inline constexpr int64_t kSdpaWorkspaceBytes = int64_t{16} << 20;

// A plan of cuDNN costs 55 to 70 ms and is for one size, so sizes share plans: this is the smallest
// of 128, 192, 256, 384, 512, ... (powers of two and 1.5 times them) that holds `count`.
constexpr int64_t SdpaBucket(int64_t count) {
  const auto power = std::bit_ceil(static_cast<uint64_t>(count > 128 ? count : 128));
  const auto size = static_cast<int64_t>(power);
  return size > 128 && count <= size / 4 * 3 ? size / 4 * 3 : size;
}

// A prefill's partial states.
struct PrefillLayout {
  explicit PrefillLayout(const KernelLimits& limits) {
    const int64_t rows = SdpaBucket(limits.rows) * limits.query_heads;
    o = RoundUp(rows * limits.head_dim * 2, 256);
    lse = RoundUp(rows * 4, 256);
  }
  int64_t o, lse;
  int64_t total() const { return kSdpaWorkspaceBytes + o + lse; }
};

// Keys and values of encoded pages, decoded for a prefill: so many of a KV head in all, so that of
// a long range as many heads as that holds are attended to at once.
inline constexpr int64_t kDecodedSlots = 131072;
constexpr int64_t DecodedBytes(const KernelLimits& limits) {
  if (limits.encoding == Encoding::kNone || limits.activation == DType::kF32) return 0;
  return RoundUp(2 * kDecodedSlots * limits.head_dim * 2, 256);
}

// Items of one call of sampling, the logits of one of its blocks, and what a row and a block keep.
inline constexpr int64_t kSampleRowsMax = 16;
inline constexpr int64_t kSampleBlockLogits = 1024;
inline constexpr int64_t kSampleRowBytes = 16432;
inline constexpr int64_t kSampleBlockBytes = 16;
constexpr int64_t SampleMemoryBytes(int64_t vocab) {
  return kSampleRowsMax *
         (kSampleRowBytes + CeilDiv(vocab, kSampleBlockLogits) * kSampleBlockBytes);
}

// Rows of one call of scoring, and blocks that share one: each keeps a number.
inline constexpr int64_t kScoreRowsMax = 128;
inline constexpr int64_t kScoreBlocksMax = 32;
inline constexpr int64_t kScoreMemoryBytes = kScoreRowsMax * kScoreBlocksMax * 4;

// Small host data (token ids, positions) goes through this many pinned buffers in turn, of so many
// bytes at least: those of the items of some hundred sequences that decode.
inline constexpr int kUploads = 4;
inline constexpr int64_t kUploadBytes = int64_t{256} << 10;
// Products of the same rows that become one at most: q, k and v.
inline constexpr int64_t kJoinedMax = 3;

struct WorkspaceLayout {
  explicit WorkspaceLayout(const KernelLimits& limits)
      : upload(RoundUp(std::max<int64_t>(limits.rows * 4, kUploadBytes), 256)),
        prefill(RoundUp(PrefillLayout(limits).total(), 256)),
        bias(RoundUp(kJoinedMax * limits.max_out * 4, 256)),
        sample(RoundUp(SampleMemoryBytes(limits.vocab), 256)),
        decoded(DecodedBytes(limits)),
        arrived(RoundUp(limits.query_heads * 4, 256)),
        total(kGemmWorkspaceBytes + kUploads * upload + prefill + bias + sample + decoded +
              kScoreMemoryBytes + arrived) {}
  int64_t upload, prefill, bias, sample, decoded, arrived, total;
};

// Parts begin and end slowly, so they are long, as long as all heads' parts still are as many as
// the blocks of threads that a large GPU runs at once. Beyond 1,024 keys the last parts, which run
// alone, are waited for longer than is gained, but where it is known how many parts there are
// (FittedSplit).
constexpr int64_t DecodeSplitOf(int64_t keys, int64_t kv_heads) {
  constexpr int64_t kAtOnce = 264;
  for (int64_t split : {128, 192, 256, 384, 512, 768}) {
    if (kv_heads * keys <= kAtOnce * split) return split;
  }
  return 1024;
}

// Parts of lists are taken by as many blocks of threads as a large GPU has multiprocessors: more
// parts than those would wait for the first ones to end. Each head's last part is short, and its
// open page is one more.
constexpr int64_t ListedSplitOf(int heads, int64_t keys) {
  constexpr int64_t kAtOnce = 128;
  constexpr int64_t kShortest = 128;
  constexpr int64_t kLongest = 512;
  int64_t split = kShortest;
  while (split < kLongest && heads * keys / split + 3 * heads / 2 > kAtOnce) split *= 2;
  return split;
}

// Heads of up to kHeadDimMax elements in multiples of 8, in any encoding, with pages on 16 bytes
// and parameters on 4; keys are neither rotated nor weighed.
inline constexpr int kHeadDimMax = 256;
constexpr bool SupportsAttention(const AttentionRequest& request) {
  return request.head_dim >= 8 && request.head_dim <= kHeadDimMax && request.head_dim % 8 == 0 &&
         request.group > 0 && request.page_alignment % 16 == 0 &&
         (request.encoding == Encoding::kNone || request.param_alignment % 4 == 0) &&
         (request.encoding != Encoding::kLossless || request.dtype == DType::kBF16) &&
         !request.key_transform && !request.key_mass;
}

// Blocks of 8 to 64 slots in multiples of 8, in pages of any dtype and encoding, lossless ones with
// as many escapes as a warp holds, for groups of up to kSelectGroupMax query heads.
inline constexpr int kSelectGroupMax = 16;
inline constexpr int kSelectSlotsMax = 64;
inline constexpr int64_t kSelectEscapesMax = 128;
constexpr bool SelectsLossless(const PageFormat& format) {
  return lossless::Takes(format) &&
         lossless::EscapeEntries(format.page_slots, format.head_dim) <= kSelectEscapesMax;
}
constexpr bool SupportsSelection(const PageFormat& format, const SummaryFormat& summary,
                                 int group) {
  return format.head_dim >= 8 && format.head_dim <= kHeadDimMax && format.head_dim % 8 == 0 &&
         (format.encoding != Encoding::kLossless || SelectsLossless(format)) && group >= 1 &&
         group <= kSelectGroupMax && summary.block_slots >= 8 &&
         summary.block_slots <= kSelectSlotsMax && summary.block_slots % 8 == 0 &&
         format.page_slots % summary.block_slots == 0 &&
         (!summary.sketched() || summary.kind == SummaryKind::kMoments);
}

// Query heads of a group that one block of threads attends for to listed blocks, at most: registers
// hold no more.
constexpr int AttendGroupMax(bool f32, int head_dim) { return head_dim <= 128 && !f32 ? 8 : 4; }
constexpr int AttendGroupMax(const PageFormat& format) {
  const bool f32 = format.encoding == Encoding::kNone && format.dtype == DType::kF32;
  return AttendGroupMax(f32, format.head_dim);
}

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_WORKSPACE_H_
