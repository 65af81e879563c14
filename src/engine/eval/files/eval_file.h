// Files of questions that users have on disk: LongBench, LongBench v2, ∞Bench, SCBench, and lines
// of our own. The formats' fields and metrics are theirs, the words of the prompts are ours, so
// scores are not those of the projects' own prompts.
#ifndef HEADWAY_ENGINE_EVAL_FILES_EVAL_FILE_H_
#define HEADWAY_ENGINE_EVAL_FILES_EVAL_FILE_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/eval/question.h"
#include "headway/status.h"

namespace headway::eval {

enum class FileFormat { kLines, kLongBench, kLongBench2, kInfiniteBench, kScBench };
const char* FileFormatName(FileFormat format);  // "lines", "longbench", ...
std::vector<std::string> FileFormatNames();
std::optional<FileFormat> FileFormatOf(std::string_view name);

struct FileRequest {
  std::string path;                  // for messages, and for its name
  std::optional<FileFormat> format;  // else by the keys of the first line
  // The task of a file whose lines do not say it; empty: the file's name without its folder and
  // extension.
  std::string task;
  int64_t most = 0;  // lines that are read; 0: all
};

struct EvalFile {
  FileFormat format = FileFormat::kLines;
  std::vector<Document> documents;
  Grouping grouping = Grouping::kTogether;
  std::set<std::string> others;    // keys that are not read, in quotes
  std::vector<std::string> notes;  // what is left out, and why
};

// `text` is one JSON object a line, or one list of them. kInvalidArgument names the line that is
// wrong.
Result<EvalFile> ReadEvalFile(std::string_view text, const FileRequest& request);

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_FILES_EVAL_FILE_H_
