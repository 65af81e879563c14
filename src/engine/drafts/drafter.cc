#include "engine/drafts/drafter.h"

#include <algorithm>

namespace headway {

// A token is picked from the model's own distribution, with the random number that it would be
// picked by without drafts, and a draft stays if it is that token. So what comes out is what would
// have come out one token a step, and a draft that is certain stays with the probability that the
// model gives it, as in rejection sampling.
int64_t RightDrafts(std::span<const TokenId> drafts, std::span<const TokenId> picked) {
  return std::mismatch(drafts.begin(), drafts.end(), picked.begin()).first - drafts.begin();
}

int64_t Drafter::Accepted(std::span<const TokenId> drafts, std::span<const TokenId> picked) {
  return RightDrafts(drafts, picked);
}

}  // namespace headway
