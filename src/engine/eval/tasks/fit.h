// Fit: the longest document of its pieces with which a prompt has the length asked for.
#ifndef HEADWAY_ENGINE_EVAL_TASKS_FIT_H_
#define HEADWAY_ENGINE_EVAL_TASKS_FIT_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/eval/retrieval.h"
#include "headway/engine.h"
#include "headway/refusal.h"
#include "headway/status.h"

namespace headway::eval {

// What the generator needs of a model: lengths are measured in its tokens.
struct TextMeasure {
  std::function<Result<int64_t>(std::string_view text)> tokens;             // of the text alone
  std::function<Result<int64_t>(const RetrievalLine& line)> prompt_tokens;  // of the whole prompt
};
// `engine` must outlive it.
TextMeasure MeasureOf(const Engine& engine, const ChatOptions& options = {});

Result<std::vector<int64_t>> MeasurePieces(std::span<const std::string> pieces,
                                           const TextMeasure& measure);

// What a document is made of.
struct Pieces {
  // About as many tokens has each, in the order in which a longer document gets them.
  std::span<const int64_t> tokens;
  std::function<Result<RetrievalLine>(int64_t count)> assemble;  // of the first ones
  // Tokens by which the prompt may be shorter than the longest possible.
  int64_t slack = 0;
  Message too_few;  // what to do where all of them have too few tokens; empty: they never have
};

// At most `length` tokens. Tokens of the pieces are added up for a first guess, the prompt is
// measured as a whole from there on.
Result<RetrievalLine> Fit(const Pieces& pieces, int64_t length, const TextMeasure& measure);

Status RefusedTask(Message message);

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_TASKS_FIT_H_
