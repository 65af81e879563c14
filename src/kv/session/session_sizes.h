// What a session's file takes beside its slabs, as plans count it.
#ifndef HEADWAY_KV_SESSION_SESSION_SIZES_H_
#define HEADWAY_KV_SESSION_SESSION_SIZES_H_

#include <cstdint>

namespace headway::kv {

// Bytes of the two superblocks, and of the manifest: of its fields that do not grow with the cache,
// and of each token, slab and page of a slab.
inline constexpr int64_t kSessionSuperblocks = 2 * 4096;
inline constexpr int64_t kManifestFields = 8192;
inline constexpr int64_t kManifestToken = 4;
inline constexpr int64_t kManifestSlab = 24;
inline constexpr int64_t kManifestPage = 8;
// Of what heads keep: of each token of a head, and of each head.
inline constexpr int64_t kManifestPosition = 4;
inline constexpr int64_t kManifestTable = 4;
// The old manifest counts until the new one is written.
inline constexpr int64_t kManifests = 2;

}  // namespace headway::kv

#endif  // HEADWAY_KV_SESSION_SESSION_SIZES_H_
