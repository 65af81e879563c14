#include "engine/eval/files/eval_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/eval/files/longbench.h"
#include "engine/eval/files/many_tasks.h"
#include "engine/eval/json_lines.h"
#include "engine/eval/retrieval.h"

namespace headway::eval {
namespace {

struct FormatTraits {
  FileFormat format;
  const char* name;
  std::initializer_list<std::string_view> marks;  // keys of its lines that tell it
  std::initializer_list<std::string_view> known;  // keys that are read, or said elsewhere
  Grouping grouping;
};

// In the order in which they are told apart.
const FormatTraits kFormats[] = {
    {FileFormat::kScBench,
     "scbench",
     {"multi_turns"},
     {"multi_turns", "context", "input", "id", "task"},
     Grouping::kTogether},
    {FileFormat::kLongBench2,
     "longbench2",
     {"choice_A", "choice_D"},
     {"_id", "context", "question", "answer", "choice_A", "choice_B", "choice_C", "choice_D",
      "length", "difficulty", "domain", "sub_domain"},
     Grouping::kEach},
    {FileFormat::kLongBench,
     "longbench",
     {"answers", "input"},
     {"_id", "context", "input", "answers", "all_classes", "dataset", "length", "language"},
     Grouping::kTogether},
    {FileFormat::kInfiniteBench,
     "infinitebench",
     {"answer", "input"},
     {"id", "context", "input", "answer", "options"},
     Grouping::kTogether},
    {FileFormat::kLines,
     "lines",
     {"question", "answer"},
     {"id", "context", "question", "answer", "metric", "max_tokens", "labels"},
     Grouping::kTogether},
};

const FormatTraits& TraitsOf(FileFormat format) {
  return *std::ranges::find_if(kFormats, [&](const auto& f) { return f.format == format; });
}

Result<FileFormat> Detect(const Json& line, const std::string& where) {
  for (const FormatTraits& format : kFormats) {
    const auto has = [&](std::string_view key) { return line.contains(key); };
    if (std::ranges::all_of(format.marks, has)) return format.format;
  }
  return WrongLine(where,
                   "its keys are those of no format that is known; --format says which it is");
}

// "passkey" of "data/passkey.jsonl".
std::string Stem(std::string path) {
  path.erase(0, path.rfind('/') + 1);
  return path.substr(0, path.find('.'));
}

std::string IdOf(const Json& line, size_t index) {
  for (const char* key : {"_id", "id"}) {
    const auto id = line.find(key);
    if (id == line.end()) continue;
    if (id->is_string()) return id->get<std::string>();
    if (id->is_number()) return id->dump();
  }
  return std::to_string(index);
}

// Reads the lines one after the other.
class Reader {
 public:
  explicit Reader(const FileRequest& request)
      : request_(request),
        task_(request.task.empty() ? Stem(request.path) : request.task),
        format_(request.format) {}

  Status Take(const Json& line, const std::string& where);
  Result<EvalFile> Finish();

 private:
  Result<Document> Read(const Json& line, const std::string& where);

  const FileRequest& request_;
  const std::string task_;
  std::optional<FileFormat> format_;
  EvalFile file_;
  size_t lines_ = 0;
  int64_t left_out_ = 0;  // turns
};

Result<Document> Reader::Read(const Json& line, const std::string& where) {
  const std::string id = IdOf(line, lines_);
  switch (*format_) {
    case FileFormat::kLongBench:
      return LongBenchDocument(line, task_, id, where);
    case FileFormat::kLongBench2:
      return LongBench2Document(line, id, where);
    case FileFormat::kInfiniteBench:
      return InfiniteBenchDocument(line, task_, id, where);
    case FileFormat::kScBench:
      return ScBenchDocument(line, task_, id, where, &left_out_);
    case FileFormat::kLines:
      break;
  }
  Result<RetrievalLine> read = ParseRetrievalLine(line, where, lines_);
  if (!read.ok()) return read.status();
  return DocumentOf(*read);
}

Status Reader::Take(const Json& line, const std::string& where) {
  if (request_.most > 0 && static_cast<int64_t>(lines_) == request_.most) return OkStatus();
  if (!line.is_object()) return WrongLine(where, "is not a JSON object");
  if (!format_.has_value()) {
    const Result<FileFormat> format = Detect(line, where);
    if (!format.ok()) return format.status();
    format_ = *format;
  }
  Result<Document> document = Read(line, where);
  if (!document.ok()) return document.status();
  for (std::string& key : OtherKeys(line, TraitsOf(*format_).known)) {
    file_.others.insert(std::move(key));
  }
  ++lines_;
  if (!document->questions.empty()) file_.documents.push_back(std::move(*document));
  return OkStatus();
}

Result<EvalFile> Reader::Finish() {
  if (left_out_ > 0) {
    file_.notes.push_back(
        fmt::format("{} turns of scbench_repoqa are left out: to score them takes a parser of "
                    "programming languages",
                    left_out_));
  }
  if (file_.documents.empty()) {
    const std::string why = file_.notes.empty() ? "" : ": " + file_.notes.front();
    return Status(StatusCode::kInvalidArgument, request_.path + " has no lines" + why);
  }
  file_.format = *format_;
  file_.grouping = TraitsOf(*format_).grouping;
  return std::move(file_);
}

}  // namespace

const char* FileFormatName(FileFormat format) { return TraitsOf(format).name; }

std::vector<std::string> FileFormatNames() {
  std::vector<std::string> names;
  for (const FormatTraits& format : kFormats) names.emplace_back(format.name);
  std::ranges::sort(names);
  return names;
}

std::optional<FileFormat> FileFormatOf(std::string_view name) {
  for (const FormatTraits& format : kFormats) {
    if (name == format.name) return format.format;
  }
  return std::nullopt;
}

Result<EvalFile> ReadEvalFile(std::string_view text, const FileRequest& request) {
  Reader reader(request);
  const auto take = [&](const Json& line, const std::string& where) {
    return reader.Take(line, where);
  };
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool list = first != std::string_view::npos && text[first] == '[';
  const Status status =
      list ? ForEachJsonItem(text, request.path, take) : ForEachJsonLine(text, request.path, take);
  if (!status.ok()) return status;
  return reader.Finish();
}

}  // namespace headway::eval
