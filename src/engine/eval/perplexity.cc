#include "engine/eval/perplexity.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace headway::eval {

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

Result<Perplexity> MeasurePerplexity(Context& context,
                                     std::span<const std::vector<TokenId>> windows,
                                     const Hooks& hooks) {
  if (windows.empty()) {
    return Status(StatusCode::kInvalidArgument, "the text is too short to predict a token of it");
  }
  int64_t total = 0, before = 0;
  for (const auto& window : windows) total += static_cast<int64_t>(window.size()) - 1;
  double seconds_before = 0.0;
  Hooks inner = hooks;
  if (hooks.on_progress) {
    inner.on_progress = [&](const Progress& of_window) {
      Progress progress = of_window;
      progress.done += before;
      progress.total = total;
      progress.seconds += seconds_before;
      hooks.on_progress(progress);
    };
  }
  Perplexity result;
  for (const std::vector<TokenId>& window : windows) {
    Result<Context::ScoreResult> score = context.Score(window, inner);
    if (!score.ok()) return score.status();
    result.negative_log_likelihood += score->negative_log_likelihood;
    result.tokens += score->predictions;
    ++result.windows;
    before += static_cast<int64_t>(window.size()) - 1;
    seconds_before += context.timings().prefill_seconds;
  }
  result.perplexity = std::exp(result.negative_log_likelihood / static_cast<double>(result.tokens));
  return result;
}

}  // namespace headway::eval
