// AlignedBuffer: zeroed memory that direct disk I/O accepts, from an Env, freed with the object.
#ifndef HEADWAY_KV_SESSION_ALIGNED_BUFFER_H_
#define HEADWAY_KV_SESSION_ALIGNED_BUFFER_H_

#include <cstddef>
#include <span>
#include <utility>

#include "base/env.h"
#include "headway/status.h"

namespace headway::kv {

class AlignedBuffer {
 public:
  // The env outlives the buffer.
  static Result<AlignedBuffer> Allocate(Env* env, size_t bytes) {
    Result<std::byte*> data = env->AllocateMemory(bytes);
    if (!data.ok()) return data.status();
    return AlignedBuffer(env, *data, bytes);
  }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : env_(other.env_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&&) = delete;
  ~AlignedBuffer() {
    if (data_ != nullptr) env_->FreeMemory(data_, size_);
  }

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  AlignedBuffer(Env* env, std::byte* data, size_t size) : env_(env), data_(data), size_(size) {}

  Env* env_;
  std::byte* data_;
  size_t size_;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_SESSION_ALIGNED_BUFFER_H_
