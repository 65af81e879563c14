#include "kv/testing/session_model.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "kv/testing/slab_test_util.h"

namespace headway::kv {
namespace {

constexpr int64_t kMostPages = 12;
// Of models of what is kept: pages that were let go of, most of those that are kept, and tokens
// behind the last whole page.
constexpr int64_t kLeftOut = 2, kMostKept = 3, kOpen = 1;

}  // namespace

CacheFormat RandomSmallFormat(Random* random) {
  CacheFormat format;
  format.layers = 1 + static_cast<int>(random->Below(2));
  format.kv_heads = 1 + static_cast<int>(random->Below(3));
  format.group_heads = 1 + static_cast<int>(random->Below(format.kv_heads));
  format.segment_pages = 1 + static_cast<int>(random->Below(3));
  format.page.page_slots = 1 + static_cast<int>(random->Below(20));
  format.page.head_dim = 8;
  if (random->Below(2) == 0) {
    for (int layer = 0; layer < format.layers; ++layer) {
      format.window.push_back(random->Below(2) * 5 * format.page.page_slots);
    }
  }
  if (random->Below(2) == 0) {
    format.group_heads = 1;
    format.window.clear();
    format.page.page_slots = 2 + format.page.page_slots / 2 * 2;
  }
  return format;
}

bool ModelsKept(const CacheFormat& format) {
  return format.group_heads == 1 && format.window.empty() && format.page.page_slots % 2 == 0;
}

Status VerifySession(Env* env, SlabFile* file, const Manifest& manifest) {
  const AlignedBuffer buffer = SlabBuffer(env, file->format());
  for (const SavedSlab& slab : manifest.slabs) {
    Status status = file->ReadPages(slab.slot, file->format().HeadsIn(slab.layer, slab.group),
                                    slab.checksums, buffer.data());
    if (!status.ok()) return status;
  }
  return OkStatus();
}

SessionModel::SessionModel(Env* env, SlabFile* file, Random* random)
    : env_(env),
      file_(file),
      random_(random),
      format_(file->format()),
      kept_(ModelsKept(format_)) {}

Status SessionModel::Load() {
  tokens_ = file_->manifest().tokens;
  if (kept_ && !tokens_.empty()) {
    tokens_.resize(tokens_.size() -
                   static_cast<size_t>(kOpen + kLeftOut * format_.page.page_slots));
  }
  for (const SavedSlab& saved : file_->manifest().slabs) {
    Slab slab{saved, std::make_shared<AlignedBuffer>(SlabBuffer(env_, format_)), false};
    Status status = file_->ReadPages(saved.slot, format_.HeadsIn(saved.layer, saved.group),
                                     saved.checksums, slab.bytes->data());
    if (!status.ok()) return status;
    slabs_[{saved.layer, saved.group, saved.segment}] = std::move(slab);
  }
  return OkStatus();
}

Status SessionModel::Change() {
  const int64_t pages = static_cast<int64_t>(tokens_.size()) / format_.page.page_slots;
  const int64_t choice = random_->Below(8);
  if (choice == 0) return Scratch();
  if (choice == 1 || pages >= kMostPages) {
    Truncate(random_->Below(pages + 1));
    return OkStatus();
  }
  return Append(1 + random_->Below(3));
}

Manifest SessionModel::Describe() const {
  Manifest manifest;
  manifest.weights_hash = file_->manifest().weights_hash + 1;
  manifest.format = format_;
  manifest.tokens = tokens_;
  if (kept_) {
    const int slots = format_.page.page_slots;
    manifest.kept = Kept(std::ssize(tokens_) / slots);
    manifest.tokens.resize(tokens_.size() + static_cast<size_t>(kOpen + kLeftOut * slots), 7);
  }
  for (const auto& [key, slab] : slabs_) manifest.slabs.push_back(slab.saved);
  return manifest;
}

// The last of the tokens that there were.
SavedKept SessionModel::Kept(int64_t pages) const {
  const int slots = format_.page.page_slots;
  SavedKept kept;
  kept.policy = "the last ones";
  const int64_t count = std::min(pages, kMostKept) * slots;
  kept.from = count + kLeftOut * slots + kOpen;
  std::vector<int32_t> positions(static_cast<size_t>(count));
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(kLeftOut * slots));
  kept.positions.assign(static_cast<size_t>(format_.layers * format_.kv_heads), positions);
  kept.open.assign(static_cast<size_t>(OpenPageBytes(format_, kept.from)),
                   static_cast<std::byte>(file_->manifest().weights_hash));
  return kept;
}

Status SessionModel::Verify() const {
  const AlignedBuffer buffer = SlabBuffer(env_, format_);
  for (const auto& [key, slab] : slabs_) {
    const SavedSlab& saved = slab.saved;
    Status status = file_->ReadPages(saved.slot, format_.HeadsIn(saved.layer, saved.group),
                                     saved.checksums, buffer.data());
    if (!status.ok()) return status;
    if (!SamePages(format_, format_.HeadsIn(saved.layer, saved.group), 0, saved.pages,
                   buffer.data(), slab.bytes->data())) {
      return Status(StatusCode::kInternal, "a slab holds other bytes than were written");
    }
  }
  return OkStatus();
}

