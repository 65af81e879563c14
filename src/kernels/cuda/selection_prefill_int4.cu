#include "kernels/cuda/selection_prefill_tiles.h"

namespace headway::cuda {

template cudaError_t LaunchListedTiles<DType::kBF16, Rows::kInt4>(cudaStream_t stream,
                                                                  const ListedWork& work);
template cudaError_t LaunchListedTiles<DType::kF16, Rows::kInt4>(cudaStream_t stream,
                                                                 const ListedWork& work);
template int64_t ListedTileBytes<Rows::kInt4>(int head_dim);

}  // namespace headway::cuda
