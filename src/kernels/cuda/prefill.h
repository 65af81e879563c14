// Attention of many queries against one range of keys: by cuDNN where the range is dense and every
// query sees all of it up to its own position, by the tile kernel (attention_prefill.h) elsewhere
// and for the few last keys of a range that no plan of cuDNN fits,
// and by the decode kernel, some tokens at a time, for what has no tensor cores.
#ifndef HEADWAY_KERNELS_CUDA_PREFILL_H_
#define HEADWAY_KERNELS_CUDA_PREFILL_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "headway/status.h"
#include "kernels/attention.h"
#include "kernels/cuda/sdpa.h"
#include "kernels/sizes.h"

namespace headway::cuda {

// Queries a KV head (tokens * group) that AttendDecode takes at once.
inline constexpr int64_t kFewQueriesMax = 64;

// Memory for cuDNN's partial states, as PrefillLayout has it, and for decoded pages; cuDNN.
struct PrefillResources {
  std::byte* data = nullptr;
  std::byte* decoded = nullptr;  // DecodedBytes
  KernelLimits limits;           // q and results are limits.activation
  Sdpa* sdpa = nullptr;          // may be null
};

// Kernels::Attend of one item without a split. Encoded pages are decoded first, some heads at a
// time. An item of more tokens than the limits have, and one that neither can do, is an error.
//
// Reads q up to half as many tokens beyond the last as there are (cuDNN's plans are for few sizes):
// that must be memory, whatever it holds.
Status AttendPrefill(cudaStream_t stream, const PrefillResources& resources,
                     const PageFormat& format, int group, const AttentionParams& params,
                     const AttentionItem& item);

// Some heads of an encoded item, whose keys are plain ones in the memory for that.
struct DecodedPiece {
  PageRun from;  // encoded
  AttentionItem item;
};

// The pieces that an encoded item is decoded in, one behind the other. Each has all keys of its
// heads, and as much memory behind them as PrefillPieces may make use of: keys are added as those
// of a plain item are that is readable so far. Only of more keys than the memory holds a head's
// pieces follow one another, as long as it, whatever the heads.
std::vector<DecodedPiece> DecodedPieces(const PageFormat& format, int group,
                                        const AttentionItem& item,
                                        const PrefillResources& resources);
// The format of their pages.
PageFormat DecodedFormat(const PageFormat& format);

// How an item is cut: keys [begin, begin + count), each piece after the first merged into the
// state.
struct PrefillPiece {
  // A plan of cuDNN for the bucket of the count, one for exactly so many keys, or the tile kernel.
  enum class By : uint8_t { kBucket, kExact, kTiles };

  int64_t begin = 0;
  int64_t count = 0;
  bool causal = false;
  By by = By::kBucket;

  bool operator==(const PrefillPiece&) const = default;
};
// Depends on shapes and lengths alone. cuDNN does the first. No pieces: it cannot.
std::vector<PrefillPiece> PrefillPieces(const PageFormat& format, DType activation, int group,
                                        const AttentionParams& params, const AttentionItem& item);

}  // namespace headway::cuda

#endif  // HEADWAY_KERNELS_CUDA_PREFILL_H_
