#include "engine/eval/head_profile.h"

#include <fmt/format.h>

namespace headway::eval {
namespace {

double ScoreOf(const HeadProfile& profile, int layer, int head) {
  return profile.scores[static_cast<size_t>(layer * profile.kv_heads + head)];
}

// What one text adds to the scores; empty where there is nothing to measure.
Result<std::vector<float>> Measure(Context& context, const ProfiledPrompt& prompt,
                                   std::span<const TokenId> tokens, const Hooks& hooks,
                                   const HeadProfile& profile) {
  // The steps that produced the answer's tokens: from the prompt's last token on.
  const int64_t from = std::ssize(prompt.tokens) - 1;
  if (profile.of == HeadProfile::Of::kFar) {
    return context.FarAttention(tokens, from, profile.sink, profile.recent, hooks);
  }
  std::vector<float> sum;
  for (const std::string& answer : prompt.line.answer) {
    const TokenSpan span = SpanOf(prompt.engine, prompt.tokens, answer);
    if (span.begin >= span.end || span.end > from) continue;
    Result<std::vector<float>> on = context.AttentionOn(tokens, from, span, hooks);
    if (!on.ok()) return on;
    sum.resize(on->size(), 0.0f);
    for (size_t head = 0; head < sum.size(); ++head) sum[head] += (*on)[head];
  }
  return sum;
}

}  // namespace

TokenSpan SpanOf(const Engine& engine, std::span<const TokenId> prompt, const std::string& text) {
  const auto shown = [&](int64_t tokens) {
    const Result<std::string> read =
        engine.Decode(prompt.first(static_cast<size_t>(tokens)), SpecialTokens::kKeep);
    return read.ok() ? *read : "";
  };
  const size_t at = shown(std::ssize(prompt)).find(text);
  if (text.empty() || at == std::string::npos) return {};
  // The fewest first tokens whose text has so many bytes.
  const auto tokens_for = [&](size_t bytes) {
    int64_t low = 0, high = std::ssize(prompt);
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (shown(middle).size() < bytes) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  };
  return {tokens_for(at + 1) - 1, tokens_for(at + text.size())};
}

Result<bool> ProfilePrompt(Context& context, const ProfiledPrompt& prompt, const Hooks& hooks,
                           HeadProfile* profile) {
  Request request;
  request.prompt.assign(prompt.tokens.begin(), prompt.tokens.end());
  request.max_tokens = kAnswerTokens;
  context.Reset();
  Result<std::vector<Generation>> made = context.Generate({&request, 1}, hooks);
  if (!made.ok()) return made.status();
  const Generation& answer = made->front();
  if (answer.finish == FinishReason::kCancelled) return Status(StatusCode::kCancelled, "stopped");
  // A wrong answer says nothing of where the right one is.
  const RetrievalLine& line = prompt.line;
  if (answer.tokens.empty() || ScoreOutput({line.metric, line.answer, {}, {}}, answer.text) < 1.0)
    return false;

  std::vector<TokenId> tokens = request.prompt;
  tokens.insert(tokens.end(), answer.tokens.begin(), answer.tokens.end() - 1);
  Result<std::vector<float>> shares = Measure(context, prompt, tokens, hooks, *profile);
  if (!shares.ok()) return shares.status();
  if (shares->empty()) return false;
  profile->scores.resize(shares->size(), 0.0);
  ++profile->answered;
  for (size_t head = 0; head < shares->size(); ++head) {
    double& mean = profile->scores[head];
    mean += (static_cast<double>((*shares)[head]) - mean) / static_cast<double>(profile->answered);
  }
  return true;
}

std::string HeadProfileTsv(const HeadProfile& profile) {
  std::string text = fmt::format(
      "# share of attention behind {} sink and {} recent tokens, {} prompts; a line a layer, a "
      "column a KV head\n",
      profile.sink, profile.recent, profile.answered);
  for (int layer = 0; layer < profile.layers; ++layer) {
    for (int head = 0; head < profile.kv_heads; ++head) {
      text += fmt::format("{}{:.6f}", head == 0 ? "" : "\t", ScoreOf(profile, layer, head));
    }
    text += "\n";
  }
  return text;
}

std::string HeadProfileJson(const HeadProfile& profile) {
  std::string text = fmt::format("{{\"sink\": {}, \"recent\": {},\n \"scores\": [\n", profile.sink,
                                 profile.recent);
  for (int layer = 0; layer < profile.layers; ++layer) {
    for (int head = 0; head < profile.kv_heads; ++head) {
      text += fmt::format("{}{:.6f}", head == 0 ? "  [" : ", ", ScoreOf(profile, layer, head));
    }
    text += layer + 1 == profile.layers ? "]\n" : "],\n";
  }
  return text + " ]}\n";
}

}  // namespace headway::eval
