#include "engine/drafts/lookup.h"

#include <algorithm>

namespace headway {

LookupDrafter::LookupDrafter() : newest_(1024) {}

// Of the kLeast tokens before `end`.
size_t LookupDrafter::Bucket(int64_t end) const {
  uint64_t hash = 0;
  for (int64_t i = end - kLeast; i < end; ++i) {
    hash = (hash ^ static_cast<uint32_t>(tokens_[static_cast<size_t>(i)])) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  return static_cast<size_t>(hash & (newest_.size() - 1));
}

void LookupDrafter::Chain(int64_t end) {
  int32_t& newest = newest_[Bucket(end)];
  before_[static_cast<size_t>(end) - 1] = newest;
  newest = static_cast<int32_t>(end);
}

void LookupDrafter::Grow() {
  newest_.assign(2 * newest_.size(), 0);
  for (int64_t end = kLeast; end < std::ssize(tokens_); ++end) Chain(end);
}

void LookupDrafter::Append(std::span<const TokenId> tokens) {
  for (const TokenId token : tokens) {
    tokens_.push_back(token);
    before_.push_back(0);
    if (tokens_.size() > newest_.size()) Grow();
    // The place before the last token is known to be followed by it.
    const int64_t end = std::ssize(tokens_) - 1;
    if (end >= kLeast) Chain(end);
  }
}

int64_t LookupDrafter::Matches(int64_t end) const {
  const int64_t most = std::min(kMost, end);
  int64_t same = 0;
  while (same < most && tokens_[static_cast<size_t>(end - 1 - same)] ==
                            tokens_[tokens_.size() - 1 - static_cast<size_t>(same)]) {
    ++same;
  }
  return same;
}

Status LookupDrafter::Propose(int64_t most, std::vector<TokenId>* drafts) {
  const int64_t end = std::ssize(tokens_);
  if (end < kLeast) return OkStatus();
  int64_t best = kLeast - 1, from = 0;
  int64_t place = newest_[Bucket(end)];
  for (int i = 0; i < kPlaces && place > 0 && best < kMost; ++i) {
    const int64_t same = Matches(place);
    if (same > best) {
      best = same;
      from = place;
    }
    place = before_[static_cast<size_t>(place) - 1];
  }
  if (from == 0) return OkStatus();
  // Behind the sequence's end it goes on as if the drafts were part of it.
  const size_t first = drafts->size();
  for (int64_t i = from; i < from + most; ++i) {
    drafts->push_back(i < end ? tokens_[static_cast<size_t>(i)]
                              : (*drafts)[first + static_cast<size_t>(i - end)]);
  }
  return OkStatus();
}

}  // namespace headway
