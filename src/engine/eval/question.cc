#include "engine/eval/question.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace headway::eval {
namespace {

// Where the halves meet, the tokenizer may make more tokens than there were.
constexpr int64_t kSeamTokens = 4;

Result<int64_t> LongestPrompt(const Engine& engine, const Document& document,
                              const ChatOptions& options) {
  int64_t longest = 0;
  for (const Question& question : document.questions) {
    Result<std::vector<TokenId>> prompt = PromptOf(engine, document, question, options);
    if (!prompt.ok()) return prompt.status();
    longest = std::max(longest, static_cast<int64_t>(std::ssize(*prompt)));
  }
  return longest;
}

void AddTo(std::vector<GroupScore>* groups, const Labels& labels, double score) {
  auto group = std::find_if(groups->begin(), groups->end(),
                            [&](const GroupScore& g) { return g.labels == labels; });
  if (group == groups->end()) group = groups->insert(groups->end(), GroupScore{labels, 0, 0.0});
  ++group->questions;
  group->score += (score - group->score) / static_cast<double>(group->questions);
}

}  // namespace

std::string AskAbout(std::string_view document, std::string_view question) {
  const char* divider = document.empty() || question.empty() ? "" : "\n\n";
  return fmt::format("{}{}{}", document, divider, question);
}

Result<std::vector<TokenId>> PromptOf(const Engine& engine, const Document& document,
                                      const Question& question, const ChatOptions& options) {
  std::string text = AskAbout(document.text, question.text);
  if (document.turn == Turn::kPlain) return engine.Encode(text, {.add_special_tokens = true});
  const ChatMessage turn{"user", std::move(text)};
  Result<std::string> rendered = engine.RenderChat({&turn, 1}, options);
  if (!rendered.ok()) return rendered.status();
  return engine.Encode(*rendered, {.add_special_tokens = false, .parse_special = true});
}

Result<bool> CutMiddle(const Engine& engine, int64_t most, const ChatOptions& options,
                       Document* document) {
  for (bool cut = false;; cut = true) {
    const Result<int64_t> longest = LongestPrompt(engine, *document, options);
    if (!longest.ok()) return longest.status();
    if (*longest <= most) return cut;
    const Result<std::vector<TokenId>> tokens =
        engine.Encode(document->text, {.add_special_tokens = false});
    if (!tokens.ok()) return tokens.status();
    const int64_t keep = std::ssize(*tokens) - (*longest - most) - kSeamTokens;
    if (keep < 2) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("a prompt of at most {} tokens leaves no room for the document of "
                                "question {}",
                                most, document->questions.front().id));
    }
    const auto head = static_cast<size_t>(keep / 2), tail = static_cast<size_t>(keep) - head;
    const std::span<const TokenId> all(*tokens);
    const Result<std::string> before = engine.Decode(all.first(head), SpecialTokens::kKeep);
    if (!before.ok()) return before.status();
    const Result<std::string> behind = engine.Decode(all.last(tail), SpecialTokens::kKeep);
    if (!behind.ok()) return behind.status();
    document->text = *before + *behind;
  }
}

Result<Answered> Ask(Context& context, const Question& question, Request request,
                     const Hooks& hooks) {
  Result<std::vector<Generation>> made = context.Generate({&request, 1}, hooks);
  if (!made.ok()) return made.status();
  Generation& generation = made->front();
  if (generation.finish == FinishReason::kCancelled) {
    return Status(StatusCode::kCancelled, "stopped in line " + question.id);
  }
  Answered result;
  result.id = question.id;
  result.score = ScoreOutput(question.expected, generation.text);
  result.output = std::move(generation.text);
  result.prompt_tokens = generation.prompt_tokens;
  result.reused_tokens = generation.reused_tokens;
  result.labels = question.labels;
  return result;
}

std::vector<GroupScore> GroupScores(std::span<const Answered> results, Grouping grouping) {
  std::vector<GroupScore> groups;
  if (grouping == Grouping::kTogether) {
    for (const Answered& result : results) AddTo(&groups, result.labels, result.score);
    return groups;
  }
  std::vector<std::string> names;
  for (const Answered& result : results) {
    for (const auto& [name, value] : result.labels) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  for (const std::string& name : names) {
    std::vector<GroupScore> of_name;
    for (const Answered& result : results) {
      for (const auto& label : result.labels) {
        if (label.first == name) AddTo(&of_name, {label}, result.score);
      }
    }
    groups.insert(groups.end(), of_name.begin(), of_name.end());
  }
  return groups;
}

double MeanScore(std::span<const Answered> results) {
  double sum = 0.0;
  for (const Answered& result : results) sum += result.score;
  return results.empty() ? 0.0 : sum / static_cast<double>(results.size());
}

}  // namespace headway::eval
