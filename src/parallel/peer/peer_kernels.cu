// A value travels in a packet with the number of its call: who polls for a packet with that number
// needs no other signal, and no fence. Mailboxes have room for two calls by turns. A rank sends the
// mail of a call only when it has all of the one before, which the others sent behind the one
// before that: so nobody still reads what is overwritten.
#include <algorithm>

#include "kernels/cuda/launch.h"
#include "parallel/peer/peer_kernels.h"

namespace headway::peer {
namespace {

constexpr int kThreads = 256;
constexpr uint32_t kPollsBetweenLooks = 1024;  // at whether a rank has ended: that is on the host
constexpr int kLastPolls = 4096;  // behind that word, which may come before packets: some ms

// Of a sum in place, each block of which takes a multiprocessor: as few as fill the links, measured
// on H100s. Two ranks with 8 send 199 GB/s, with 32 303; four with 8 290, with 12 and more 310 to
// 330.
constexpr int kSumThreads = 512;
constexpr int SumBlocks(int ranks) { return ranks <= 2 ? 32 : 8; }
static_assert(SumBlocks(2) <= kMaxBlocks && SumBlocks(kMaxRanks) <= kMaxBlocks);

struct alignas(16) Packet {
  uint32_t first = 0, first_call = 0, second = 0, second_call = 0;
};
constexpr int64_t kMailPackets = kMailWords / 2;

struct Mailbox {
  std::byte* memory;
  int ranks;

  // [kMailPackets] of one sender.
  __host__ __device__ Packet* Mail(uint32_t turn, int from) const {
    return reinterpret_cast<Packet*>(memory) + (int64_t{turn & 1} * ranks + from) * kMailPackets;
  }
  // One sender's block of threads has begun, with its buffer, or has done what it does.
  __host__ __device__ Packet* Begun(int block, int from) const {
    return Mail(0, 0) + 2 * ranks * kMailPackets + block * ranks + from;
  }
  __host__ __device__ Packet* Done(int block, int from) const {
    return Begun(kMaxBlocks, 0) + block * ranks + from;
  }
};

__device__ Mailbox MailboxOf(const Link& link, int rank) {
  return {link.mailboxes[rank], link.ranks};
}

// Halves of a packet are written and read whole.
__device__ void Send(Packet* to, uint32_t first, uint32_t second, uint32_t call) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(first), "r"(call),
               "r"(second), "r"(call)
               : "memory");
}

__device__ Packet Read(const Packet* from) {
  Packet packet;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(packet.first), "=r"(packet.first_call), "=r"(packet.second),
                 "=r"(packet.second_call)
               : "l"(from)
               : "memory");
  return packet;
}

__device__ bool IsOf(const Packet& packet, uint32_t call) {
  return packet.first_call == call && packet.second_call == call;
}

// How long a thread polls: until a rank has ended, and a while more, but for calls behind the first
// that has waited in vain.
class Patience {
 public:
  __device__ explicit Patience(const Link& link) : link_(link) {}
  __device__ bool Ends() {
    if (!ended_) {
      if (++polls_ % kPollsBetweenLooks == 0) ended_ = *link_.left != 0;
      return false;
    }
    if (++last_polls_ < kLastPolls && *link_.failed == 0) return false;
    *link_.failed = 1;
    return true;
  }

 private:
  const Link& link_;
  uint32_t polls_ = 0;
  int last_polls_ = 0;
  bool ended_ = false;
};

// Nobody is two calls ahead. Between the last number and the first lies 0, that of no packet.
__device__ bool IsOfOrNext(const Packet& packet, uint32_t call) {
  return packet.first_call - call <= 2 && packet.second_call - call <= 2 &&
         packet.first_call != 0 && packet.second_call != 0;
}

using IsWanted = bool(const Packet&, uint32_t call);

template <IsWanted kIsWanted = IsOf>
__device__ bool Await(const Link& link, const Packet* from, Packet* packet) {
  Patience patience(link);
  while (!kIsWanted(*packet = Read(from), link.call)) {
    if (patience.Ends()) return false;
  }
  return true;
}

__device__ void Begin(const Link& link) {
  if (link.ahead) cuda::LetNextStart();
  cuda::WaitForPrevious();
}

