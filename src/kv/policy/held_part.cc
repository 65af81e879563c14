#include "kv/policy/held_part.h"

#include <cmath>
#include <cstddef>

#include "base/check.h"

namespace headway::kv {

HeldPart HeldPartOf(HeadSplit split, std::span<const HeadHolder> holders, int own,
                    const HeldHead& of, int64_t pages) {
  HEADWAY_CHECK(own >= 0 && own < std::ssize(holders));
  // Neighbouring heads begin with other holders, so that few sequences, too, are spread.
  const auto turn = static_cast<int>((of.sequence + of.head) % std::ssize(holders));
  const bool grows = turn == own;
  if (split == HeadSplit::kSequences) return {0, grows ? pages : 0, grows};
  // Multiples of the golden ratio lie evenly: pages that are cut through go to both sides in turn.
  constexpr double kGoldenRatio = 0.6180339887498949;
  const double turns = (of.sequence + of.head + 1) * kGoldenRatio;
  const double phase = turns - std::floor(turns);
  double before = 0.0;
  for (int i = 0; i < own; ++i) before += holders[static_cast<size_t>(i)].share;
  const double behind = before + holders[static_cast<size_t>(own)].share;
  const auto page_at = [&](double share) {
    return static_cast<int64_t>(std::floor(share * static_cast<double>(pages) + phase));
  };
  const bool last = own + 1 == std::ssize(holders);
  return {own == 0 ? 0 : page_at(before), last ? pages : page_at(behind), grows};
}

}  // namespace headway::kv
