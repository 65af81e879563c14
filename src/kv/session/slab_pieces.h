// Where the pages of a slab lie in its slot of a file, their checksums, and what is said of one
// that is not what was written.
#ifndef HEADWAY_KV_SESSION_SLAB_PIECES_H_
#define HEADWAY_KV_SESSION_SLAB_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/env.h"
#include "headway/status.h"
#include "kv/pages/format.h"

namespace headway::kv {

enum class SlabFileKind : uint8_t { kTemporary, kSession };

uint64_t PageChecksum(const CacheFormat& format, int heads, int page, const std::byte* slab);

// Pages [first, first + count) of a slab, which are those from `to` on in memory.
struct PageRange {
  int heads = 0;
  int first = 0;
  int count = 0;
  int to = 0;
};

// Appends those of a slab at `offset` of the file. Neighbouring runs join: a full slab is one
// extent.
void AppendSlabPieces(const CacheFormat& format, const PageRange& pages, int64_t offset,
                      std::byte* slab, std::vector<IoPiece>* pieces);

Status DamagedPage(const std::string& path, SlabFileKind kind, int page, int64_t slot);

}  // namespace headway::kv

#endif  // HEADWAY_KV_SESSION_SLAB_PIECES_H_
