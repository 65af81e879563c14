// The session of a context: which file it is, what it goes on with, and what is saved of it.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/context.h"
#include "engine/eviction_settings.h"
#include "engine/refused.h"
#include "engine/session_check.h"
#include "kv/session/split_session.h"
#include "model/config_identity.h"

namespace headway {
namespace {

int64_t DiskLimitOfRanks(const Settings& settings) {
  const int64_t limit = settings.DiskLimit();
  return limit == kNoLimit ? limit : limit * settings.ranks;
}

}  // namespace

Result<kv::Manifest> SessionManifest(Env& env, const Settings& settings) {
  if (!settings.session.has_value() || !env.Exists(settings.session->path)) return kv::Manifest{};
  return kv::InspectSession(&env, settings.session->path);
}

int64_t Context::Impl::DiskLimit(const ContextParts& parts) {
  const bool one_file = parts.settings->session.has_value() && parts.processes == nullptr;
  return one_file ? DiskLimitOfRanks(*parts.settings) : parts.settings->DiskLimit();
}

uint64_t Context::Impl::TokenizerHash() const {
  return parts.tokenizer == nullptr ? 0 : parts.tokenizer->Hash();
}

Status Context::Impl::CheckSession(const kv::Manifest& manifest) const {
  if (manifest.format.layers == 0) return OkStatus();  // there is none yet
  if (manifest.weights_hash != parts.weights_hash) {
    return OtherModel(*parts.settings->session, "other weights");
  }
  if (manifest.tokenizer_hash != TokenizerHash()) {
    return OtherModel(*parts.settings->session, "another tokenizer.json");
  }
  return OkStatus();
}

kv::SessionHeads Context::Impl::HeadsInSession() const {
  kv::SessionHeads heads;
  if (!parts.settings->session.has_value() || !shared()) return heads;
  heads.all = parts.share->whole.shape.kv_heads;
  for (const HeadSet& layer : parts.share->shard.kv_heads) heads.own.push_back(layer.heads);
  return heads;
}

kv::SlabFileShare Context::Impl::ShareOfSession() const {
  if (processes == nullptr) return {};
  return {processes->rank(), processes->ranks(),
          [heads = HeadsInSession().own](const kv::SavedSlab& slab) {
            const std::vector<int>& own = heads[static_cast<size_t>(slab.layer)];
            return std::binary_search(own.begin(), own.end(), slab.group);
          }};
}

Result<std::unique_ptr<kv::SessionClaim>> Context::Impl::Split(
    std::unique_ptr<kv::SessionClaim> claim) const {
  // What weights leave of it: no rank has more of them there than the first one.
  const int64_t limit = disk_budget.limit();
  Budget of_all(Option::kDiskMemory, limit == kNoLimit ? limit : limit * processes->ranks());
  Result<std::unique_ptr<kv::SlabFile>> split = kv::SplitSession(std::move(claim), &of_all);
  if (!split.ok()) return split.status();
  return kv::SlabFile::Release(std::move(*split));
}

Result<std::unique_ptr<kv::SlabFile>> Context::Impl::OpenClaimed(
    std::unique_ptr<kv::SessionClaim> claim, const kv::CacheFormat& format) {
  if (Status s = CheckSession(claim->manifest()); !s.ok()) return s;
  const kv::CacheFormat& cut = claim->manifest().format;
  const bool same_segments = cut.segment_pages == format.segment_pages;
  if (claim->exists() && same_segments && cut.group_heads == format.group_heads) {
    return kv::SlabFile::OpenSession(std::move(claim), &disk_budget, ShareOfSession());
  }
  if (claim->exists() && same_segments && shared()) {
    Log(LogLevel::kWarning, "session " + parts.settings->session->path +
                                " is copied, so that ranks find each head by itself");
    if (processes == nullptr) return kv::SplitSession(std::move(claim), &disk_budget);
    Result<std::unique_ptr<kv::SessionClaim>> split = Split(std::move(claim));
    if (!split.ok()) return split.status();
    return kv::SlabFile::OpenSession(std::move(*split), &disk_budget, ShareOfSession());
  }
  if (claim->exists()) {
    Log(LogLevel::kWarning,
        "session " + parts.settings->session->path + " is cut for larger budgets (head group " +
            std::to_string(cut.group_heads) + ", segment " + std::to_string(cut.segment_tokens()) +
            "): the prompt is read again into head group " + std::to_string(format.group_heads) +
            ", segment " + std::to_string(format.segment_tokens()));
  }
  return kv::SlabFile::CreateSession(std::move(claim), format, &disk_budget, ShareOfSession());
}

// The first one says of its file whether there is one, and which.
Result<std::unique_ptr<kv::SlabFile>> Context::Impl::OpenTogether(
    std::unique_ptr<kv::SessionClaim> claim, const kv::CacheFormat& format) {
  SessionMeeting& meeting = *parts.meeting;
  if (Status s = meeting.Come(); !s.ok()) return s;
  if (processes->rank() > 0) {
    const Result<kv::SessionMark> mark = meeting.MarkOfFirst();
    if (!mark.ok()) return mark.status();
    Result<std::unique_ptr<kv::SlabFile>> file = kv::SlabFile::Join(
        parts.env, parts.settings->session->path, *mark, format, &disk_budget, ShareOfSession());
    if (Status s = meeting.Opened(file.status()); !s.ok()) return s;
    return file;
  }
  Result<std::unique_ptr<kv::SlabFile>> file = OpenClaimed(std::move(claim), format);
  const Result<kv::SessionMark> mark =
      file.ok() ? (*file)->Invite() : Result<kv::SessionMark>(file.status());
  Status status = meeting.Tell(mark);
  if (status.ok()) status = meeting.Opened(OkStatus());
  if (!status.ok()) return status;
  return file;
}

Result<std::shared_ptr<kv::SlabFile>> Context::Impl::OpenSession(
    std::unique_ptr<kv::SessionClaim> claim, const kv::CacheFormat& format) {
  if (!parts.settings->session.has_value()) return std::shared_ptr<kv::SlabFile>();
  if (parts.session != nullptr) return parts.session->file;
  Result<std::unique_ptr<kv::SlabFile>> file = processes != nullptr
                                                   ? OpenTogether(std::move(claim), format)
                                                   : OpenClaimed(std::move(claim), format);
  if (!file.ok()) return file.status();
  return std::shared_ptr<kv::SlabFile>(std::move(*file));
}

Status Context::Impl::RestoreSession(const kv::Manifest& manifest) {
  if (manifest.tokens.empty()) return OkStatus();
  if (static_cast<int64_t>(manifest.tokens.size()) > assembly.executor->limits().length) {
    return Wrong({"session " + parts.settings->session->path + " holds " +
                      std::to_string(manifest.tokens.size()) + " tokens and the context " +
                      std::to_string(assembly.executor->limits().length) + "; raise ",
                  Option::kLength});
  }
  const bool kept = manifest.kept.has_value();
  Result<kv::SequenceId> sequence = (kept ? assembly.kept_store : assembly.store)->Restore();
  if (!sequence.ok()) return sequence.status();
  Slot& slot = generator->slots()[0];
  slot.sequence = *sequence;
  slot.tokens = manifest.tokens;
  slot.rope_hash = manifest.rope_hash;
  slot.approximate = manifest.approximate;
  if (kept) slot.kept_from = manifest.kept->from;
  session_tokens = static_cast<int64_t>(manifest.tokens.size());
  return OkStatus();
}

kv::Manifest Context::Impl::SessionMeta(std::string_view note) const {
  kv::Manifest meta;
  meta.note = note;
  meta.model_config =
      ConfigIdentity(parts.share == nullptr ? parts.model->config() : parts.share->whole);
  meta.weights_hash = parts.weights_hash;
  meta.tokenizer_hash = TokenizerHash();
  meta.rope_hash = generator->slots()[0].rope_hash;
  meta.approximate = generator->slots()[0].approximate;
  if (const Slot& slot = generator->slots()[0]; slot.kept()) {
    meta.kept.emplace();
    meta.kept->policy = EvictionWords(parts.settings->eviction);
    meta.kept->from = slot.kept_from;
  }
  return meta;
}

}  // namespace headway
