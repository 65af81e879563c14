// Kernels in which ranks on GPUs exchange values through memory that all of them reach.
#ifndef HEADWAY_PARALLEL_PEER_PEER_KERNELS_H_
#define HEADWAY_PARALLEL_PEER_PEER_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "parallel/communicator.h"

namespace headway::peer {

inline constexpr int kMaxRanks = 16;
// Words of four bytes that one call sends through mailboxes, at most.
inline constexpr int64_t kMailWords = int64_t{1} << 15;
// Blocks of threads of a call that works in the ranks' own buffers, at most.
inline constexpr int kMaxBlocks = 64;

// Bytes of a rank's mailbox. It begins as zeros.
int64_t MailboxBytes(int ranks);

// What a rank's kernel knows of the group; the same on all ranks but for `rank` and `failed`.
struct Link {
  int rank = 0;
  int ranks = 1;
  uint32_t call = 0;  // number of this call: 1 and on, and 1 again behind the largest
  uint32_t mail = 0;  // number of calls before it that went through mailboxes
  bool ahead = true;  // the next kernel may start before this one has ended
  std::byte* mailboxes[kMaxRanks] = {};
  const volatile uint32_t* left = nullptr;  // not 0: a rank has ended
  volatile uint32_t* failed = nullptr;      // is set where this rank has waited for one that has
};

// Through mailboxes, up to kMailWords: data [count] becomes the sum over the ranks, in their order,
// or data [bytes] what rank `from` has.
cudaError_t SumByMail(const Link& link, float* data, int64_t count, cudaStream_t stream);
cudaError_t BroadcastByMail(const Link& link, std::byte* data, int64_t bytes, int from,
                            cudaStream_t stream);

// In the buffers of the ranks, which all GPUs reach. The same sum; columns of SharedColumns; a
// meeting of all ranks.
cudaError_t SumInPlace(const Link& link, float* data, int64_t count, cudaStream_t stream);
// Multiprocessors that products beside a sum in place had better leave to it.
int LeftToSums(int ranks);
cudaError_t GatherInPlace(const Link& link, const SharedColumns& matrix, cudaStream_t stream);
cudaError_t Meet(const Link& link, cudaStream_t stream);

// 0 for the columns of the others: then a sum of the matrices gathers them.
cudaError_t ClearOthers(const SharedColumns& matrix, cudaStream_t stream);

}  // namespace headway::peer

#endif  // HEADWAY_PARALLEL_PEER_PEER_KERNELS_H_
