#include "engine/eval/tasks/task.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace headway::eval {
namespace {

constexpr TaskTraits kTasks[] = {
    {RetrievalTask::kNeedle, "needle", Metric::kContains, 0},
    {RetrievalTask::kPasskey, "passkey", Metric::kContains, 0},
    {RetrievalTask::kPlace, "place", Metric::kContains, 0},
    {RetrievalTask::kVariables, "variables", Metric::kContains, 0},
    {RetrievalTask::kPassage, "passage", Metric::kContains, 0},
    {RetrievalTask::kSingle, "niah-single", Metric::kContainsFolded, 128},
    {RetrievalTask::kMultiKey, "niah-multikey", Metric::kContainsFolded, 128},
    {RetrievalTask::kMultiKeyFull, "niah-multikey-full", Metric::kContainsFolded, 128},
    {RetrievalTask::kMultiValue, "niah-multivalue", Metric::kContainsFolded, 128},
    {RetrievalTask::kMultiQuery, "niah-multiquery", Metric::kContainsFolded, 128},
    // Two capitals are part of many words in lower case.
    {RetrievalTask::kTracking, "variable-tracking", Metric::kContains, 64},
    {RetrievalTask::kCommonWords, "common-words", Metric::kContainsFolded, 160},
    {RetrievalTask::kFrequentWords, "frequent-words", Metric::kContainsFolded, 64},
    {RetrievalTask::kQuestions, "qa", Metric::kContainsAny, 48},
};

constexpr RetrievalTask kRuler[] = {RetrievalTask::kSingle,        RetrievalTask::kMultiKey,
                                    RetrievalTask::kMultiKeyFull,  RetrievalTask::kMultiValue,
                                    RetrievalTask::kMultiQuery,    RetrievalTask::kTracking,
                                    RetrievalTask::kFrequentWords, RetrievalTask::kCommonWords};

}  // namespace

const TaskTraits& TraitsOf(RetrievalTask task) {
  const TaskTraits* traits = std::find_if(std::begin(kTasks), std::end(kTasks),
                                          [&](const TaskTraits& t) { return t.task == task; });
  HEADWAY_CHECK(traits != std::end(kTasks));
  return *traits;
}

Result<std::vector<RetrievalTask>> ParseRetrievalTasks(std::string_view names) {
  std::vector<RetrievalTask> tasks;
  for (size_t at = 0; at <= names.size();) {
    const size_t end = std::min(names.find(',', at), names.size());
    const std::string_view name = names.substr(at, end - at);
    at = end + 1;
    if (name == "ruler") {
      tasks.insert(tasks.end(), std::begin(kRuler), std::end(kRuler));
      continue;
    }
    const TaskTraits* found = std::find_if(std::begin(kTasks), std::end(kTasks),
                                           [&](const TaskTraits& t) { return name == t.name; });
    if (found == std::end(kTasks)) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("unknown task '{}'; there are {}, and ruler for RULER's, divided "
                                "by commas",
                                name, RetrievalTaskNames()));
    }
    tasks.push_back(found->task);
  }
  return tasks;
}

std::string RetrievalTaskNames() {
  std::string names;
  for (const TaskTraits& task : kTasks)
    names += (names.empty() ? "" : ", ") + std::string(task.name);
  return names;
}

std::vector<RetrievalTask> DemoTasks() {
  return {RetrievalTask::kNeedle, RetrievalTask::kPasskey, RetrievalTask::kPlace,
          RetrievalTask::kVariables, RetrievalTask::kPassage};
}

bool HasDepth(RetrievalTask task) {
  return task == RetrievalTask::kPasskey || task == RetrievalTask::kSingle || IsAmongFacts(task);
}

}  // namespace headway::eval
