// SlabFile: slabs on disk, in slots of one file, with a checksum a page. Without a name it is the
// disk tier of one run and vanishes with it; with a name it is a session: what Commit described
// last is what a later Open finds, whatever happened since (a killed process, a full disk).
//
// Layout (session_layout.h): two superblocks of 4 KiB (the newer valid one counts), then slots of
// slab_bytes. A manifest occupies slots like slabs do. Pages that the committed manifest names are
// never written before the next Commit, even when their slot is freed; the pages behind them in
// their slot may be.
#ifndef HEADWAY_KV_SESSION_SLAB_FILE_H_
#define HEADWAY_KV_SESSION_SLAB_FILE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "device/budget.h"
#include "headway/status.h"
#include "kv/pages/format.h"
#include "kv/session/manifest.h"
#include "kv/session/session_claim.h"

namespace headway::kv {

// Of several processes that write one session, each through a SlabFile, which is this. The first,
// 0, has the claim, commits for all, and ends last.
struct SlabFileShare {
  int process = 0;
  int processes = 1;
  // Whether this process is the one that has a slab of the session as it is opened.
  std::function<bool(const SavedSlab& slab)> own = nullptr;
};

// By which the others find the file of the first one, and know that it is the same.
struct SessionMark {
  bool temporary = false;  // its name is not its own yet
  int64_t offset = 0;      // of `value` in it
  uint64_t value = 0;
  uint64_t generation = 0;  // of the last commit
};

// What is known of a commit that was tried.
enum class CommitOutcome : uint8_t {
  kNotBegun,  // a crash finds what was committed before
  kUnknown,   // it may find either
  kDone,
};

class SlabFile {
 public:
  // The disk tier of one run, in `directory`, gone when closed.
  static Result<std::unique_ptr<SlabFile>> CreateTemporary(Env* env, const std::string& directory,
                                                           const CacheFormat& format,
                                                           Budget* budget);
  // A new session, written beside its path (as TemporarySessionName says) and renamed to it by the
  // first Commit; without one it is gone when closed. What exists is replaced then, and not before.
  static Result<std::unique_ptr<SlabFile>> CreateSession(std::unique_ptr<SessionClaim> claim,
                                                         const CacheFormat& format, Budget* budget,
                                                         const SlabFileShare& share = {});
  // One that exists, for reading and going on with. Its slots, or those that are this process's,
  // are allocated ones.
  static Result<std::unique_ptr<SlabFile>> OpenSession(std::unique_ptr<SessionClaim> claim,
                                                       Budget* budget,
                                                       const SlabFileShare& share = {});
  // What the first process has opened or created and invited to, on another one, by the session's
  // name there. kInvalidArgument where that leads to another file.
  static Result<std::unique_ptr<SlabFile>> Join(Env* env, const std::string& name,
                                                const SessionMark& mark, const CacheFormat& format,
                                                Budget* budget, const SlabFileShare& share);
  ~SlabFile();

  bool is_session() const;
  const CacheFormat& format() const;
  const Manifest& manifest() const;  // as committed last; empty before

  // Slots; Allocate takes slab_bytes from the budget. Free gives them back, for a slot that the
  // committed manifest uses when the next Commit is done. Thread-safe.
  Result<int64_t> Allocate();
  void Free(int64_t slot);

  // Writes pages [first, first + count) of a slab of `heads` heads, whose bytes lie at `slab` in
  // the layout of CacheFormat (memory aligned to kDirectAlignment), into the slot. Returns one
  // checksum a page.
  // Reads and writes may run on several threads, of one slot not at once.
  Result<std::vector<uint64_t>> WritePages(int64_t slot, int heads, int first, int count,
                                           const std::byte* slab);
  // Reads pages [0, checksums.size()) of the slot to where they belong in `slab`, and compares the
  // checksums: kCorrupt, naming file, and what to do, when one differs.
  Status ReadPages(int64_t slot, int heads, std::span<const uint64_t> checksums, std::byte* slab);

  // One page of a slot, and where it belongs: it becomes page `to` of the slab at `slab`.
  struct PageRead {
    int64_t slot = 0;
    int heads = 0;
    int page = 0;
    const uint64_t* checksum = nullptr;
    std::byte* slab = nullptr;
    int to = 0;
  };
  // The same of single pages, all of them in flight at once.
  Status ReadEach(std::span<const PageRead> pages);

  // Makes `manifest` what OpenSession finds: writes it to free slots (from the budget), syncs it
  // and the slabs, flips the superblock, syncs. When it fails, the manifest before stays valid.
  // Its slots must be allocated ones or other processes', its format that of the file. Only for
  // sessions.
  Status Commit(const Manifest& manifest);
  // Of the Commit since the last call of this; kNotBegun where there was none.
  CommitOutcome TakeOutcome();

  // Of several processes the first one lets the others join, before any slot is allocated.
  Result<SessionMark> Invite();
  // The others, before it commits and behind that. `part` has their slabs of the manifest, which
  // are on the disk then, and kept from there on until it is known which manifest counts. Without
  // an Offer, or behind one that failed, Settle has nothing to do.
  Status Offer(const Manifest& part);
  void Settle(CommitOutcome outcome);

  // The claim to a session that was committed, still locked.
  static Result<std::unique_ptr<SessionClaim>> Release(std::unique_ptr<SlabFile> file);

  bool direct() const;  // past the page cache
  int64_t file_bytes() const;

 private:
  struct Impl;
  explicit SlabFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_SESSION_SLAB_FILE_H_
