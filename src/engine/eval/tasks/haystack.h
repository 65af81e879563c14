// Haystack: prose cut in pieces that end where a sentence does, so that a document of any length
// can be taken from it and facts hidden between sentences.
#ifndef HEADWAY_ENGINE_EVAL_TASKS_HAYSTACK_H_
#define HEADWAY_ENGINE_EVAL_TASKS_HAYSTACK_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headway::eval {

class Haystack {
 public:
  // Of a text. Joined, the pieces are the text; none is longer than some 320 bytes.
  static Haystack FromText(std::string_view text);
  // Of pieces that are there already, each with its white space ahead.
  static Haystack FromPieces(std::vector<std::string> pieces);
  // Made up, at least `bytes` long.
  static Haystack Generate(int64_t bytes, uint64_t seed);

  // Each begins with the white space that divides it from the one before.
  const std::vector<std::string>& pieces() const { return pieces_; }

 private:
  std::vector<std::string> pieces_;
};

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_TASKS_HAYSTACK_H_
