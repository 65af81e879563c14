// Writes the actual sizes of a padded plan. A kernel takes them as arguments, so that no host
// memory has to stay as it is until the stream gets there.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sdpa.h"

namespace headway::cuda {
namespace {

__global__ void SetLengths(int32_t* tokens_at, int32_t tokens, int32_t* keys_at, int32_t keys) {
  FollowPrevious();
  *tokens_at = tokens;
  *keys_at = keys;
}

}  // namespace

cudaError_t SetSdpaLengths(cudaStream_t stream, int32_t* tokens_at, int32_t tokens,
                           int32_t* keys_at, int32_t keys) {
  return LaunchKernel(SetLengths, 1, 1, 0, stream, tokens_at, tokens, keys_at, keys);
}

}  // namespace headway::cuda
