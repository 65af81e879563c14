#include "kv/session/slab_pieces.h"

#include <fmt/format.h>
#define XXH_STATIC_LINKING_ONLY  // for XXH3_state_t on the stack
#include <xxhash.h>
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>  // the same functions with the widest vectors of the machine
#endif

#include "headway/refusal.h"
#include "kv/session/session_layout.h"

namespace headway::kv {

uint64_t PageChecksum(const CacheFormat& format, int heads, int page, const std::byte* slab) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (int head = 0; head < heads; ++head) {
    XXH3_64bits_update(&state, slab + format.KOffset(head, page), format.page.closed_bytes());
    XXH3_64bits_update(&state, slab + format.VOffset(head, page), format.page.closed_bytes());
  }
  XXH3_64bits_update(&state, slab + format.ParamOffset(page),
                     static_cast<size_t>(heads * format.param_bytes()));
  return XXH3_64bits_digest(&state);
}

void AppendSlabPieces(const CacheFormat& format, const PageRange& pages, int64_t offset,
                      std::byte* slab, std::vector<IoPiece>* pieces) {
  const auto size = static_cast<size_t>(pages.count * format.closed_stride());
  const int64_t between = (pages.first - pages.to) * format.closed_stride();
  for (const bool v : {false, true}) {
    for (int head = 0; head < pages.heads; ++head) {
      const int64_t at = v ? format.VOffset(head, pages.to) : format.KOffset(head, pages.to);
      AppendPieces(slab + at, size, offset + at + between, pieces);
    }
  }
  AppendPieces(slab + format.ParamOffset(pages.to),
               static_cast<size_t>(pages.count * format.param_stride()),
               offset + format.ParamOffset(pages.first), pieces);
}

Status DamagedPage(const std::string& path, SlabFileKind kind, int page, int64_t slot) {
  const Status corrupt(
      StatusCode::kCorrupt,
      fmt::format("{}: page {} of slot {} is not what was written; ", path, page, slot));
  return kind == SlabFileKind::kSession
             ? corrupt.Within({},
                              {"delete the session or give another ", Option::kSession, " file"})
             : corrupt.Within({}, {"check the disk or use another directory"});
}

}  // namespace headway::kv
