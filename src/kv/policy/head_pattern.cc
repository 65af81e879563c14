#include "kv/policy/head_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "headway/types.h"

namespace headway::kv {
namespace {

using Json = nlohmann::json;

// Parsed JSON takes some twenty times its text; the scores of the largest models are some KiB.
constexpr size_t kMaxText = size_t{4} << 20;
constexpr double kDefaultThreshold = 0.5;

// What a file says.
struct Scores {
  std::vector<double> values;  // [layers * KV heads], 0 for streaming, 1 for everything
  double threshold = kDefaultThreshold;
  bool are_kinds = false;  // 0 or 1 alone, from "streaming": nothing to rank
  std::optional<int64_t> sink;
  std::optional<int64_t> recent;
};

Status Wrong(const std::string& where, const std::string& what) {
  return Status(StatusCode::kInvalidArgument, "head pattern " + where + ": " + what);
}

// A piece of a hostile file, fit for one line of a terminal.
std::string Printable(std::string_view text) {
  std::string shown(text.substr(0, 20));
  for (char& c : shown) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return shown + (text.size() > 20 ? "..." : "");
}

Status CheckLayers(const std::string& name, size_t layers, const HeadPatternChoice& choice) {
  if (static_cast<int64_t>(layers) == choice.layers) return OkStatus();
  return Wrong(name, fmt::format("has {} layers and the model {}; give the pattern of this model",
                                 layers, choice.layers));
}

Status CheckHeads(const std::string& where, size_t heads, const HeadPatternChoice& choice) {
  if (static_cast<int64_t>(heads) == choice.kv_heads) return OkStatus();
  return Wrong(where, fmt::format("has {} heads and the model {} KV heads a layer; give the "
                                  "pattern of this model",
                                  heads, choice.kv_heads));
}

Result<double> ParseScore(const std::string& where, std::string_view text) {
  double value = 0.0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (at != end || error != std::errc() || !std::isfinite(value)) {
    return Wrong(where, fmt::format("'{}' is not a number", Printable(text)));
  }
  return value;
}

Result<Scores> ParseTsv(std::string_view text, const std::string& name,
                        const HeadPatternChoice& choice) {
  constexpr std::string_view kBlank = " \t\r";
  Scores scores;
  size_t layers = 0;
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    line = line.substr(0, line.find('#'));
    const std::string where = fmt::format("{}, line {}", name, number);
    size_t heads = 0;
    while (true) {
      line.remove_prefix(std::min(line.find_first_not_of(kBlank), line.size()));
      if (line.empty()) break;
      const std::string_view word = line.substr(0, line.find_first_of(kBlank));
      line.remove_prefix(word.size());
      Result<double> score = ParseScore(where, word);
      if (!score.ok()) return score.status();
      scores.values.push_back(*score);
      ++heads;
    }
    if (heads == 0) continue;
    if (Status s = CheckHeads(where, heads, choice); !s.ok()) return s;
    ++layers;
  }
  if (layers == 0) return Wrong(name, "has no scores");
  if (Status s = CheckLayers(name, layers, choice); !s.ok()) return s;
  return scores;
}

Result<std::optional<int64_t>> TokensOf(const Json& object, const char* key,
                                        const std::string& name) {
  const auto found = object.find(key);
  if (found == object.end()) return std::optional<int64_t>();
  if (!found->is_number_integer() || found->get<int64_t>() < 0 ||
      found->get<int64_t>() > kMaxLength) {
    return Wrong(name,
                 fmt::format("\"{}\" must be a whole number of tokens up to {}", key, kMaxLength));
  }
  return std::optional<int64_t>(found->get<int64_t>());
}

// Scores of a layer's heads or, where they are kinds, the indices of those that stream.
Status AddJsonLayer(const Json& list, const std::string& where, const HeadPatternChoice& choice,
                    Scores* scores) {
  if (!list.is_array()) return Wrong(where, "is not a list");
  if (!scores->are_kinds) {
    if (Status s = CheckHeads(where, list.size(), choice); !s.ok()) return s;
    for (const Json& score : list) {
      if (!score.is_number() || !std::isfinite(score.get<double>())) {
        return Wrong(
            where,
            fmt::format("{} is not a number",
                        Printable(score.dump(-1, ' ', false, Json::error_handler_t::replace))));
      }
      scores->values.push_back(score.get<double>());
    }
    return OkStatus();
  }
  std::vector<double> kinds(static_cast<size_t>(choice.kv_heads), 1.0);
  for (const Json& head : list) {
    if (!head.is_number_integer() || head.get<int64_t>() < 0 ||
        head.get<int64_t>() >= choice.kv_heads) {
      return Wrong(where,
                   fmt::format("{} is not one of the KV heads 0 to {}",
                               Printable(head.dump(-1, ' ', false, Json::error_handler_t::replace)),
                               choice.kv_heads - 1));
    }
    kinds[static_cast<size_t>(head.get<int64_t>())] = 0.0;
  }
  scores->values.insert(scores->values.end(), kinds.begin(), kinds.end());
  return OkStatus();
}

Result<Scores> ParseJson(std::string_view text, const std::string& name,
                         const HeadPatternChoice& choice) {
  const Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return Wrong(name, "is not a JSON object");
  Scores scores;
  scores.are_kinds = object.contains("streaming");
  const char* key = scores.are_kinds ? "streaming" : "scores";
  if (object.contains("streaming") == object.contains("scores") || !object[key].is_array()) {
    return Wrong(name, "must have either \"scores\" or \"streaming\": a list with a list a layer");
  }
  const Json& layers = object[key];
  if (Status s = CheckLayers(name, layers.size(), choice); !s.ok()) return s;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (Status s =
            AddJsonLayer(layers[layer], fmt::format("{}, layer {}", name, layer), choice, &scores);
        !s.ok()) {
      return s;
    }
  }
  if (const auto found = object.find("threshold"); found != object.end()) {
    if (!found->is_number() || !std::isfinite(found->get<double>())) {
      return Wrong(name, "\"threshold\" must be a number");
    }
    scores.threshold = found->get<double>();
  }
  for (const auto& [field, target] :
       {std::pair{"sink", &scores.sink}, std::pair{"recent", &scores.recent}}) {
    Result<std::optional<int64_t>> tokens = TokensOf(object, field, name);
    if (!tokens.ok()) return tokens.status();
    *target = *tokens;
  }
  return scores;
}

