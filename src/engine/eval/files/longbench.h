// Lines of LongBench (Bai et al., 2023) and LongBench v2 (Bai et al., 2024).
#ifndef HEADWAY_ENGINE_EVAL_FILES_LONGBENCH_H_
#define HEADWAY_ENGINE_EVAL_FILES_LONGBENCH_H_

#include <string>

#include "engine/eval/files/task_schema.h"

namespace headway::eval {

// `task` is that of a line without "dataset".
Result<Document> LongBenchDocument(const Json& line, const std::string& task, const std::string& id,
                                   const std::string& where);
Result<Document> LongBench2Document(const Json& line, const std::string& id,
                                    const std::string& where);

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_FILES_LONGBENCH_H_
