// Heads that share a budget, of which each of several ranks has some: who has the best of all is
// found by counting, so that no scores but a few sums pass between the ranks.
#ifndef HEADWAY_KV_POLICY_SHARING_HEADS_H_
#define HEADWAY_KV_POLICY_SHARING_HEADS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "headway/status.h"

namespace headway::kv {

// What ranks add up on the host. All make the same calls, with as many values.
class RankSums {
 public:
  virtual ~RankSums() = default;
  // The values become their sums over the ranks, added in the order of these: the same on all.
  virtual Status AddUp(std::span<int64_t> values) = 0;
  virtual Status AddUp(std::span<double> values) = 0;
};

struct SharingHeads {
  int all = 0;
  std::vector<int> here;     // those that this rank has, by their index among all, ascending
  RankSums* sums = nullptr;  // null: all are here

  static SharingHeads Alone(int heads) {
    SharingHeads sharing = {heads, std::vector<int>(static_cast<size_t>(heads)), nullptr};
    std::iota(sharing.here.begin(), sharing.here.end(), 0);
    return sharing;
  }
  template <typename T>
  Status AddUp(std::span<T> values) const {
    return sums == nullptr ? OkStatus() : sums->AddUp(values);
  }
};

// The place of a candidate in the order in which all are taken; no two have the same.
struct ChoiceKey {
  uint64_t first = 0, then = 0;

  bool operator<=(const ChoiceKey& other) const {
    return std::tie(first, then) <= std::tie(other.first, other.then);
  }
};

// The last of the `count` (from 1 on) smallest keys of all ranks, or a key between it and the next
// one; the largest key there may be where there are no more. each(visit) calls visit(key) for every
// key of this rank, as often as it is called itself.
template <typename Each>
Result<ChoiceKey> LastTaken(int64_t count, const Each& each, const SharingHeads& sharing) {
  HEADWAY_CHECK(count > 0);
  constexpr uint64_t kAll = ~uint64_t{0};
  constexpr int kBits = 11;
  constexpr std::array<int, 6> kShifts = {53, 42, 31, 20, 9, 0};  // of the digits of a word
  ChoiceKey prefix, known;  // of the key that is looked for: its digits so far, and where they are
  int64_t left = count;     // keys to take among those that begin so
  std::vector<int64_t> counts(size_t{1} << kBits);
  for (const bool high : {true, false}) {
    for (const int shift : kShifts) {
      const uint64_t digits = (shift == 0 ? (uint64_t{1} << 9) : (uint64_t{1} << kBits)) - 1;
      std::fill(counts.begin(), counts.end(), 0);
      each([&](const ChoiceKey& key) {
        if ((key.first & known.first) != prefix.first) return;
        if ((key.then & known.then) != prefix.then) return;
        ++counts[static_cast<size_t>(((high ? key.first : key.then) >> shift) & digits)];
      });
      if (Status s = sharing.AddUp(std::span<int64_t>(counts)); !s.ok()) return s;
      uint64_t digit = 0;
      while (digit < digits && left > counts[static_cast<size_t>(digit)]) {
        left -= counts[static_cast<size_t>(digit)];
        ++digit;
      }
      (high ? prefix.first : prefix.then) |= digit << shift;
      (high ? known.first : known.then) |= digits << shift;
      // All that begin so are taken: the rest of the key is as large as it may be.
      if (left >= counts[static_cast<size_t>(digit)]) {
        return ChoiceKey{prefix.first | (kAll ^ known.first), prefix.then | (kAll ^ known.then)};
      }
    }
  }
  return prefix;
}

}  // namespace headway::kv

#endif  // HEADWAY_KV_POLICY_SHARING_HEADS_H_
