#include "model/weights/fingerprint.h"

#include <xxhash.h>

#include <algorithm>

namespace headway {
namespace {

// Large enough that handing a piece out costs nothing, small enough for many threads.
constexpr size_t kPieceBytes = size_t{4} << 20;

struct Piece {
  const MappedFile* file;
  std::span<const std::byte> bytes;
};

}  // namespace

uint64_t HashTensors(std::span<const UsedTensor> tensors, ThreadPool* pool) {
  // Hashes of headers, and of pieces where the threads put them.
  std::vector<uint64_t> hashes;
  std::vector<Piece> pieces;
  std::vector<size_t> at;  // [pieces]: in hashes
  for (const UsedTensor& tensor : tensors) {
    hashes.push_back(XXH3_64bits(tensor.header.data(), tensor.header.size()));
    for (size_t begin = 0; begin < tensor.bytes.size(); begin += kPieceBytes) {
      const size_t size = std::min(kPieceBytes, tensor.bytes.size() - begin);
      pieces.push_back({tensor.file, tensor.bytes.subspan(begin, size)});
      at.push_back(hashes.size());
      hashes.push_back(0);
    }
  }
  const auto hash = [&](int, int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      hashes[at[i]] = XXH3_64bits(pieces[i].bytes.data(), pieces[i].bytes.size());
      pieces[i].file->Forget(pieces[i].bytes);
    }
  };
  const auto count = static_cast<int64_t>(pieces.size());
  if (pool != nullptr) {
    pool->Run(count, 1, hash);
  } else {
    hash(0, 0, count);
  }
  return XXH3_64bits(hashes.data(), hashes.size() * sizeof(uint64_t));
}

uint64_t HashShared(std::vector<UsedTensor> tensors) {
  constexpr size_t kInEach = size_t{1} << 20, kInSome = size_t{64} << 10;
  for (UsedTensor& tensor : tensors) {
    const size_t most = tensor.in_each_shard ? kInEach : kInSome;
    tensor.bytes = tensor.bytes.first(std::min(tensor.bytes.size(), most));
  }
  return HashTensors(tensors, nullptr);
}

}  // namespace headway