Status SessionModel::Append(int64_t pages) {
  const int64_t from = static_cast<int64_t>(tokens_.size()) / format_.page.page_slots;
  Slabs next = slabs_;
  std::vector<int64_t> fresh;
  for (int layer = 0; layer < format_.layers; ++layer) {
    for (int group = 0; group < format_.head_groups(layer); ++group) {
      Status status = AppendTo(layer, group, from, from + pages, &next, &fresh);
      if (!status.ok()) {
        for (const int64_t slot : fresh) file_->Free(slot);
        return status;
      }
    }
  }
  for (int64_t i = 0; i < pages * format_.page.page_slots; ++i) {
    tokens_.push_back(static_cast<TokenId>(random_->Below(1000)));
  }
  Replace(std::move(next));
  FreeUnseen();
  return OkStatus();
}

// Pages [from, to) of a layer and group.
Status SessionModel::AppendTo(int layer, int group, int64_t from, int64_t to, Slabs* slabs,
                              std::vector<int64_t>* fresh) {
  const int64_t run = format_.segment_pages;
  for (int64_t segment = from / run; segment * run < to; ++segment) {
    const Key key{layer, group, static_cast<int>(segment)};
    const auto old = slabs->find(key);
    const int pages = static_cast<int>(std::min(run, to - segment * run));
    Result<Slab> slab = Write(old == slabs->end() ? nullptr : &old->second, layer, group,
                              static_cast<int>(segment), pages, fresh);
    if (!slab.ok()) return slab.status();
    (*slabs)[key] = std::move(*slab);
  }
  return OkStatus();
}

// A slab of `pages` pages that begins with those of `old`, in its slot unless that was sealed.
Result<SessionModel::Slab> SessionModel::Write(const Slab* old, int layer, int group, int segment,
                                               int pages, std::vector<int64_t>* fresh) {
  Slab slab;
  slab.bytes = std::make_shared<AlignedBuffer>(SlabBuffer(env_, format_));
  FillRandom(random_, slab.bytes->data(), slab.bytes->size());
  const int heads = format_.HeadsIn(layer, group);
  int first = 0;
  if (old != nullptr) {
    for (int head = 0; head < heads; ++head) {
      for (int page = 0; page < old->saved.pages; ++page) {
        for (const int64_t at : {format_.KOffset(head, page), format_.VOffset(head, page)}) {
          std::copy_n(old->bytes->data() + at, format_.closed_stride(), slab.bytes->data() + at);
        }
      }
    }
    std::copy_n(old->bytes->data() + format_.ParamOffset(0),
                old->saved.pages * format_.param_stride(),
                slab.bytes->data() + format_.ParamOffset(0));
    if (!old->sealed) {
      slab.saved = old->saved;
      first = old->saved.pages;
    }
  }
  if (first == 0) {
    Result<int64_t> slot = file_->Allocate();
    if (!slot.ok()) return slot.status();
    fresh->push_back(*slot);
    slab.saved.slot = *slot;
  }
  Result<std::vector<uint64_t>> checksums =
      file_->WritePages(slab.saved.slot, heads, first, pages - first, slab.bytes->data());
  if (!checksums.ok()) return checksums.status();
  slab.saved.layer = layer;
  slab.saved.group = group;
  slab.saved.segment = segment;
  slab.saved.pages = pages;
  slab.saved.checksums.insert(slab.saved.checksums.end(), checksums->begin(), checksums->end());
  return slab;
}

void SessionModel::Truncate(int64_t pages) {
  const int64_t tokens = pages * format_.page.page_slots;
  for (const auto& [key, slab] : slabs_) {
    const auto& [layer, group, segment] = key;
    // As a store does: not below what a window has freed.
    const bool first = !slabs_.contains({layer, group, segment - 1});
    if (first && segment > 0 &&
        tokens - format_.WindowOf(layer) < segment * format_.segment_tokens()) {
      return;
    }
  }
  tokens_.resize(static_cast<size_t>(tokens));
  Slabs next;
  for (const auto& [key, slab] : slabs_) {
    const int64_t kept = pages - int64_t{std::get<2>(key)} * format_.segment_pages;
    if (kept <= 0) continue;
    Slab& cut = next[key] = slab;
    if (kept < slab.saved.pages) {
      cut.saved.pages = static_cast<int32_t>(kept);
      cut.saved.checksums.resize(static_cast<size_t>(kept));
      cut.sealed = true;
    }
  }
  Replace(std::move(next));
}

// What no query at the end or behind it sees.
void SessionModel::FreeUnseen() {
  Slabs next = slabs_;
  std::erase_if(next, [this](const auto& item) {
    const auto& [layer, group, segment] = item.first;
    const int64_t window = format_.WindowOf(layer);
    const int64_t end = (int64_t{segment} + 1) * format_.segment_tokens();
    return window > 0 && end <= static_cast<int64_t>(tokens_.size()) + 1 - window;
  });
  Replace(std::move(next));
}

// A slab of another sequence, soon gone.
Status SessionModel::Scratch() {
  Result<int64_t> slot = file_->Allocate();
  if (!slot.ok()) return slot.status();
  const AlignedBuffer slab = SlabBuffer(env_, format_);
  FillRandom(random_, slab.data(), slab.size());
  const Result<std::vector<uint64_t>> checksums =
      file_->WritePages(*slot, format_.group_heads, 0, format_.segment_pages, slab.data());
  file_->Free(*slot);
  return checksums.status();
}

// Frees the slots that only the old slabs used.
void SessionModel::Replace(Slabs next) {
  std::set<int64_t> kept;
  for (const auto& [key, slab] : next) kept.insert(slab.saved.slot);
  for (const auto& [key, slab] : slabs_) {
    if (!kept.contains(slab.saved.slot)) file_->Free(slab.saved.slot);
  }
  slabs_ = std::move(next);
}

}  // namespace headway::kv
