// Lines of ∞Bench (Zhang et al., 2024) and SCBench (Li et al., 2024), whose files have one task
// each, by which they are named.
#ifndef HEADWAY_ENGINE_EVAL_FILES_MANY_TASKS_H_
#define HEADWAY_ENGINE_EVAL_FILES_MANY_TASKS_H_

#include <string>

#include "engine/eval/files/task_schema.h"

namespace headway::eval {

Result<Document> InfiniteBenchDocument(const Json& line, const std::string& task,
                                       const std::string& id, const std::string& where);

// All questions about one context: each is asked by itself behind it, not behind the others and
// their answers. Turns whose score needs a parser of programs (scbench_repoqa) are counted in
// `*left_out`; a document may have no others.
Result<Document> ScBenchDocument(const Json& line, const std::string& task, const std::string& id,
                                 const std::string& where, int64_t* left_out);

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_FILES_MANY_TASKS_H_
