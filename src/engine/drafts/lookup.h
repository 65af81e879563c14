// LookupDrafter: what followed the last tokens when they were there before (Saxena, "Prompt lookup
// decoding", 2023): free, and right where an answer repeats its prompt, such as a text that is
// edited or quoted.
//
// Positions with equal last tokens are chained, the newest first, as LZ77 compressors do: a token
// takes the same time whatever the sequence's length, and 12 to 16 bytes.
#ifndef HEADWAY_ENGINE_DRAFTS_LOOKUP_H_
#define HEADWAY_ENGINE_DRAFTS_LOOKUP_H_

#include <cstdint>
#include <vector>

#include "engine/drafts/drafter.h"

namespace headway {

class LookupDrafter : public Drafter {
 public:
  LookupDrafter();

  void Append(std::span<const TokenId> tokens) override;
  // The tokens behind that place before, among the kPlaces newest with the same last kLeast tokens,
  // where most of the last kMost tokens are the same; the newest of equals.
  Status Propose(int64_t most, std::vector<TokenId>* drafts) override;

  static constexpr int64_t kLeast = 2;
  static constexpr int64_t kMost = 16;
  static constexpr int kPlaces = 64;

 private:
  size_t Bucket(int64_t end) const;
  void Chain(int64_t end);
  void Grow();
  // How many of the tokens before `end` equal the last ones, up to kMost.
  int64_t Matches(int64_t end) const;

  std::vector<TokenId> tokens_;
  // [tokens]: by the number of tokens before a place, the place before it in its bucket, or 0.
  std::vector<int32_t> before_;
  std::vector<int32_t> newest_;  // [a power of two]: of each bucket, or 0
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_DRAFTS_LOOKUP_H_
