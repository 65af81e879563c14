// ProseGenerator: plain English narrative made from word lists and sentence patterns, as much as is
// asked for and the same for a seed on every machine. The haystack in which retrieval tests hide
// their facts, and a document to try long contexts with.
#ifndef HEADWAY_ENGINE_EVAL_TASKS_PROSE_H_
#define HEADWAY_ENGINE_EVAL_TASKS_PROSE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"

namespace headway::eval {

class ProseGenerator {
 public:
  explicit ProseGenerator(uint64_t seed) : random_(seed) {}

  // The sentences of the next paragraph: 4 to 9, about one or two people in one place.
  std::vector<std::string> Paragraph();

 private:
  // `pattern` with every {list} replaced by a word of that list.
  std::string Fill(const std::string& pattern);
  std::string Word(const std::string& list);

  Random random_;
  std::string person_, other_, place_;  // of the paragraph
};

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_TASKS_PROSE_H_
