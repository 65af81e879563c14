#include "engine/eval/perplexity.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "engine/eval/window_hooks.h"

namespace headway::eval {

Result<std::optional<TokenId>> TokenizerBos(const Engine& engine) {
  constexpr const char* kText = "a";  // any
  Result<std::vector<TokenId>> plain = engine.Encode(kText, {.add_special_tokens = false});
  if (!plain.ok()) return plain.status();
  Result<std::vector<TokenId>> whole = engine.Encode(kText, {.add_special_tokens = true});
  if (!whole.ok()) return whole.status();
  std::optional<TokenId> bos;
  if (whole->size() > plain->size() && !std::equal(plain->begin(), plain->end(), whole->begin())) {
    bos = whole->front();
  }
  return bos;
}

std::vector<std::vector<TokenId>> CutWindows(std::span<const TokenId> text,
                                             std::optional<TokenId> bos, int64_t length,
                                             int64_t most) {
  HEADWAY_CHECK(length >= 2);
  const size_t piece = static_cast<size_t>(length) - (bos.has_value() ? 1 : 0);
  std::vector<std::vector<TokenId>> windows;
  for (size_t at = 0; at < text.size(); at += piece) {
    if (most > 0 && static_cast<int64_t>(windows.size()) == most) break;
    const std::span<const TokenId> part = text.subspan(at, std::min(piece, text.size() - at));
    std::vector<TokenId> window;
    if (bos.has_value()) window.push_back(*bos);
    window.insert(window.end(), part.begin(), part.end());
    if (window.size() >= 2) windows.push_back(std::move(window));
  }
  return windows;
}

namespace {

constexpr int64_t kCompared = 512;  // predictions whose logits are kept at a time

Status TooShort() {
  return Status(StatusCode::kInvalidArgument, "the text is too short to predict a token of it");
}

int64_t PredictionsOf(std::span<const std::vector<TokenId>> windows) {
  int64_t total = 0;
  for (const std::vector<TokenId>& window : windows) total += std::ssize(window) - 1;
  return total;
}

// ln of the sum of the exponentials.
double LogSumOf(std::span<const float> logits) {
  const double top = logits[TopOf(logits)];
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(double{logit} - top);
  return top + std::log(sum);
}

}  // namespace

Result<Perplexity> MeasurePerplexity(Context& context,
                                     std::span<const std::vector<TokenId>> windows,
                                     const Hooks& hooks) {
  if (windows.empty()) return TooShort();
  WindowHooks inner(PredictionsOf(windows), hooks);
  Perplexity result;
  for (const std::vector<TokenId>& window : windows) {
    Result<Context::ScoreResult> score = context.Score(window, inner.get());
    if (!score.ok()) return score.status();
    result.Add(*score);
    inner.AddSeconds(context.timings().prefill_seconds);
    inner.FinishWindow(score->predictions);
  }
  result.Finish(std::ssize(windows));
  return result;
}

void Perplexity::Add(const Context::ScoreResult& score) {
  negative_log_likelihood += score.negative_log_likelihood;
  tokens += score.predictions;
}

void Perplexity::Finish(int64_t of_windows) {
  windows = of_windows;
  perplexity = std::exp(negative_log_likelihood / static_cast<double>(tokens));
}

size_t TopOf(std::span<const float> logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double KlDivergence(std::span<const float> exact, std::span<const float> other) {
  const double exact_sum = LogSumOf(exact);
  const double other_sum = LogSumOf(other);
  double divergence = 0.0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double log_p = double{exact[i]} - exact_sum;
    const double p = std::exp(log_p);
    if (p == 0.0) continue;  // p ln p has the limit 0, and logits of both may be -inf
    divergence += p * (log_p - (double{other[i]} - other_sum));
  }
  return std::max(divergence, 0.0);
}

Result<Comparison> ComparePerplexity(Context& exact, Context& approximate,
                                     std::span<const std::vector<TokenId>> windows,
                                     const Hooks& hooks) {
  if (windows.empty()) return TooShort();
  WindowHooks inner(PredictionsOf(windows), hooks);
  Hooks quiet;
  quiet.cancel = hooks.cancel;
  Comparison result;
  std::vector<float> kept;
  for (const std::vector<TokenId>& window : windows) {
    const auto count = static_cast<int64_t>(window.size()) - 1;
    for (int64_t begin = 0; begin < count; begin += kCompared) {
      Context::ScorePart part;
      part.begin = begin;
      part.end = std::min(begin + kCompared, count);
      kept.clear();
      part.logits = [&](int64_t, std::span<const float> logits) {
        kept.insert(kept.end(), logits.begin(), logits.end());
      };
      Result<Context::ScoreResult> score = exact.Score(window, part, quiet);
      if (!score.ok()) return score.status();
      result.exact.Add(*score);
      part.logits = [&](int64_t index, std::span<const float> logits) {
        const std::span<const float> row = std::span<const float>(kept).subspan(
            static_cast<size_t>(index - 1 - begin) * logits.size(), logits.size());
        result.kl_divergence += KlDivergence(row, logits);
        result.same_top += TopOf(row) == TopOf(logits) ? 1.0 : 0.0;
      };
      score = approximate.Score(window, part, inner.get());
      if (!score.ok()) return score.status();
      result.approximate.Add(*score);
      inner.AddSeconds(approximate.timings().prefill_seconds);
    }
    inner.FinishWindow(count);
  }
  result.exact.Finish(std::ssize(windows));
  result.approximate.Finish(std::ssize(windows));
  result.kl_divergence /= static_cast<double>(result.exact.tokens);
  result.same_top /= static_cast<double>(result.exact.tokens);
  return result;
}

}  // namespace headway::eval
