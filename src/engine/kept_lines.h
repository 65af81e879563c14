// Lines of a small file in the user's cache folder, each a key and a value: what was found out
// once, and spares work later. Nothing of it is needed: a file that cannot be read or written is
// one that has nothing, and so is a line that is damaged.
#ifndef HEADWAY_ENGINE_KEPT_LINES_H_
#define HEADWAY_ENGINE_KEPT_LINES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/env.h"

namespace headway {

class KeptLines {
 public:
  static constexpr size_t kMost = 256;  // lines of a file

  // The key of what a text describes.
  static std::string KeyOf(std::string_view text);

  // What the file of that name holds (UserCachePath), of so many numbers a line.
  KeptLines(Env& env, const std::string& name, size_t numbers);

  std::optional<std::vector<uint64_t>> Find(const std::string& key) const;
  // Puts it first, in place of what the key had, and writes the file anew; beyond kMost lines the
  // oldest go.
  void Keep(const std::string& key, std::span<const uint64_t> numbers);

 private:
  void Read();

  Env& env_;
  const std::string path_;  // empty: the environment names no folder
  const size_t line_bytes_;
  std::vector<std::string> lines_;  // those that are sound, the newest first
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_KEPT_LINES_H_