// The packets at `index` of all ranks but this one.
template <int kBound>
__device__ bool AwaitMail(const Link& link, int64_t index, Packet (&mail)[kBound]) {
  const Mailbox own = MailboxOf(link, link.rank);
  Patience patience(link);
  while (true) {
#pragma unroll
    for (int r = 0; r < kBound; ++r) {
      if (r < link.ranks && r != link.rank) mail[r] = Read(own.Mail(link.mail, r) + index);
    }
    bool all = true;
#pragma unroll
    for (int r = 0; r < kBound; ++r) {
      if (r < link.ranks && r != link.rank) all &= IsOf(mail[r], link.call);
    }
    if (all) return true;
    if (patience.Ends()) return false;
  }
}

template <int kBound>
__global__ void __launch_bounds__(kThreads) SumMail(Link link, float* data, int64_t count) {
  Begin(link);
  const int64_t packets = (count + 1) / 2, step = int64_t{gridDim.x} * kThreads;
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (int64_t i = first; i < packets; i += step) {
    const uint32_t a = __float_as_uint(data[2 * i]);
    const uint32_t b = 2 * i + 1 < count ? __float_as_uint(data[2 * i + 1]) : 0;
    for (int r = 0; r < link.ranks; ++r) {
      if (r == link.rank) continue;
      Send(MailboxOf(link, r).Mail(link.mail, link.rank) + i, a, b, link.call);
    }
  }
  for (int64_t i = first; i < packets; i += step) {
    Packet mail[kBound];
    if (!AwaitMail(link, i, mail)) return;
    const bool pair = 2 * i + 1 < count;
    const float own_a = data[2 * i], own_b = pair ? data[2 * i + 1] : 0.0f;
    float a = 0.0f, b = 0.0f;
#pragma unroll
    for (int r = 0; r < kBound; ++r) {
      if (r >= link.ranks) break;
      const float more_a = r == link.rank ? own_a : __uint_as_float(mail[r].first);
      const float more_b = r == link.rank ? own_b : __uint_as_float(mail[r].second);
      a = r == 0 ? more_a : a + more_a;
      b = r == 0 ? more_b : b + more_b;
    }
    data[2 * i] = a;
    if (pair) data[2 * i + 1] = b;
  }
}

// Up to four bytes that lie anywhere.
__device__ uint32_t ReadBytes(const std::byte* data, int64_t bytes) {
  uint32_t word = 0;
  for (int64_t i = 0; i < bytes && i < 4; ++i) word |= static_cast<uint32_t>(data[i]) << (8 * i);
  return word;
}

__device__ void WriteBytes(uint32_t word, std::byte* data, int64_t bytes) {
  for (int64_t i = 0; i < bytes && i < 4; ++i) {
    data[i] = static_cast<std::byte>(word >> (8 * i) & 255);
  }
}

// All tell all that they have come to the call, as in a sum: a rank that heard of the sender alone
// could be two calls ahead of another one, and write over mail that this one has yet to read.
__global__ void __launch_bounds__(kThreads)
    BroadcastMail(Link link, std::byte* data, int64_t bytes, int from) {
  Begin(link);
  const int64_t packets = (bytes + 7) / 8, step = int64_t{gridDim.x} * kThreads;
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const bool sends = link.rank == from;
  for (int64_t i = first; i < packets; i += step) {
    const uint32_t a = sends ? ReadBytes(data + 8 * i, bytes - 8 * i) : 0;
    const uint32_t b = sends ? ReadBytes(data + 8 * i + 4, bytes - 8 * i - 4) : 0;
    for (int r = 0; r < link.ranks; ++r) {
      if (r == link.rank) continue;
      Send(MailboxOf(link, r).Mail(link.mail, link.rank) + i, a, b, link.call);
    }
  }
  for (int64_t i = first; i < packets; i += step) {
    for (int r = 0; r < link.ranks; ++r) {
      if (r == link.rank) continue;
      Packet packet;
      if (!Await(link, MailboxOf(link, link.rank).Mail(link.mail, r) + i, &packet)) return;
      if (r != from) continue;
      WriteBytes(packet.first, data + 8 * i, bytes - 8 * i);
      WriteBytes(packet.second, data + 8 * i + 4, bytes - 8 * i - 4);
    }
  }
}

