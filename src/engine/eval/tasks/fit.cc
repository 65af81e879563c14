#include "engine/eval/tasks/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace headway::eval {
namespace {

constexpr int64_t kTemplateTokens = 64;  // about as many has a prompt beside its document, at most

}  // namespace

Status RefusedTask(Message message) {
  return Status(StatusCode::kInvalidArgument, Refusal{std::move(message)});
}

TextMeasure MeasureOf(const Engine& engine, const ChatOptions& options) {
  TextMeasure measure;
  measure.tokens = [&engine](std::string_view text) -> Result<int64_t> {
    Result<std::vector<TokenId>> tokens = engine.Encode(text, {.add_special_tokens = false});
    if (!tokens.ok()) return tokens.status();
    return static_cast<int64_t>(tokens->size());
  };
  measure.prompt_tokens = [&engine, options](const RetrievalLine& line) -> Result<int64_t> {
    Result<std::vector<TokenId>> tokens = RetrievalPrompt(engine, line, options);
    if (!tokens.ok()) return tokens.status();
    return static_cast<int64_t>(tokens->size());
  };
  return measure;
}

Result<std::vector<int64_t>> MeasurePieces(std::span<const std::string> pieces,
                                           const TextMeasure& measure) {
  std::vector<int64_t> tokens;
  for (const std::string& piece : pieces) {
    Result<int64_t> count = measure.tokens(piece);
    if (!count.ok()) return count.status();
    tokens.push_back(*count);
  }
  return tokens;
}

Result<RetrievalLine> Fit(const Pieces& pieces, int64_t length, const TextMeasure& measure) {
  const std::span<const int64_t> each = pieces.tokens;
  int64_t low = 0, high = std::ssize(each) + 1;  // fits; does not, or not there
  int64_t tokens = 0, guess = 0;
  while (guess + 1 < high && tokens + each[static_cast<size_t>(guess)] <= length) {
    tokens += each[static_cast<size_t>(guess++)];
  }
  if (guess + 1 == high && tokens + kTemplateTokens < length && !pieces.too_few.empty()) {
    Message message{fmt::format("about {} tokens of text, and {} are needed; ", tokens, length)};
    message += pieces.too_few;
    return RefusedTask(std::move(message));
  }
  RetrievalLine best;
  // What the question and the template take is found out by the first miss.
  for (int64_t count = std::max<int64_t>(guess, 1); low + 1 < high;) {
    Result<RetrievalLine> line = pieces.assemble(count);
    if (!line.ok()) return line.status();
    Result<int64_t> prompt = measure.prompt_tokens(*line);
    if (!prompt.ok()) return prompt.status();
    int64_t off = *prompt - length;
    if (off > 0) {
      high = count;
      while (off > 0 && count > low + 1) off -= each[static_cast<size_t>(--count)];
    } else {
      low = count;
      best = std::move(*line);
      if (-off <= pieces.slack) break;
      while (off < 0 && count < high - 1) off += each[static_cast<size_t>(count++)];
    }
    if (count <= low) count = low + 1;
    if (count >= high) count = high - 1;
  }
  if (low == 0) {
    return RefusedTask({"a ", Option::kPromptLength,
                        fmt::format(" of {} tokens is too short to hide a fact in", length)});
  }
  return best;
}

}  // namespace headway::eval
