// Retrieval: does a model find what a long document says? A line is a document, a question about it
// and what the answer must contain.
#ifndef HEADWAY_ENGINE_EVAL_RETRIEVAL_H_
#define HEADWAY_ENGINE_EVAL_RETRIEVAL_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/eval/question.h"
#include "headway/engine.h"
#include "headway/status.h"

namespace headway::eval {

struct RetrievalLine {
  std::string id;
  std::string context;
  std::string question;
  std::vector<std::string> answer;  // what the metric compares the output with
  Metric metric = Metric::kContains;
  int64_t max_tokens = 0;  // of the output; 0: as the run has it
  Labels labels = {};
};

Document DocumentOf(const RetrievalLine& line);

// Lines of JSON objects with `context`, `question`, `answer` (a string or a list of strings) and,
// optionally, `id`, which else is the line's number from 0, `metric`, `max_tokens` and `labels`, an
// object of strings and numbers. Data sets have other members: they are not read, and `*others`
// gets their keys, in quotes. `name` is the file's, for messages.
Result<std::vector<RetrievalLine>> ParseRetrievalLines(std::string_view jsonl,
                                                       const std::string& name,
                                                       std::set<std::string>* others);

// One of them, with this number from 0, which is at `where`.
Result<RetrievalLine> ParseRetrievalLine(const nlohmann::ordered_json& line,
                                         const std::string& where, size_t index);

// One line of JSON, with its newline.
std::string RetrievalLineJson(const RetrievalLine& line);

// The line as a prompt: one user turn through the model's chat template.
Result<std::vector<TokenId>> RetrievalPrompt(const Engine& engine, const RetrievalLine& line,
                                             const ChatOptions& options = {});

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_RETRIEVAL_H_
