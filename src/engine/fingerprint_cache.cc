#include "engine/fingerprint_cache.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

#include "base/user_cache.h"

namespace headway {
namespace {

constexpr size_t kLines = 256;  // that are kept
// Of a hash of a model's FilesKey, the fingerprint, and a hash of both, in hexadecimal.
constexpr size_t kKeyDigits = 32;
constexpr size_t kDigits = 16;
constexpr size_t kLineBytes = kKeyDigits + 2 * kDigits + 2;
// A file system's clock may stand still for so long: what is written to a file just behind another
// change then leaves the same times.
constexpr int64_t kClockStepNanos = 2'000'000'000;

std::string LineOf(std::string_view key, uint64_t fingerprint) {
  const std::string line = fmt::format("{} {:016x}", key, fingerprint);
  return fmt::format("{} {:016x}", line, XXH3_64bits(line.data(), line.size()));
}

std::string HashOf(const std::string& files_key) {
  const XXH128_hash_t hash = XXH3_128bits(files_key.data(), files_key.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

// The fingerprint of a line that LineOf has made.
std::optional<uint64_t> FingerprintIn(std::string_view line) {
  if (line.size() != kLineBytes) return std::nullopt;
  const std::string_view digits = line.substr(kKeyDigits + 1, kDigits);
  uint64_t fingerprint = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), fingerprint, 16);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  if (LineOf(line.substr(0, kKeyDigits), fingerprint) != line) return std::nullopt;
  return fingerprint;
}

// What the cache holds, without what is damaged.
std::vector<std::string> ReadLines(Env& env, const std::string& path) {
  std::vector<std::string> lines;
  Result<std::unique_ptr<File>> file = env.Open(path, OpenMode::kRead, FileIo::kCached);
  if (!file.ok()) return lines;
  const Result<int64_t> size = (*file)->Size();
  // Another program's where it is larger.
  if (!size.ok() || *size > static_cast<int64_t>(kLines * (kLineBytes + 1))) return lines;
  if (*size == 0) return lines;
  std::string text(static_cast<size_t>(*size), '\0');
  const IoPiece piece{reinterpret_cast<std::byte*>(text.data()), text.size(), 0};
  if (!(*file)->Read({&piece, 1}).ok()) return lines;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    if (FingerprintIn(line).has_value()) lines.emplace_back(line);
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
  }
  return lines;
}

}  // namespace

std::string FingerprintCachePath() { return UserCachePath("fingerprints"); }

Result<uint64_t> WeightsFingerprint(Env& env, const Model& model, ThreadPool* pool) {
  const std::string files = model.FilesKey();
  if (files.empty()) return model.Fingerprint(pool);
  const std::string path = FingerprintCachePath();
  const std::string key = HashOf(files);
  std::vector<std::string> lines;
  if (!path.empty()) lines = ReadLines(env, path);
  std::optional<uint64_t> fingerprint;
  for (const std::string& line : lines) {
    if (line.starts_with(key)) fingerprint = FingerprintIn(line);
  }
  const bool known = fingerprint.has_value();
  const bool settled = model.FilesChangedNanos() + kClockStepNanos < env.WallNanos();
  if (!known) fingerprint = model.Fingerprint(pool);
  // Behind reading them.
  if (Status s = model.CheckFilesUnchanged(); !s.ok()) return s;
  if (known || !settled || path.empty()) return *fingerprint;
  std::string text = LineOf(key, *fingerprint) + "\n";
  lines.resize(std::min(lines.size(), kLines - 1));
  for (const std::string& line : lines) text += line + "\n";
  (void)WriteUserCache(env, path, text);
  return *fingerprint;
}

}  // namespace headway
