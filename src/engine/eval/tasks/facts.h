// Facts to hide in a document and the question about them. The sentences, questions and answers
// are those of the demo model's card, and RULER's tasks are made of the same sentences.
#ifndef HEADWAY_ENGINE_EVAL_TASKS_FACTS_H_
#define HEADWAY_ENGINE_EVAL_TASKS_FACTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "engine/eval/tasks/task.h"

namespace headway::eval {

// A fact and where it goes: behind the piece at this share of the document.
struct Fact {
  double at = 0.0;
  std::string text;
};

// A line but for its length.
struct Draft {
  std::vector<Fact> facts;  // ascending
  std::string question;     // of a passage: without the passage's start
  std::vector<std::string> answer;
  bool passage = false;
  uint64_t passage_seed = 0;
};

// `depth` is the place of the fact of a task that has one (HasDepth), 0 to 1; random without it.
Draft DraftFacts(RetrievalTask task, std::optional<double> depth, Random& random);

// Facts of the kind that kMultiKeyFull hides one of, `count` different ones; none has its key.
std::vector<std::string> OtherFacts(const Draft& draft, int64_t count, Random& random);

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_TASKS_FACTS_H_
