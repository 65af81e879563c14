#include "engine/eval/head_profile.h"

#include <fmt/format.h>

namespace headway::eval {
namespace {

double ScoreOf(const HeadProfile& profile, int layer, int head) {
  return profile.scores[static_cast<size_t>(layer * profile.kv_heads + head)];
}

}  // namespace

Result<bool> ProfilePrompt(Context& context, const RetrievalLine& line,
                           std::span<const TokenId> prompt, const Hooks& hooks,
                           HeadProfile* profile) {
  Request request;
  request.prompt.assign(prompt.begin(), prompt.end());
  request.max_tokens = kAnswerTokens;
  context.Reset();
  Result<std::vector<Generation>> made = context.Generate({&request, 1}, hooks);
  if (!made.ok()) return made.status();
  const Generation& answer = made->front();
  if (answer.finish == FinishReason::kCancelled) return Status(StatusCode::kCancelled, "stopped");
  // A wrong answer says nothing of where the right one is.
  if (answer.tokens.empty() || ScoreOutput({line.metric, line.answer, {}, {}}, answer.text) < 1.0)
    return false;

  // The steps that produced the answer's tokens: from the prompt's last token on.
  std::vector<TokenId> tokens = request.prompt;
  tokens.insert(tokens.end(), answer.tokens.begin(), answer.tokens.end() - 1);
  Result<std::vector<float>> far = context.FarAttention(
      tokens, static_cast<int64_t>(prompt.size()) - 1, profile->sink, profile->recent, hooks);
  if (!far.ok()) return far.status();
  profile->scores.resize(far->size(), 0.0);
  ++profile->answered;
  for (size_t head = 0; head < far->size(); ++head) {
    double& mean = profile->scores[head];
    mean += (static_cast<double>((*far)[head]) - mean) / static_cast<double>(profile->answered);
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
