#include "base/head_set.h"

#include <algorithm>

namespace headway {

std::vector<HeadHolder> RankHeads::HoldersOf(int layer, int head) const {
  std::vector<HeadHolder> holders;
  for (size_t of = 0; of < ranks.size(); ++of) {
    const HeadSet& set = ranks[of][static_cast<size_t>(layer)];
    const auto at = std::lower_bound(set.heads.begin(), set.heads.end(), head);
    if (at == set.heads.end() || *at != head) continue;
    const auto slot = static_cast<int>(at - set.heads.begin());
    holders.push_back({static_cast<int>(of), slot, set.ShareOf(slot)});
  }
  return holders;
}

bool RankHeads::Shares() const {
  const size_t layers = ranks.empty() ? 0 : ranks.front().size();
  for (size_t layer = 0; layer < layers; ++layer) {
    size_t held = 0;
    for (const std::vector<HeadSet>& of_rank : ranks) held += of_rank[layer].heads.size();
    if (held > static_cast<size_t>(kv_heads)) return true;
  }
  return false;
}

}  // namespace headway
