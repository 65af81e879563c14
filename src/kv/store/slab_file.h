// SlabFile: slabs on disk, in slots of one file, with a checksum a page. Without a name it is the
// disk tier of one run and vanishes with it; with a name it is a session: what Commit described
// last is what a later Open finds, whatever happened since (a killed process, a full disk).
//
// Layout: two superblocks of 4 KiB (the newer valid one counts), then slots of slab_bytes. A
// manifest occupies slots like slabs do. A slot that the committed manifest uses is never written
// before the next Commit.
#ifndef HEADWAY_KV_STORE_SLAB_FILE_H_
#define HEADWAY_KV_STORE_SLAB_FILE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/types.h"
#include "device/budget.h"
#include "headway/status.h"
#include "kv/store/format.h"

namespace headway::kv {

// One slab of a saved cache.
struct SavedSlab {
  int32_t layer = 0;
  int32_t group = 0;
  int32_t segment = 0;
  int32_t pages = 0;  // closed pages that it holds, from its first
  int64_t slot = 0;
  std::vector<uint64_t>
      checksums;  // [pages]: XXH3 of the page's K then V of every head of the group
};

// What a session file holds beside the slabs.
struct Manifest {
  uint64_t weights_hash = 0;
  uint64_t tokenizer_hash = 0;
  uint64_t rope_hash = 0;    // of the frequencies that the keys were rotated with
  bool keys_rotated = true;  // K is stored after RoPE
  CacheFormat format;
  std::vector<TokenId> tokens;  // those that the closed pages hold, a multiple of page_slots
  std::vector<SavedSlab> slabs;
};

class SlabFile {
 public:
  // The disk tier of one run, in `directory`, gone when closed.
  static Result<std::unique_ptr<SlabFile>> CreateTemporary(Env* env, const std::string& directory,
                                                           const CacheFormat& format,
                                                           Budget* budget);
  // A new session, written beside `path` and renamed to it by the first Commit. `path` must not
  // exist.
  static Result<std::unique_ptr<SlabFile>> CreateSession(Env* env, const std::string& path,
                                                         const CacheFormat& format, Budget* budget);
  // An existing session, for reading and going on with. Its manifest is checked (magic, version,
  // checksums, every number bounded by the file) and returned by manifest(). kCorrupt for a damaged
  // file, kUnsupported for another version, kInvalidArgument for a file that is no session.
  static Result<std::unique_ptr<SlabFile>> OpenSession(Env* env, const std::string& path,
                                                       Budget* budget);
  ~SlabFile();

  const CacheFormat& format() const;
  const Manifest& manifest() const;  // as committed last; empty before

  // Slots; Allocate takes slab_bytes from the budget. Thread-safe.
  Result<int64_t> Allocate();
  void Free(int64_t slot);

  // Writes pages [first, first + count) of a slab whose bytes lie at `slab` in the layout of
  // CacheFormat (memory aligned to kDirectAlignment) into the slot. Returns one checksum a page.
  Result<std::vector<uint64_t>> WritePages(int64_t slot, int group, int first, int count,
                                           const std::byte* slab);
  // Reads pages [0, checksums.size()) of the slot to where they belong in `slab`, and compares the
  // checksums: kCorrupt, naming file, and what to do, when one differs.
  Status ReadPages(int64_t slot, int group, std::span<const uint64_t> checksums, std::byte* slab);

  // Makes `manifest` what OpenSession finds: syncs the slabs, writes the manifest to free slots,
  // syncs, flips the superblock, syncs. When it fails, the manifest before stays valid. Its slots
  // must be allocated ones. Only for sessions.
  Status Commit(const Manifest& manifest);

  bool direct() const;  // past the page cache

 private:
  struct Impl;
  explicit SlabFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_STORE_SLAB_FILE_H_
