// How many drafts a step verifies: as many as give the most tokens in a second, by what was
// accepted and by what steps have taken.
#ifndef HEADWAY_ENGINE_DRAFTS_PACE_H_
#define HEADWAY_ENGINE_DRAFTS_PACE_H_

#include <cstdint>

namespace headway {

// Of one sequence: how probable it is that a draft is right whose predecessors are, by the drafts
// so far, of which old ones count less.
class DraftAcceptance {
 public:
  double rate() const { return right_ / tried_; }
  // Of a step's drafts so many were right. The first wrong one says nothing of those behind it.
  void Observe(int64_t drafts, int64_t right);

 private:
  static constexpr double kForget = 0.95;

  double right_ = 1.4, tried_ = 2.0;  // as if some had been tried
};

// What decode steps take: a time, and one more for each draft. Of all sequences of a generator.
class DraftCosts {
 public:
  // A step of so many sequences, with so many drafts in all, and all that was done to make these.
  // No page closed in it: that takes longer, and only steps without drafts do it.
  void Observe(int64_t sequences, int64_t drafts, double seconds);
  // Of steps without drafts.
  bool known() const { return plain_steps_ >= kFirst; }
  bool tried() const { return draft_steps_ > 0; }
  // So many steps with drafts have followed one another that a plain one may take another time by
  // now: a processor that warms up is faster soon, a longer context slower.
  bool old() const { return since_plain_ >= look_; }
  // Of a sequence's step with `drafts` drafts, by one without.
  double Ratio(int64_t drafts) const { return 1.0 + static_cast<double>(drafts) * draft_; }

 private:
  static constexpr double kWeight = 0.1;  // of the last step, at least: first ones count for more
  static constexpr double kMost = 2.0;    // times what is known, that one step counts for
  static constexpr double kFaster = 0.2;  // of a plain step that is faster than what is known
  static constexpr int64_t kFirst = 3;    // steps, of which the fastest counts: the first is slow
  static constexpr int64_t kFirstLook = 4, kLastLook = 64;  // steps with drafts between plain ones

  int64_t plain_steps_ = 0, draft_steps_ = 0;
  int64_t since_plain_ = 0, look_ = kFirstLook;
  double plain_ = 0.0;  // seconds of a sequence's step
  double draft_ = 0.0;  // of that, that a draft takes more
};

// The number for a sequence, from 0 to `most`: the g that makes the mean number of tokens of a
// step, 1 + a + ... + a^g where a draft is right with probability a, most by what the step takes.
// Until something is known of what drafts take it is 1. Where it is 0 one draft is tried again
// after some steps, later and later; where it is not a plain step is, to know what that takes.
class DraftPace {
 public:
  // Of the next step, where there are drafts.
  int64_t Next(int64_t most, const DraftCosts& costs);
  void Observe(int64_t drafts, int64_t right);
  double rate() const { return acceptance_.rate(); }

 private:
  static constexpr int64_t kFirstPause = 32;
  static constexpr int64_t kLongestPause = 512;

  DraftAcceptance acceptance_;
  int64_t pause_ = kFirstPause;  // steps between two trials
  int64_t paused_ = 0;           // steps without drafts so far
  bool trying_ = false;          // the next step's draft is a trial
  bool may_pay_ = false;         // by what steps take, if it were always right
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_DRAFTS_PACE_H_