// Which heads stream, as ParseHeadPattern's choice says. DuoAttention compares with the quantile of
// the scores instead, which misses the share that was asked for where scores are equal.
std::vector<bool> StreamingOf(const Scores& scores, const HeadPatternChoice& choice) {
  const size_t heads = scores.values.size();
  std::vector<bool> streaming(heads, false);
  if (!choice.sparsity.has_value()) {
    for (size_t i = 0; i < heads; ++i) streaming[i] = scores.values[i] < scores.threshold;
    return streaming;
  }
  std::vector<size_t> order(heads);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return scores.values[a] != scores.values[b] ? scores.values[a] < scores.values[b] : a > b;
  });
  const auto count =
      static_cast<size_t>(std::lround(*choice.sparsity * static_cast<double>(heads)));
  for (size_t i = 0; i < count; ++i) streaming[order[i]] = true;
  return streaming;
}

}  // namespace

int HeadPattern::StreamingIn(int layer) const {
  if (streaming.empty()) return 0;
  const std::vector<bool>& heads = streaming[static_cast<size_t>(layer)];
  return static_cast<int>(std::count(heads.begin(), heads.end(), true));
}

int64_t HeadPattern::StreamingHeads() const {
  int64_t heads = 0;
  for (int layer = 0; layer < static_cast<int>(streaming.size()); ++layer) {
    heads += StreamingIn(layer);
  }
  return heads;
}

Result<HeadPattern> ParseHeadPattern(std::string_view text, const std::string& name,
                                     const HeadPatternChoice& choice) {
  if (text.size() > kMaxText) return Wrong(name, "is longer than 4 MiB; is it another file?");
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string_view::npos && text[first] == '{';
  Result<Scores> scores = is_json ? ParseJson(text, name, choice) : ParseTsv(text, name, choice);
  if (!scores.ok()) return scores.status();
  if (choice.sparsity.has_value()) {
    if (!(*choice.sparsity >= 0.0 && *choice.sparsity <= 1.0)) {
      return Wrong(name, "the share of streaming heads must be 0 to 1");
    }
    if (scores->are_kinds) {
      return Wrong(name,
                   "says which heads stream and has no scores to choose by; leave the "
                   "sparsity out");
    }
  }
  HeadPattern pattern;
  pattern.sink = choice.sink.value_or(scores->sink.value_or(kDefaultSink));
  pattern.recent = choice.recent.value_or(scores->recent.value_or(kDefaultRecent));
  if (pattern.sink < 0 || pattern.sink > kMaxLength || pattern.recent < 1 ||
      pattern.recent > kMaxLength) {
    return Wrong(name, fmt::format("{} sink and {} recent tokens; give 0 to {} and 1 to {}",
                                   pattern.sink, pattern.recent, kMaxLength, kMaxLength));
  }
  const std::vector<bool> streaming = StreamingOf(*scores, choice);
  if (std::find(streaming.begin(), streaming.end(), true) == streaming.end()) return HeadPattern();
  for (int layer = 0; layer < choice.layers; ++layer) {
    const auto begin = streaming.begin() + int64_t{layer} * choice.kv_heads;
    pattern.streaming.emplace_back(begin, begin + choice.kv_heads);
  }
  return pattern;
}

Status ReadDuoAttentionConfig(std::string_view text, const std::string& name,
                              HeadPatternChoice* choice) {
  const Json object =
      text.size() > kMaxText ? Json() : Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return OkStatus();
  for (const auto& [field, target] :
       {std::pair{"sink_size", &choice->sink}, std::pair{"recent_size", &choice->recent}}) {
    Result<std::optional<int64_t>> tokens = TokensOf(object, field, name);
    if (!tokens.ok()) return tokens.status();
    if (!target->has_value()) *target = *tokens;
  }
  return OkStatus();
}

}  // namespace headway::kv
