#include "engine/step/shared_heads.h"

#include <utility>

namespace headway {

SharedHeads::SharedHeads(const RankHeads& heads)
    : ranks_(static_cast<int>(heads.ranks.size())), rank_(heads.rank) {
  const auto layers = static_cast<int>(heads.ranks.front().size());
  for (int layer = 0; layer < layers; ++layer) {
    std::vector<SharedHead>& own = layers_.emplace_back();
    bool any = false;
    for (int head = 0; head < heads.kv_heads; ++head) {
      std::vector<HeadHolder> holders = heads.HoldersOf(layer, head);
      if (holders.size() < 2) continue;
      any = true;
      for (size_t i = 0; i < holders.size(); ++i) {
        if (holders[i].rank != rank_) continue;
        own.push_back({holders[i].slot, std::move(holders), static_cast<int>(i)});
        break;
      }
    }
    any_.push_back(any);
  }
}

}  // namespace headway
