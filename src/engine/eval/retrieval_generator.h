// Makes retrieval lines of any length: a haystack of prose with facts hidden in it and a question
// about one of them. The kinds, their sentences, questions and answers are those of the demo
// model's card. The same for a seed everywhere.
#ifndef HEADWAY_ENGINE_EVAL_RETRIEVAL_GENERATOR_H_
#define HEADWAY_ENGINE_EVAL_RETRIEVAL_GENERATOR_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/eval/retrieval.h"
#include "headway/engine.h"
#include "headway/status.h"

namespace headway::eval {

enum class RetrievalKind { kNeedle, kPasskey, kPlace, kVariables, kPassage };
const char* RetrievalKindName(RetrievalKind kind);  // "needle", "passkey", ...
// Names divided by commas.
Result<std::vector<RetrievalKind>> ParseRetrievalKinds(std::string_view names);
std::vector<RetrievalKind> AllRetrievalKinds();

// What the generator needs of a model: lengths are measured in its tokens.
struct TextMeasure {
  std::function<Result<int64_t>(std::string_view text)> tokens;             // of the text alone
  std::function<Result<int64_t>(const RetrievalLine& line)> prompt_tokens;  // of the whole prompt
};
// `engine` must outlive it.
TextMeasure MeasureOf(const Engine& engine, const ChatOptions& options = {});

struct RetrievalRequest {
  int64_t count = 0;
  int64_t length = 0;  // tokens of the whole prompt: the most, nearly reached
  uint64_t seed = 0;
  std::vector<RetrievalKind> kinds;  // taken in turn
  // Text to hide facts in, each line from a random place of it on; empty: made up for each line.
  std::string haystack;
};

Result<std::vector<RetrievalLine>> GenerateRetrieval(const RetrievalRequest& request,
                                                     const TextMeasure& measure);

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_RETRIEVAL_GENERATOR_H_
