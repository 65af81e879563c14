#include "kernels/cuda/selection_prefill_tiles.h"

namespace headway::cuda {

template cudaError_t LaunchListedTiles<DType::kBF16, Rows::kBF16>(cudaStream_t stream,
                                                                  const ListedWork& work);
template int64_t ListedTileBytes<Rows::kBF16>(int head_dim);
template cudaError_t LaunchListedTiles<DType::kF16, Rows::kF16>(cudaStream_t stream,
                                                                const ListedWork& work);
template int64_t ListedTileBytes<Rows::kF16>(int head_dim);

}  // namespace headway::cuda
