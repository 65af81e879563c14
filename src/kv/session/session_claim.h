// SessionClaim: who may write a session file; and what can be said of one without a claim to it.
#ifndef HEADWAY_KV_SESSION_SESSION_CLAIM_H_
#define HEADWAY_KV_SESSION_SESSION_CLAIM_H_

#include <memory>
#include <string>
#include <utility>

#include "base/env.h"
#include "headway/status.h"
#include "kv/session/manifest.h"
#include "kv/session/session_layout.h"

namespace headway::kv {

// This process's claim to write a session file, taken before anything is decided by what the file
// holds; gone with the object, or with the SlabFile that it becomes.
class SessionClaim {
 public:
  // Waits a little for another process that ends. The manifest is checked (magic, version,
  // checksums, every number bounded by the file). kCorrupt for a damaged file, kUnsupported for
  // another version, kInvalidArgument for a file that is no session, kIo for one in use by another
  // process.
  // Of the file that `name` leads to through symbolic links.
  static Result<std::unique_ptr<SessionClaim>> Take(Env* env, const std::string& name);
  ~SessionClaim();

  Env* env() const { return env_; }
  // Where symbolic links led to.
  const std::string& path() const { return path_; }
  bool exists() const { return session_ != nullptr; }
  // What it holds; of no layers where there is none yet.
  const Manifest& manifest() const { return saved_.manifest; }

 private:
  friend class SlabFile;
  SessionClaim(Env* env, std::string path) : env_(env), path_(std::move(path)) {}
  Status OpenSession();
  Status OpenTemporary();
  void DropTemporary();

  Env* const env_;
  const std::string path_;
  std::unique_ptr<File> session_;
  SavedSession saved_;
  std::unique_ptr<File> temporary_;  // where a new one is written; else null
};

// Where SlabFile::CreateSession writes until the first Commit. One that a killed process left is
// written over.
std::string TemporarySessionName(const std::string& path);
// An error of that file, as users know it, who gave the other name.
Status UnderOwnName(const Status& status, const std::string& path);

// What a session file holds, read without a claim to it. Errors as of SessionClaim::Take.
Result<Manifest> InspectSession(Env* env, const std::string& path);

// True when the file begins like a session, whole or damaged.
bool LooksLikeSession(Env* env, const std::string& path);

}  // namespace headway::kv

#endif  // HEADWAY_KV_SESSION_SESSION_CLAIM_H_
