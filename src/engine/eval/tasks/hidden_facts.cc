#include "engine/eval/tasks/hidden_facts.h"

#include <algorithm>
#include <string_view>

#include "base/random.h"

namespace headway::eval {
namespace {

constexpr int64_t kPassageTokens = 8;  // of its start, and at least of what follows

// Whole words from `at` on, each with the space before it, until they have kPassageTokens tokens.
// Empty where a line ends before.
Result<std::string_view> TakeWords(std::string_view text, size_t at, const TextMeasure& measure) {
  size_t end = at;
  while (true) {
    const size_t next = text.find_first_of(" \n", end + 1);
    if (end >= text.size() || text[end] != ' ' || next == std::string_view::npos ||
        next == end + 1) {
      return std::string_view();
    }
    end = next;
    const std::string_view words = text.substr(at, end - at);
    // No token is longer than its text: short text need not be measured.
    if (static_cast<int64_t>(words.size()) < kPassageTokens) continue;
    Result<int64_t> tokens = measure.tokens(words);
    if (!tokens.ok()) return tokens.status();
    if (*tokens >= kPassageTokens) return words;
  }
}

// Picks a passage of line->context whose start is found nowhere else in it.
Status AskForPassage(const Draft& draft, const TextMeasure& measure, RetrievalLine* line) {
  Random random(draft.passage_seed);
  const std::string_view text = line->context;
  for (int attempt = 0; attempt < 1000 && !text.empty(); ++attempt) {
    const size_t begin =
        text.find(' ', static_cast<size_t>(random.Below(static_cast<int64_t>(text.size()))));
    if (begin == std::string_view::npos) continue;
    Result<std::string_view> head = TakeWords(text, begin, measure);
    if (!head.ok()) return head.status();
    if (head->empty() || text.find(*head) != begin ||
        text.find(*head, begin + 1) != std::string_view::npos) {
      continue;
    }
    Result<std::string_view> tail = TakeWords(text, begin + head->size(), measure);
    if (!tail.ok()) return tail.status();
    if (tail->empty()) continue;
    line->question = draft.question + std::string(*head);
    line->answer = {std::string(tail->substr(1))};
    return OkStatus();
  }
  return RefusedTask(
      {"the haystack has no passage of two times 8 tokens whose start is unambiguous; take a "
       "longer ",
       Option::kPromptLength, " or another ", Option::kHaystack});
}

}  // namespace

Result<RetrievalLine> HideFacts(const Draft& draft, std::span<const std::string> pieces,
                                int64_t count, const TextMeasure& measure) {
  RetrievalLine line;
  line.question = draft.question;
  line.answer = draft.answer;
  size_t fact = 0;
  for (int64_t i = 0; i < count; ++i) {
    std::string_view piece = pieces[static_cast<size_t>(i)];
    // A document does not begin with white space, nor a line with a blank.
    if (line.context.empty())
      piece.remove_prefix(std::min(piece.find_first_not_of(" \r\n\t"), piece.size()));
    if (line.context.ends_with('\n') && piece.starts_with(' ')) piece.remove_prefix(1);
    line.context += piece;
    for (; fact < draft.facts.size(); ++fact) {
      if (draft.facts[fact].at * static_cast<double>(count) >= static_cast<double>(i + 1)) break;
      line.context += draft.facts[fact].text;
    }
  }
  while (line.context.ends_with('\n')) line.context.pop_back();
  if (!draft.passage) return line;
  if (Status s = AskForPassage(draft, measure, &line); !s.ok()) return s;
  return line;
}

}  // namespace headway::eval
