// SlotTable: which slots of a slab file are in use and by whom, each backed by a reservation.
//
// A slot is free when the caller does not hold it, no manifest that a crash could bring back names
// it, and no manifest being written will.
//
// Where several processes share the file each has a table, which gives out slots that no other one
// does, without a word between them: every `tables`-th slot, and in a session that was opened
// those that its own slabs had.
#ifndef HEADWAY_KV_SESSION_SLOT_TABLE_H_
#define HEADWAY_KV_SESSION_SLOT_TABLE_H_

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "device/budget.h"
#include "headway/status.h"

namespace headway::kv {

// Which of several tables this is.
struct TableShare {
  int table = 0;
  int tables = 1;
};

// For one thread at a time.
class SlotTable {
 public:
  // The budget outlives the table.
  SlotTable(Budget* budget, int64_t slab_bytes, TableShare share = {})
      : budget_(budget), slab_bytes_(slab_bytes), share_(share) {}

  Result<int64_t> Take();       // the lowest free slot, held by the caller from now on
  Status TakeAt(int64_t slot);  // a free slot: one that an opened session uses
  void Leave(int64_t slot);     // the same of another table's: never given out here
  bool IsOthers(int64_t slot) const;
  void Give(int64_t slot);
  bool Holds(int64_t slot) const;
  // One past the highest slot that is taken or left.
  int64_t End() const;

  // A commit: the manifest that is written next uses `slots`, all held or other tables'; the caller
  // may give them from now on. Then either Abandon, or KeepBoth before the superblock is written,
  // since from then on a crash may find either manifest, and then, when it is known to be there,
  // KeepNext; Undo when it is known not to be; or Abandon when it is not known.
  void BeginCommit(std::span<const int64_t> slots);
  void KeepBoth();
  void KeepNext();
  void Undo();
  void Abandon();

 private:
  // kNew: kept since the last KeepBoth, and not before.
  enum : uint8_t { kHeld = 1, kKept = 2, kNext = 4, kOthers = 8, kNew = 16 };

  // Has flags for `slots` slots at least.
  void Extend(int64_t slots);

  // Clears flags of a slot, and frees it when none is left.
  void Clear(int64_t slot, uint8_t flags);

  Budget* const budget_;
  const int64_t slab_bytes_;
  const TableShare share_;
  int64_t left_end_ = 0;        // one past the highest slot that was left
  std::vector<uint8_t> flags_;  // [slots seen so far]
  int64_t lowest_free_ = 0;     // no slot below it is free
  std::unordered_map<int64_t, Reservation> reservations_;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_SESSION_SLOT_TABLE_H_