// The blocks of this number on all ranks have begun, and tell their buffers, [ranks] in shared
// memory: what was enqueued before is done on all ranks. The same on all threads of the block.
template <IsWanted kIsWanted = IsOf, typename T>
__device__ bool MeetBegun(const Link& link, T* data, T** buffers) {
  const auto peer = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
  bool met = true;
  if (peer < link.ranks) {
    const auto address = reinterpret_cast<uint64_t>(data);
    __threadfence_system();
    Send(MailboxOf(link, peer).Begun(block, link.rank), static_cast<uint32_t>(address),
         static_cast<uint32_t>(address >> 32), link.call);
    Packet packet;
    met = Await<kIsWanted>(link, MailboxOf(link, link.rank).Begun(block, peer), &packet);
    buffers[peer] = reinterpret_cast<T*>(uint64_t{packet.second} << 32 | uint64_t{packet.first});
    __threadfence_system();
  }
  return __syncthreads_and(met);
}

// And have done what they write.
__device__ void MeetDone(const Link& link) {
  __syncthreads();
  const auto peer = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
  if (peer >= link.ranks) return;
  __threadfence_system();
  Send(MailboxOf(link, peer).Done(block, link.rank), 0, 0, link.call);
  Packet packet;
  Await(link, MailboxOf(link, link.rank).Done(block, peer), &packet);
  __threadfence_system();
}

__device__ float4 ReadFour(const float* from) {
  float4 v;
  asm volatile("ld.volatile.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

__device__ float4 Add(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// Up to four elements from `first` on, where these do not lie as fours.
__device__ void SumOneByOne(const Link& link, float* const* buffers, int64_t first, int64_t count) {
  for (int64_t j = first; j < count && j < first + 4; ++j) {
    float sum = static_cast<volatile float*>(buffers[0])[j];
    for (int r = 1; r < link.ranks; ++r) sum += static_cast<volatile float*>(buffers[r])[j];
    for (int r = 0; r < link.ranks; ++r) buffers[r][j] = sum;
  }
}

// How many fours of each rank a thread reads at a time: with few ranks it is the reads under way
// that few blocks of threads fill a link by, and leave the others to kernels beside them.
template <int kBound>
constexpr int kSumUnroll = kBound <= 2   ? 4
                           : kBound <= 4 ? 2
                                         : 1;

// Each rank adds up its share of the elements, in fours, and writes the sums to all.
template <int kBound>
__global__ void __launch_bounds__(kSumThreads) SumShares(Link link, float* data, int64_t count) {
  __shared__ float* buffers[kMaxRanks];
  Begin(link);
  if (!MeetBegun(link, data, buffers)) return;
  uint64_t misaligned = 0;
  for (int r = 0; r < link.ranks; ++r) misaligned |= reinterpret_cast<uint64_t>(buffers[r]) % 16;
  constexpr int kUnroll = kSumUnroll<kBound>;
  const int64_t fours = (count + 3) / 4, whole = misaligned == 0 ? count / 4 : 0;
  const int64_t begin = fours * link.rank / link.ranks;
  const int64_t end = fours * (link.rank + 1) / link.ranks;
  const int64_t step = int64_t{gridDim.x} * kSumThreads;
  for (int64_t first = begin + int64_t{blockIdx.x} * kSumThreads + threadIdx.x; first < end;
       first += kUnroll * step) {
    float4 parts[kUnroll][kBound];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = first + u * step;
      if (i >= end || i >= whole) continue;
#pragma unroll
      for (int r = 0; r < kBound; ++r) {
        if (r < link.ranks) parts[u][r] = ReadFour(buffers[r] + 4 * i);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = first + u * step;
      if (i >= end) continue;
      if (i >= whole) {
        SumOneByOne(link, buffers, 4 * i, count);
        continue;
      }
#pragma unroll
      for (int r = 1; r < kBound; ++r) {
        if (r < link.ranks) parts[u][0] = Add(parts[u][0], parts[u][r]);
      }
      for (int r = 0; r < link.ranks; ++r) {
        *reinterpret_cast<float4*>(buffers[r] + 4 * i) = parts[u][0];
      }
    }
  }
  MeetDone(link);
}

__global__ void __launch_bounds__(kThreads) GatherColumns(Link link, SharedColumns matrix) {
  __shared__ float* buffers[kMaxRanks];
  Begin(link);
  if (!MeetBegun(link, matrix.data, buffers)) return;
  const int64_t columns = matrix.end - matrix.begin;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < matrix.rows * columns;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t at = i / columns * matrix.columns + matrix.begin + i % columns;
    const float value = matrix.data[at];
    for (int r = 0; r < link.ranks; ++r) {
      if (r != link.rank) buffers[r][at] = value;
    }
  }
  MeetDone(link);
}

// Who has heard of all goes on, and need not wait for others to have: they may find the packet of
// his next call, whose buffer means nothing here.
__global__ void __launch_bounds__(kThreads) MeetAll(Link link) {
  __shared__ float* buffers[kMaxRanks];
  Begin(link);
  MeetBegun<IsOfOrNext, float>(link, nullptr, buffers);
}

__global__ void __launch_bounds__(kThreads) ClearColumns(SharedColumns matrix) {
  cuda::FollowPrevious();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < matrix.rows * matrix.columns;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t column = i % matrix.columns;
    if (column < matrix.begin || column >= matrix.end) matrix.data[i] = 0.0f;
  }
}

dim3 BlocksFor(int64_t threads, int64_t most) {
  return static_cast<unsigned>(std::clamp<int64_t>((threads + kThreads - 1) / kThreads, 1, most));
}

// Of a call, the same on all ranks: blocks of ranks that share a GPU must all have a place on it.
dim3 BlocksOfCall(const Link& link, int64_t threads) {
  return BlocksFor(threads, link.ahead ? kMaxBlocks : std::max(1, kMaxBlocks / link.ranks));
}

template <typename Kernel>
cudaError_t ForRanks(int ranks, const Kernel& launch) {
  if (ranks <= 2) return launch.template operator()<2>();
  if (ranks <= 4) return launch.template operator()<4>();
  if (ranks <= 8) return launch.template operator()<8>();
  return launch.template operator()<kMaxRanks>();
}

}  // namespace

