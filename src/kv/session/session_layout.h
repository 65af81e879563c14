// The bytes of a session file around its slabs: superblocks and the chain of slots that holds the
// manifest.
//
//   0      superblock A   } 4 KiB each; the valid one of the higher generation counts
//   4096   superblock B   }
//   8192   slot 0, slot 1, ...: slab_bytes each, a slab or a part of a manifest
//
// A superblock, little-endian: magic [8], version u32, generation u64, slab bytes u64, slots u64,
// first manifest slot u64, manifest bytes u64, manifest hash u64, zeros; at 4088 the XXH3 of what
// is before. Magic, version, generation and hash lie there in every version. A manifest slot: the
// slot of the next part i64 (-1 at the last), then slab_bytes - 8 bytes of the manifest, less in
// the last.
#ifndef HEADWAY_KV_SESSION_SESSION_LAYOUT_H_
#define HEADWAY_KV_SESSION_SESSION_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "headway/status.h"
#include "kv/session/aligned_buffer.h"
#include "kv/session/manifest.h"

namespace headway::kv {

inline constexpr uint32_t kSessionVersion = 5;
// Files of these versions are read, too: they have no more than what this one may leave out.
inline constexpr uint32_t kOldestSessionVersion = 4;
inline constexpr size_t kSuperblockBytes = 4096;
inline constexpr int64_t kFirstSlotOffset = 2 * int64_t{kSuperblockBytes};
// Requests of this size, several in flight, are what disks are fast with.
inline constexpr size_t kIoPieceBytes = size_t{1} << 20;
// Before each part of a manifest: the slot of the next.
inline constexpr int64_t kLinkBytes = sizeof(int64_t);

struct Superblock {
  uint64_t generation = 0;
  int64_t slab_bytes = 0;
  int64_t slots = 0;  // that the file has at least
  int64_t manifest_slot = 0;
  int64_t manifest_bytes = 0;
  uint64_t manifest_hash = 0;  // XXH3
};

// What a session file says of itself.
struct SavedSession {
  Superblock superblock;
  int side = 0;  // 0: it came from superblock A, 1: from B
  Manifest manifest;
  std::vector<int64_t> manifest_slots;
};

// `block` has kSuperblockBytes.
void EncodeSuperblock(const Superblock& superblock, std::byte* block);

// True when the bytes begin as a superblock of any version does.
bool HasSessionMagic(std::span<const std::byte> bytes);

// The whole description, checked. `path` is for errors.
Result<SavedSession> ReadSession(Env* env, File* file, const std::string& path);

// The manifest's bytes as they go to `slots`, each part at a multiple of the returned stride.
struct ManifestParts {
  AlignedBuffer buffer;
  size_t stride = 0;  // bytes of a part but the last
};
int64_t ManifestSlots(int64_t manifest_bytes, int64_t slab_bytes);
Result<ManifestParts> LayOutManifest(Env* env, std::span<const std::byte> manifest,
                                     std::span<const int64_t> slots, int64_t slab_bytes);

// Appends [data, data + size) at `offset` of the file, cut into pieces of kIoPieceBytes. What
// continues the last piece joins it.
void AppendPieces(std::byte* data, size_t size, int64_t offset, std::vector<IoPiece>* pieces);

}  // namespace headway::kv

#endif  // HEADWAY_KV_SESSION_SESSION_LAYOUT_H_
