// What the tests of slab files share: random formats, slabs and manifests.
#ifndef HEADWAY_KV_TESTING_SLAB_TEST_UTIL_H_
#define HEADWAY_KV_TESTING_SLAB_TEST_UTIL_H_

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/env.h"
#include "base/random.h"
#include "kv/session/aligned_buffer.h"
#include "kv/session/slab_file.h"

namespace headway::kv {

inline CacheFormat RandomFormat(Random* random) {
  CacheFormat format;
  format.layers = 1 + static_cast<int>(random->Below(4));
  format.kv_heads = 1 + static_cast<int>(random->Below(5));
  format.group_heads = 1 + static_cast<int>(random->Below(format.kv_heads));
  format.segment_pages = 1 + static_cast<int>(random->Below(5));
  format.page.dtype = static_cast<DType>(random->Below(3));
  format.page.page_slots = 1 << random->Below(7);
  format.page.head_dim = 8 * (1 + static_cast<int>(random->Below(16)));
  format.page.encoding = static_cast<Encoding>(random->Below(5));
  if (format.page.encoding == Encoding::kLossless) format.page.dtype = DType::kBF16;
  if (random->Below(2) == 0) {
    for (int layer = 0; layer < format.layers; ++layer) {
      format.window.push_back(random->Below(2) * random->Below(4 * format.segment_tokens()));
    }
  }
  return format;
}

inline void FillRandom(Random* random, std::byte* data, size_t size) {
  for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
    const uint64_t bits = random->Next();
    std::memcpy(data + i, &bits, std::min(sizeof(bits), size - i));
  }
}

// Slabs in memory that direct I/O takes.
inline AlignedBuffer SlabBuffer(Env* env, const CacheFormat& format) {
  return std::move(*AlignedBuffer::Allocate(env, static_cast<size_t>(format.slab_bytes())));
}

// True when pages [first, first + count) of `heads` heads are the same in two slabs.
inline bool SamePages(const CacheFormat& format, int heads, int first, int count,
                      const std::byte* a, const std::byte* b) {
  for (int head = 0; head < heads; ++head) {
    for (int page = first; page < first + count; ++page) {
      for (const int64_t at : {format.KOffset(head, page), format.VOffset(head, page)}) {
        if (std::memcmp(a + at, b + at, format.page.closed_bytes()) != 0) return false;
      }
    }
  }
  for (int page = first; page < first + count; ++page) {
    const int64_t at = format.ParamOffset(page);
    const auto size = static_cast<size_t>(heads * format.param_bytes());
    if (std::memcmp(a + at, b + at, size) != 0) return false;
  }
  return true;
}

// A session at `path` that must exist, and one that must not.
inline Result<std::unique_ptr<SlabFile>> OpenSessionAt(Env* env, const std::string& path,
                                                       Budget* budget) {
  Result<std::unique_ptr<SessionClaim>> claim = SessionClaim::Take(env, path);
  if (!claim.ok()) return claim.status();
  if (!(*claim)->exists()) return Status(StatusCode::kNotFound, "there is no " + path);
  return SlabFile::OpenSession(std::move(*claim), budget);
}
inline Result<std::unique_ptr<SlabFile>> CreateSessionAt(Env* env, const std::string& path,
                                                         const CacheFormat& format,
                                                         Budget* budget) {
  Result<std::unique_ptr<SessionClaim>> claim = SessionClaim::Take(env, path);
  if (!claim.ok()) return claim.status();
  HEADWAY_CHECK(!(*claim)->exists());
  return SlabFile::CreateSession(std::move(*claim), format, budget);
}

inline bool SameManifest(const Manifest& a, const Manifest& b) {
  return EncodeManifest(a) == EncodeManifest(b);
}

}  // namespace headway::kv

#endif  // HEADWAY_KV_TESTING_SLAB_TEST_UTIL_H_
