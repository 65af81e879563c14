#include "kernels/cuda/selection_prefill_tiles.h"

namespace headway::cuda {

template cudaError_t LaunchListedTiles<DType::kBF16, Rows::kLossless>(cudaStream_t stream,
                                                                      const ListedWork& work);
template int64_t ListedTileBytes<Rows::kLossless>(int head_dim);

}  // namespace headway::cuda
