// NCCL, which is loaded when ranks in processes compute on GPUs. What is used of it is declared
// here, as all versions of NCCL 2 have it, so that a build needs no header of it.
#ifndef HEADWAY_PARALLEL_NCCL_NCCL_LIBRARY_H_
#define HEADWAY_PARALLEL_NCCL_NCCL_LIBRARY_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "headway/status.h"

namespace headway::nccl {

using Comm = struct ncclComm*;
// Which rank 0 makes, and all ranks give to CommInitRank.
struct UniqueId {
  char bytes[128] = {};
};
// Results of calls.
inline constexpr int kSuccess = 0;
inline constexpr int kInProgress = 7;
// Types of elements, and what is done with them.
inline constexpr int kInt8 = 0;
inline constexpr int kFloat32 = 7;
inline constexpr int kSum = 0;

struct Library {
  int (*GetVersion)(int* version) = nullptr;
  int (*GetUniqueId)(UniqueId* id) = nullptr;
  int (*CommInitRank)(Comm* comm, int ranks, UniqueId id, int rank) = nullptr;
  int (*CommGetAsyncError)(Comm comm, int* error) = nullptr;
  int (*CommAbort)(Comm comm) = nullptr;
  const char* (*GetErrorString)(int error) = nullptr;
  int (*AllReduce)(const void* from, void* to, size_t count, int type, int operation, Comm comm,
                   cudaStream_t stream) = nullptr;
  int (*Broadcast)(const void* from, void* to, size_t count, int type, int root, Comm comm,
                   cudaStream_t stream) = nullptr;
};

// The library, which stays loaded. kUnsupported where it is not installed, or too old.
Result<const Library*> LoadLibrary();

// "NCCL, <what>: <NCCL's words>"; ok for kSuccess.
Status StatusOf(const Library& library, int error, const std::string& what);

}  // namespace headway::nccl

#endif  // HEADWAY_PARALLEL_NCCL_NCCL_LIBRARY_H_
