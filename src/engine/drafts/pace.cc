#include "engine/drafts/pace.h"

#include <algorithm>

namespace headway {

void DraftAcceptance::Observe(int64_t drafts, int64_t right) {
  right_ = kForget * right_ + static_cast<double>(right);
  tried_ = kForget * tried_ + static_cast<double>(std::min(right + 1, drafts));
}

void DraftCosts::Observe(int64_t sequences, int64_t drafts, double seconds) {
  const double each = seconds / static_cast<double>(sequences);
  const auto follow = [](double known, double seen, double weight) {
    return known + weight * (std::min(seen, kMost * known) - known);
  };
  if (drafts == 0) {
    if (since_plain_ > 0) look_ = std::min(2 * look_, kLastLook);
    since_plain_ = 0;
    if (known()) {
      plain_ = follow(plain_, each, each < plain_ ? kFaster : kWeight);
    } else {
      plain_ = plain_steps_ == 0 ? each : std::min(plain_, each);
    }
    ++plain_steps_;
  } else if (known()) {
    ++since_plain_;
    const double more = std::max(each / plain_ - 1.0, 0.0);
    // Not less than something: a step that seems to take nothing more must be able to cost again.
    const double of_draft = more * static_cast<double>(sequences) / static_cast<double>(drafts);
    ++draft_steps_;
    const double weight = std::max(kWeight, 1.0 / static_cast<double>(draft_steps_));
    draft_ = std::max(0.005, draft_steps_ > 1 ? follow(draft_, of_draft, weight) : of_draft);
  }
}

int64_t DraftPace::Next(int64_t most, const DraftCosts& costs) {
  if (!costs.known() || costs.old()) return 0;
  if (!costs.tried()) return std::min<int64_t>(most, 1);
  int64_t best = 0;
  double best_speed = 1.0, tokens = 1.0, right = 1.0;
  for (int64_t drafts = 1; drafts <= most; ++drafts) {
    right *= acceptance_.rate();
    tokens += right;
    const double speed = tokens / costs.Ratio(drafts);
    if (speed <= best_speed) continue;
    best_speed = speed;
    best = drafts;
  }
  may_pay_ = costs.Ratio(1) < 2.0;
  trying_ = best == 0 && most > 0 && ++paused_ > pause_;
  return trying_ ? 1 : best;
}

void DraftPace::Observe(int64_t drafts, int64_t right) {
  acceptance_.Observe(drafts, right);
  if (!trying_) {
    pause_ = kFirstPause;
    paused_ = 0;
  } else if (right == 0 || !may_pay_) {
    pause_ = std::min(2 * pause_, kLongestPause);
    paused_ = 0;
  }
  // Where a trial was right, and could have paid, the next step tries again.
}

}  // namespace headway
