// Makes retrieval lines of any length: a document and a question about what it says. The same for a
// seed everywhere.
#ifndef HEADWAY_ENGINE_EVAL_TASKS_GENERATOR_H_
#define HEADWAY_ENGINE_EVAL_TASKS_GENERATOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/eval/retrieval.h"
#include "engine/eval/tasks/fit.h"
#include "engine/eval/tasks/passages.h"
#include "engine/eval/tasks/task.h"
#include "headway/status.h"

namespace headway::eval {

struct RetrievalRequest {
  int64_t count = 0;             // of each length
  std::vector<int64_t> lengths;  // tokens of the whole prompt: the most, nearly reached
  uint64_t seed = 0;
  std::vector<RetrievalTask> tasks;  // taken in turn
  // Places of the fact of tasks that have one (HasDepth), 0 to 1, taken in turn; empty: random.
  std::vector<double> depths;
  // Text to hide facts in, each line from a random place of it on; empty: made up for each line.
  std::string haystack;
  Passages passages;  // for kQuestions
};

// Lines are labelled by their task, length and depth.
Result<std::vector<RetrievalLine>> GenerateRetrieval(const RetrievalRequest& request,
                                                     const TextMeasure& measure);

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_TASKS_GENERATOR_H_