int64_t MailboxBytes(int ranks) {
  const Mailbox none{nullptr, ranks};
  return reinterpret_cast<int64_t>(none.Done(kMaxBlocks, 0));
}

cudaError_t SumByMail(const Link& link, float* data, int64_t count, cudaStream_t stream) {
  return ForRanks(link.ranks, [&]<int kBound>() {
    return cuda::LaunchKernel(SumMail<kBound>, BlocksOfCall(link, (count + 1) / 2), kThreads, 0,
                              stream, link, data, count);
  });
}

cudaError_t BroadcastByMail(const Link& link, std::byte* data, int64_t bytes, int from,
                            cudaStream_t stream) {
  return cuda::LaunchKernel(BroadcastMail, BlocksOfCall(link, (bytes + 7) / 8), kThreads, 0, stream,
                            link, data, bytes, from);
}

cudaError_t SumInPlace(const Link& link, float* data, int64_t count, cudaStream_t stream) {
  return ForRanks(link.ranks, [&]<int kBound>() {
    const int64_t of_block = kSumThreads * kSumUnroll<kBound>;
    const int64_t blocks = (count / 4 / link.ranks + of_block) / of_block;
    return cuda::LaunchKernel(
        SumShares<kBound>,
        dim3(static_cast<unsigned>(std::min<int64_t>(blocks, SumBlocks(link.ranks)))), kSumThreads,
        0, stream, link, data, count);
  });
}

// A product that is cut for all of a GPU's multiprocessors begins with those that the sum has not
// taken, and takes a second turn for the others. With two ranks this was not measured.
int LeftToSums(int ranks) { return ranks <= 2 ? 0 : SumBlocks(ranks); }

cudaError_t GatherInPlace(const Link& link, const SharedColumns& matrix, cudaStream_t stream) {
  return cuda::LaunchKernel(GatherColumns,
                            BlocksOfCall(link, matrix.rows * matrix.columns / link.ranks), kThreads,
                            0, stream, link, matrix);
}

cudaError_t Meet(const Link& link, cudaStream_t stream) {
  return cuda::LaunchKernel(MeetAll, 1, kThreads, 0, stream, link);
}

cudaError_t ClearOthers(const SharedColumns& matrix, cudaStream_t stream) {
  return cuda::LaunchKernel(ClearColumns, BlocksFor(matrix.rows * matrix.columns, kMaxBlocks),
                            kThreads, 0, stream, matrix);
}

}  // namespace headway::peer
