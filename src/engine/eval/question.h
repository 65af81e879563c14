// What an evaluation asks: documents, each with one question or several, and what came back. A
// document is read once, whatever the number of its questions.
#ifndef HEADWAY_ENGINE_EVAL_QUESTION_H_
#define HEADWAY_ENGINE_EVAL_QUESTION_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/eval/metric.h"
#include "headway/engine.h"
#include "headway/status.h"

namespace headway::eval {

// Names and values by which scores are grouped: {"task", "passkey"}, {"length", "65536"}.
using Labels = std::vector<std::pair<std::string, std::string>>;

struct Question {
  std::string id;
  std::string text;  // behind the document and a blank line
  Expected expected;
  int64_t max_tokens = 0;  // of the output; 0: as the run has it
  Labels labels = {};
};

enum class Turn {
  kChat,  // one user turn through the model's chat template
  kPlain  // the text as it is, which the model continues
};

struct Document {
  std::string text;
  Turn turn = Turn::kChat;
  std::vector<Question> questions;
};

// The user's turn: the document, a blank line, the question. One of both may be empty.
std::string AskAbout(std::string_view document, std::string_view question);

Result<std::vector<TokenId>> PromptOf(const Engine& engine, const Document& document,
                                      const Question& question, const ChatOptions& options = {});

// Takes tokens out of the middle of the document until each of its prompts has at most `most`, as
// LongBench does. True where that was needed. kInvalidArgument where the questions alone have more.
Result<bool> CutMiddle(const Engine& engine, int64_t most, const ChatOptions& options,
                       Document* document);

struct Answered {
  std::string id;
  std::string output;
  double score = 0.0;
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;  // of the prompt: read for a question before it
  Labels labels = {};
};

// Runs one prompt in slot 0 and scores what comes out. The part of the cache that equals the
// prompt's beginning is used: Context::Reset makes a question independent of those before it.
// kCancelled when `hooks.cancel` stopped it.
Result<Answered> Ask(Context& context, const Question& question, Request request,
                     const Hooks& hooks);

// Mean scores of the results that have the same labels, in the order in which these come first.
struct GroupScore {
  Labels labels = {};
  int64_t questions = 0;
  double score = 0.0;
};
enum class Grouping {
  kTogether,  // by all labels at once
  kEach       // by one label after the other
};
std::vector<GroupScore> GroupScores(std::span<const Answered> results, Grouping grouping);
double MeanScore(std::span<const Answered> results);

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_QUESTION_H_
