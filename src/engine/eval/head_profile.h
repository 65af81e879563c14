// Which KV heads of a model retrieve: measured on retrieval prompts, as scores that
// EngineOptions::head_pattern or evict_profile reads. HeadInfer's appendix D speculates them by
// "processing a customized dataset and analyzing the output"; DuoAttention trains them.
#ifndef HEADWAY_ENGINE_EVAL_HEAD_PROFILE_H_
#define HEADWAY_ENGINE_EVAL_HEAD_PROFILE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/eval/retrieval.h"
#include "headway/context.h"
#include "headway/status.h"

namespace headway::eval {

// Most tokens of an answer: more than the generator's questions ask for.
inline constexpr int64_t kAnswerTokens = 64;

struct HeadProfile {
  int layers = 0;
  int kv_heads = 0;
  int64_t sink = 64;  // as EngineOptions::head_pattern has them where nothing else is said
  int64_t recent = 256;
  // What is measured: the share of attention that falls behind sink and recent tokens, or on the
  // tokens of the document that are the answer (HeadKV: Fu et al., 2024).
  enum class Of : uint8_t { kFar, kAnswer };
  Of of = Of::kFar;
  // [layers * KV heads]: that share while the model says what it found, 0 to 1; the mean over the
  // prompts that it answered right.
  std::vector<double> scores;
  int64_t answered = 0;  // of those prompts
};

// Where the prompt first has this text, as tokens; empty where it has not. Decode gives the text of
// a prompt's first tokens.
TokenSpan SpanOf(const Engine& engine, std::span<const TokenId> prompt, const std::string& text);

// What is asked: a line, as a prompt of an engine.
struct ProfiledPrompt {
  const Engine& engine;
  const RetrievalLine& line;
  std::span<const TokenId> tokens;
};
// Adds one prompt: lets the model answer it, exactly and greedily, and if the answer is right,
// measures the steps that produced it (Context::FarAttention or AttentionOn). The profile's layers,
// heads, sink and recent are set. True when it was right and something was measured.
Result<bool> ProfilePrompt(Context& context, const ProfiledPrompt& prompt, const Hooks& hooks,
                           HeadProfile* profile);

// DuoAttention's TSV, with a comment that says how it was made; or the JSON that head_pattern
// reads, which keeps sink and recent, too.
std::string HeadProfileTsv(const HeadProfile& profile);
std::string HeadProfileJson(const HeadProfile& profile);

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_HEAD_PROFILE_H_
