// Retrieval: does a model find what a long document says? A line is a document, a question about it
// and what the answer must contain.
#ifndef HEADWAY_ENGINE_EVAL_RETRIEVAL_H_
#define HEADWAY_ENGINE_EVAL_RETRIEVAL_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "headway/engine.h"
#include "headway/status.h"

namespace headway::eval {

struct RetrievalLine {
  std::string id;
  std::string context;
  std::string question;
  std::vector<std::string> answer;  // strings that must all appear in the output
};

// Lines of JSON objects with `context`, `question`, `answer` (a string or a list of strings) and,
// optionally, `id`, which else is the line's number from 0. Data sets have other members: they are
// not read, and `*others` gets their keys, in quotes. `name` is the file's, for messages.
Result<std::vector<RetrievalLine>> ParseRetrievalLines(std::string_view jsonl,
                                                       const std::string& name,
                                                       std::set<std::string>* others);

// One line of JSON, with its newline.
std::string RetrievalLineJson(const RetrievalLine& line);

// The user's turn: the document, a blank line, the question.
std::string AskAbout(std::string_view document, std::string_view question);

// The share of `answer`'s strings that appear in `output`.
double ScoreOutput(const std::vector<std::string>& answer, std::string_view output);

// The line as a prompt: one user turn through the model's chat template.
Result<std::vector<TokenId>> RetrievalPrompt(const Engine& engine, const RetrievalLine& line,
                                             const ChatOptions& options = {});

struct RetrievalResult {
  std::string id;
  std::string output;
  double score = 0.0;
  int64_t prompt_tokens = 0;
};

// Runs one prompt in slot 0 and scores what comes out; the cache is emptied first, so that lines do
// not depend on each other. kCancelled when `hooks.cancel` stopped it.
Result<RetrievalResult> RunRetrievalLine(Context& context, const RetrievalLine& line,
                                         Request request, const Hooks& hooks);

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_RETRIEVAL_H_
