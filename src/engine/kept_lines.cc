#include "engine/kept_lines.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "base/user_cache.h"

namespace headway {
namespace {

// A line: the key, the numbers, and a hash of all that, in hexadecimal.
constexpr size_t kKeyDigits = 32;
constexpr size_t kDigits = 16;

std::string LineOf(std::string_view key, std::span<const uint64_t> numbers) {
  std::string line(key);
  for (const uint64_t number : numbers) line += fmt::format(" {:016x}", number);
  return fmt::format("{} {:016x}", line, XXH3_64bits(line.data(), line.size()));
}

// The numbers of a line that LineOf has made.
std::optional<std::vector<uint64_t>> NumbersIn(std::string_view line) {
  if (line.size() < kKeyDigits + kDigits + 1) return std::nullopt;
  std::vector<uint64_t> numbers;
  for (size_t at = kKeyDigits + 1; at + kDigits < line.size(); at += kDigits + 1) {
    const std::string_view digits = line.substr(at, kDigits);
    uint64_t number = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), number, 16);
    if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
    numbers.push_back(number);
  }
  if (LineOf(line.substr(0, kKeyDigits), numbers) != line) return std::nullopt;
  return numbers;
}

}  // namespace

std::string KeptLines::KeyOf(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

KeptLines::KeptLines(Env& env, const std::string& name, size_t numbers)
    : env_(env),
      path_(UserCachePath(name)),
      line_bytes_(kKeyDigits + (numbers + 1) * (kDigits + 1)) {
  if (!path_.empty()) Read();
}

void KeptLines::Read() {
  Result<std::unique_ptr<File>> file = env_.Open(path_, OpenMode::kRead, FileIo::kCached);
  if (!file.ok()) return;
  const Result<int64_t> size = (*file)->Size();
  // Another program's where it is larger.
  if (!size.ok() || *size > static_cast<int64_t>(kMost * (line_bytes_ + 1)) || *size == 0) return;
  std::string text(static_cast<size_t>(*size), '\0');
  const IoPiece piece{reinterpret_cast<std::byte*>(text.data()), text.size(), 0};
  if (!(*file)->Read({&piece, 1}).ok()) return;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    if (line.size() == line_bytes_ && NumbersIn(line).has_value()) lines_.emplace_back(line);
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
  }
}

std::optional<std::vector<uint64_t>> KeptLines::Find(const std::string& key) const {
  for (const std::string& line : lines_) {
    if (line.starts_with(key)) return NumbersIn(line);
  }
  return std::nullopt;
}

void KeptLines::Keep(const std::string& key, std::span<const uint64_t> numbers) {
  std::erase_if(lines_, [&](const std::string& line) { return line.starts_with(key); });
  lines_.insert(lines_.begin(), LineOf(key, numbers));
  lines_.resize(std::min(lines_.size(), kMost));
  if (path_.empty()) return;
  std::string text;
  for (const std::string& line : lines_) text += line + "\n";
  (void)WriteUserCache(env_, path_, text);
}

}  // namespace headway
