#include "kv/session/session_claim.h"

#include <span>

#include "headway/refusal.h"

namespace headway::kv {
namespace {

// Each is lost to another process that makes, renames or removes the file at that moment.
constexpr int kClaimAttempts = 100;
constexpr int kInspections = 3;

// What to do when a session file cannot be opened.
Status OpenError(const Status& status) {
  return status.Within({}, {"; give another ", Option::kSession, " file"});
}

}  // namespace

Result<std::unique_ptr<SessionClaim>> SessionClaim::Take(Env* env, const std::string& name) {
  // A rename would put the file in the place of the link.
  const Result<std::string> followed = env->FollowLinks(name);
  if (!followed.ok()) return OpenError(followed.status());
  const std::string& path = *followed;
  std::unique_ptr<SessionClaim> claim(new SessionClaim(env, path));
  Status status;
  for (int attempt = 0; attempt < kClaimAttempts; ++attempt) {
    if (env->Exists(path)) {
      status = claim->OpenSession();
      // Removed in the meantime.
      if (status.code() == StatusCode::kNotFound) continue;
    } else {
      status = claim->OpenTemporary();
      // Who held the temporary file before may have renamed it just before letting it go.
      if (status.ok() && env->Exists(path)) {
        claim->DropTemporary();
        continue;
      }
    }
    break;
  }
  if (!status.ok()) return status;
  return claim;
}

SessionClaim::~SessionClaim() { DropTemporary(); }

Status SessionClaim::OpenSession() {
  Result<std::unique_ptr<File>> file = env_->Open(path_, OpenMode::kReadWrite, FileIo::kDirect);
  if (!file.ok()) return OpenError(file.status());
  Result<SavedSession> saved = ReadSession(env_, file->get(), path_);
  if (!saved.ok()) return saved.status();
  session_ = std::move(*file);
  saved_ = std::move(*saved);
  return OkStatus();
}

Status SessionClaim::OpenTemporary() {
  const std::string name = TemporarySessionName(path_);
  Result<std::unique_ptr<File>> file = env_->Open(name, OpenMode::kCreate, FileIo::kDirect);
  if (!file.ok()) return OpenError(UnderOwnName(file.status(), path_));
  temporary_ = std::move(*file);
  return OkStatus();
}

void SessionClaim::DropTemporary() {
  if (temporary_ == nullptr) return;
  // Still locked, so that it is no other's; when it cannot be removed it is written over next time.
  const Status ignored = env_->Remove(TemporarySessionName(path_));
  static_cast<void>(ignored);
  temporary_.reset();
}

std::string TemporarySessionName(const std::string& path) { return path + ".headway-tmp"; }

Status UnderOwnName(const Status& status, const std::string& path) {
  const std::string name = TemporarySessionName(path);
  std::string message = status.message();
  const size_t at = message.find(name);
  if (at == std::string::npos) return status;
  return Status(status.code(), message.replace(at, name.size(), path));
}

Result<Manifest> InspectSession(Env* env, const std::string& path) {
  Result<std::unique_ptr<File>> file = env->Open(path, OpenMode::kRead, FileIo::kCached);
  if (!file.ok()) return file.status();
  Result<SavedSession> saved = ReadSession(env, file->get(), path);
  // A process that saves to it may have written over what was read halfway.
  for (int i = 1; i < kInspections && saved.status().code() == StatusCode::kCorrupt; ++i) {
    saved = ReadSession(env, file->get(), path);
  }
  if (!saved.ok()) return saved.status();
  return std::move(saved->manifest);
}

bool LooksLikeSession(Env* env, const std::string& path) {
  Result<std::unique_ptr<MappedFile>> file = env->Map(path);
  if (!file.ok()) return false;
  const std::span<const std::byte> bytes = (*file)->bytes();
  return HasSessionMagic(bytes) ||
         (bytes.size() >= 2 * kSuperblockBytes && HasSessionMagic(bytes.subspan(kSuperblockBytes)));
}

}  // namespace headway::kv
