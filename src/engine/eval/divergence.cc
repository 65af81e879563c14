#include "engine/eval/divergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/check.h"

namespace headway::eval {

Result<SpreadWindows> SpreadWindows::Over(std::span<const TokenId> text, std::optional<TokenId> bos,
                                          const Shape& shape) {
  HEADWAY_CHECK(shape.compared >= 1 && shape.compared < shape.length && shape.count >= 1);
  const SpreadWindows windows(text, bos, shape);
  const int64_t least = windows.Piece() + (shape.count - 1) * shape.compared;
  if (std::ssize(text) >= least) return windows;
  return Status(
      StatusCode::kInvalidArgument,
      fmt::format("the text has {} tokens, and {} window{} of {} tokens, of which {} are compared, "
                  "need{} {}; take a longer text, or fewer or shorter windows",
                  text.size(), shape.count, shape.count == 1 ? "" : "s", shape.length,
                  shape.compared, shape.count == 1 ? "s" : "", least));
}

int64_t SpreadWindows::Piece() const { return shape_.length - (bos_.has_value() ? 1 : 0); }

std::vector<TokenId> SpreadWindows::Window(int64_t index) const {
  const int64_t room = std::ssize(text_) - Piece();  // at least `index`: the product fits
  const int64_t begin = shape_.count == 1 ? 0 : index * room / (shape_.count - 1);
  std::vector<TokenId> window;
  window.reserve(static_cast<size_t>(shape_.length));
  if (bos_.has_value()) window.push_back(*bos_);
  const auto piece = text_.subspan(static_cast<size_t>(begin), static_cast<size_t>(Piece()));
  window.insert(window.end(), piece.begin(), piece.end());
  return window;
}

Divergence SummarizeSteps(std::span<const StepDistance> steps, int64_t windows) {
  HEADWAY_CHECK(windows >= 1 && !steps.empty() && std::ssize(steps) % windows == 0);
  Divergence result;
  std::vector<double> sorted, means(static_cast<size_t>(windows), 0.0);
  const size_t of_window = steps.size() / means.size();
  for (size_t i = 0; i < steps.size(); ++i) {
    const double share = steps[i].kl_divergence / static_cast<double>(of_window);
    means[i / of_window] += share;
    result.mean += share / static_cast<double>(windows);
    result.same_top += steps[i].same_top ? 1.0 : 0.0;
    sorted.push_back(steps[i].kl_divergence);
  }
  result.same_top /= static_cast<double>(steps.size());
  std::sort(sorted.begin(), sorted.end());
  result.p95 = sorted[(sorted.size() * 95 + 99) / 100 - 1];
  result.most = sorted.back();
  if (windows > 1) {
    double squares = 0.0;
    for (const double mean : means) squares += (mean - result.mean) * (mean - result.mean);
    const auto n = static_cast<double>(windows);
    result.standard_error = std::sqrt(squares / (n - 1.0) / n);
  }
  return result;
}

int64_t StepComparison::Bytes(const SpreadWindows::Shape& shape, int64_t vocab) {
  return shape.count * shape.compared * vocab * int64_t{sizeof(float)};
}

StepComparison::StepComparison(const SpreadWindows& windows, const Hooks& hooks)
    : windows_(windows), hooks_(2 * windows.shape().count * (windows.shape().length - 1), hooks) {}

// Each step reads the token before the one that it predicts, in a call of its own, which makes it a
// decode step. What lies before is read as perplexity reads it.
Result<Perplexity> StepComparison::Run(Context& context, const StepLogits& logits) {
  const SpreadWindows::Shape& shape = windows_.shape();
  const int64_t prefix = shape.length - 1 - shape.compared;
  Perplexity result;
  for (int64_t w = 0; w < shape.count; ++w) {
    const std::vector<TokenId> window = windows_.Window(w);
    const auto score = [&](const Context::ScorePart& part) {
      Result<Context::ScoreResult> scored = context.Score(window, part, hooks_.get());
      hooks_.AddSeconds(context.timings().prefill_seconds);
      return scored;
    };
    if (prefix > 0) {
      if (Status s = score({0, prefix, {}}).status(); !s.ok()) return s;
    }
    for (int64_t at = prefix; at < shape.length - 1; ++at) {
      const auto keep = [&](int64_t, std::span<const float> of_step) { logits(of_step); };
      const Result<Context::ScoreResult> step = score({at, at + 1, keep});
      if (!step.ok()) return step.status();
      result.Add(*step);
    }
    hooks_.FinishWindow(shape.length - 1);
  }
  result.Finish(shape.count);
  return result;
}

Status StepComparison::RunExact(Context& context) {
  kept_.clear();
  Result<Perplexity> exact = Run(context, [this](std::span<const float> logits) {
    if (kept_.empty()) {
      // At once: growth would copy, and take up to twice as much on the way.
      kept_.reserve(static_cast<size_t>(Bytes(windows_.shape(), std::ssize(logits))) /
                    sizeof(float));
    }
    kept_.insert(kept_.end(), logits.begin(), logits.end());
  });
  if (!exact.ok()) return exact.status();
  exact_ = *exact;
  return OkStatus();
}

Result<Divergence> StepComparison::RunApproximate(Context& context) {
  std::vector<StepDistance> steps;
  Result<Perplexity> approximate = Run(context, [&](std::span<const float> logits) {
    const auto exact =
        std::span<const float>(kept_).subspan(steps.size() * logits.size(), logits.size());
    steps.push_back({KlDivergence(exact, logits), TopOf(exact) == TopOf(logits)});
  });
  if (!approximate.ok()) return approximate.status();
  Divergence result = SummarizeSteps(steps, windows_.shape().count);
  result.exact = exact_;
  result.approximate = *approximate;
  return result;
}

}  // namespace headway::eval
