// The tasks that the generator makes, by name.
#ifndef HEADWAY_ENGINE_EVAL_TASKS_TASK_H_
#define HEADWAY_ENGINE_EVAL_TASKS_TASK_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/eval/metric.h"
#include "headway/status.h"

namespace headway::eval {

enum class RetrievalTask {
  // Of the demo model's card.
  kNeedle,
  kPasskey,
  kPlace,
  kVariables,
  kPassage,
  // RULER's (Hsieh et al., 2024), in our words.
  kSingle,
  kMultiKey,
  kMultiKeyFull,
  kMultiValue,
  kMultiQuery,
  kTracking,
  kCommonWords,
  kFrequentWords,
  kQuestions,
};

struct TaskTraits {
  RetrievalTask task;
  const char* name;
  Metric metric;
  int64_t max_tokens;  // of the output, enough for the answer; 0: as the run has it
};
const TaskTraits& TraitsOf(RetrievalTask task);

// Names divided by commas. "ruler" is all of RULER's but for questions about given texts.
Result<std::vector<RetrievalTask>> ParseRetrievalTasks(std::string_view names);
std::string RetrievalTaskNames();
std::vector<RetrievalTask> DemoTasks();  // those of the demo model's card

// Whether the task hides one fact, whose place can be chosen.
bool HasDepth(RetrievalTask task);
// Whether it lies among facts of its kind and no prose.
constexpr bool IsAmongFacts(RetrievalTask task) { return task == RetrievalTask::kMultiKeyFull; }

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_TASKS_TASK_H_
