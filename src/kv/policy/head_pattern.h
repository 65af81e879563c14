// HeadPattern: which KV heads keep only sink and recent tokens (streaming heads), and which keep
// everything (retrieval heads). After DuoAttention (Xiao et al., 2024) and HeadInfer's appendix D:
// a query at position p of a streaming head sees the keys k <= p with k < sink or k > p - recent.
#ifndef HEADWAY_KV_POLICY_HEAD_PATTERN_H_
#define HEADWAY_KV_POLICY_HEAD_PATTERN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headway/status.h"

namespace headway::kv {

struct HeadPattern {
  int64_t sink = 0;    // tokens
  int64_t recent = 0;  // tokens, the query's own among them; at least 1 where a head streams
  std::vector<std::vector<bool>> streaming;  // [layers][KV heads]; empty: no head streams

  bool IsStreaming(int layer, int head) const {
    return !streaming.empty() && streaming[static_cast<size_t>(layer)][static_cast<size_t>(head)];
  }
  int StreamingIn(int layer) const;
  int64_t StreamingHeads() const;
  bool operator==(const HeadPattern&) const = default;
};

// What DuoAttention's published patterns were made for.
inline constexpr int64_t kDefaultSink = 64;
inline constexpr int64_t kDefaultRecent = 256;

struct HeadPatternChoice {
  int layers = 0;  // that the pattern is for
  int kv_heads = 0;
  // The share of all heads to make streaming, those with the lowest scores; of equal ones the later
  // in the file. Without it, those with scores below the file's threshold.
  std::optional<double> sparsity = std::nullopt;
  // Tokens; without them the file's, or else the defaults.
  std::optional<int64_t> sink = std::nullopt;
  std::optional<int64_t> recent = std::nullopt;
};

// Reads a pattern from the text of a file, `name` in messages, which also name the line:
// - DuoAttention's full_attention_heads.tsv: a line a layer, a number a KV head, divided by tabs or
//   spaces: 0 for streaming, 1 for everything, or between; `#` begins a comment. The threshold is
//   0.5.
// - a JSON object with "scores": a list a layer of such numbers, and perhaps "threshold"; or
//   "streaming": a list a layer of the indices of streaming heads; and perhaps "sink" and "recent".
// kInvalidArgument where it does not fit the choice.
Result<HeadPattern> ParseHeadPattern(std::string_view text, const std::string& name,
                                     const HeadPatternChoice& choice);

// The config.json that DuoAttention puts beside the TSV: its sink_size and recent_size become the
// choice's where that has none. A file without the two, such as a model's, changes nothing.
Status ReadDuoAttentionConfig(std::string_view text, const std::string& name,
                              HeadPatternChoice* choice);

}  // namespace headway::kv

#endif  // HEADWAY_KV_POLICY_HEAD_PATTERN_H_
