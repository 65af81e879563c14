#include "kv/session/split_session.h"

#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kv/session/aligned_buffer.h"
#include "kv/session/session_layout.h"
#include "kv/session/slab_pieces.h"

namespace headway::kv {
namespace {

// The pages of one head of a slab, as a slab of their own.
void CopyHead(const CacheFormat& format, const std::byte* slab, int head, int pages,
              const CacheFormat& one, std::byte* to) {
  for (int page = 0; page < pages; ++page) {
    std::memcpy(to + one.KOffset(0, page), slab + format.KOffset(head, page),
                one.page.closed_bytes());
    std::memcpy(to + one.VOffset(0, page), slab + format.VOffset(head, page),
                one.page.closed_bytes());
    std::memcpy(to + one.ParamOffset(page),
                slab + format.ParamOffset(page) + head * format.param_bytes(),
                static_cast<size_t>(one.param_bytes()));
  }
}

// Slabs of a session's file, which is open for reading alone.
class SlabReader {
 public:
  SlabReader(const SessionClaim& claim, File* file)
      : path_(claim.path()), format_(claim.manifest().format), file_(*file) {}

  // Into memory of a slab, checked.
  Status Read(const SavedSlab& saved, std::byte* slab) const {
    const int heads = format_.HeadsIn(saved.layer, saved.group);
    std::vector<IoPiece> pieces;
    AppendSlabPieces(format_, {heads, 0, saved.pages, 0},
                     kFirstSlotOffset + saved.slot * format_.slab_bytes(), slab, &pieces);
    if (Status s = file_.Read(pieces); !s.ok()) return s;
    for (int page = 0; page < saved.pages; ++page) {
      if (PageChecksum(format_, heads, page, slab) != saved.checksums[static_cast<size_t>(page)]) {
        return DamagedPage(path_, SlabFileKind::kSession, page, saved.slot);
      }
    }
    return OkStatus();
  }
  const CacheFormat& format() const { return format_; }

 private:
  const std::string path_;
  const CacheFormat format_;
  File& file_;
};

// The slabs of its heads, written to another file.
Status SplitSlab(const SlabReader& from, const SavedSlab& saved, std::byte* slab, SlabFile* to,
                 std::byte* head_slab, std::vector<SavedSlab>* slabs) {
  if (Status s = from.Read(saved, slab); !s.ok()) return s;
  const CacheFormat& format = from.format();
  for (int head = 0; head < format.HeadsIn(saved.layer, saved.group); ++head) {
    CopyHead(format, slab, head, saved.pages, to->format(), head_slab);
    const Result<int64_t> slot = to->Allocate();
    if (!slot.ok()) return slot.status();
    Result<std::vector<uint64_t>> checksums = to->WritePages(*slot, 1, 0, saved.pages, head_slab);
    if (!checksums.ok()) return checksums.status();
    slabs->push_back({saved.layer, format.HeadsBefore(saved.layer, saved.group) + head,
                      saved.segment, saved.pages, *slot, std::move(*checksums)});
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<SlabFile>> SplitSession(std::unique_ptr<SessionClaim> claim,
                                               Budget* budget) {
  HEADWAY_CHECK(claim->exists());
  Env* const env = claim->env();
  // The claim's own handle stays with the file that takes its place: it is what locks the name.
  Result<std::unique_ptr<File>> file = env->Open(claim->path(), OpenMode::kRead, FileIo::kDirect);
  if (!file.ok()) return file.status();
  Manifest next = claim->manifest();
  const std::vector<SavedSlab> saved = std::exchange(next.slabs, {});
  const SlabReader from(*claim, file->get());
  next.format.group_heads = 1;
  Result<std::unique_ptr<SlabFile>> to =
      SlabFile::CreateSession(std::move(claim), next.format, budget);
  if (!to.ok()) return to;
  Result<AlignedBuffer> slab =
      AlignedBuffer::Allocate(env, static_cast<size_t>(from.format().slab_bytes()));
  if (!slab.ok()) return slab.status();
  Result<AlignedBuffer> head =
      AlignedBuffer::Allocate(env, static_cast<size_t>(next.format.slab_bytes()));
  if (!head.ok()) return head.status();
  for (const SavedSlab& each : saved) {
    const Status split = SplitSlab(from, each, slab->data(), to->get(), head->data(), &next.slabs);
    if (!split.ok()) return split;
  }
  if (Status s = (*to)->Commit(next); !s.ok()) return s;
  return to;
}

}  // namespace headway::kv
