#include "engine/fingerprint_cache.h"

#include <optional>
#include <vector>

#include "base/user_cache.h"
#include "engine/kept_lines.h"

namespace headway {
namespace {

constexpr const char* kFile = "fingerprints";
// A file system's clock may stand still for so long: what is written to a file just behind another
// change then leaves the same times.
constexpr int64_t kClockStepNanos = 2'000'000'000;

}  // namespace

std::string FingerprintCachePath() { return UserCachePath(kFile); }

Result<uint64_t> WeightsFingerprint(Env& env, const Model& model, ThreadPool* pool) {
  const std::string files = model.FilesKey();
  if (files.empty()) return model.Fingerprint(pool);
  const std::string key = KeptLines::KeyOf(files);
  KeptLines kept(env, kFile, 1);
  const std::optional<std::vector<uint64_t>> known = kept.Find(key);
  const bool settled = model.FilesChangedNanos() + kClockStepNanos < env.WallNanos();
  const uint64_t fingerprint = known.has_value() ? known->front() : model.Fingerprint(pool);
  // Behind reading them.
  if (Status s = model.CheckFilesUnchanged(); !s.ok()) return s;
  if (!known.has_value() && settled) kept.Keep(key, {{fingerprint}});
  return fingerprint;
}

}  // namespace headway
