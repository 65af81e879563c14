// A hash of every byte of the weights that a model computes with: what a session file is bound to.
#ifndef HEADWAY_MODEL_WEIGHTS_FINGERPRINT_H_
#define HEADWAY_MODEL_WEIGHTS_FINGERPRINT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/thread_pool.h"

namespace headway {

// A tensor of a mapped file.
struct UsedTensor {
  std::string header;  // name, dtype and shape
  const MappedFile* file = nullptr;
  std::span<const std::byte> bytes = {};  // within the file's
  bool in_each_shard = false;             // norms and embeddings
};

// Of the headers and all bytes, in order: the same for any number of threads. `pool` may be null.
// Memory that the mapping takes for what was read is given back.
uint64_t HashTensors(std::span<const UsedTensor> tensors, ThreadPool* pool);

// The same of little enough that every rank reads it: the first MiB of the tensors in each shard,
// and of the others the first 64 KiB.
uint64_t HashShared(std::vector<UsedTensor> tensors);

}  // namespace headway

#endif  // HEADWAY_MODEL_WEIGHTS_FINGERPRINT_H_
