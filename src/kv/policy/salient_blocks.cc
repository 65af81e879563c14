#include "kv/policy/salient_blocks.h"

#include <algorithm>
#include <iterator>

#include "base/bytes.h"
#include "base/check.h"

namespace headway::kv {

int64_t SalientBlocks::Places(const SaliencePolicy& policy, int64_t blocks) {
  return static_cast<int64_t>(policy.most * static_cast<double>(blocks));
}

int64_t SalientBlocks::ToList(int64_t blocks, int64_t places) const {
  return blocks_.empty() || places == blocks ? places : CeilDiv(places, int64_t{2});
}

void SalientBlocks::Choose(std::span<const int32_t> listed, int64_t places,
                           std::vector<Move>* moves) {
  HEADWAY_CHECK(std::ssize(listed) <= places && std::ssize(blocks_) <= places);
  ++choices_;
  const size_t first = moves->size();
  auto next = by_block_.begin();
  for (const int32_t block : listed) {
    const auto before = [&](int32_t place) { return blocks_[static_cast<size_t>(place)] < block; };
    next = std::find_if_not(next, by_block_.end(), before);
    if (next != by_block_.end() && blocks_[static_cast<size_t>(*next)] == block) {
      listed_[static_cast<size_t>(*next)] = choices_;
    } else {
      moves->push_back({block, 0});
    }
  }
  const std::span<Move> fresh = std::span(*moves).subspan(first);
  const auto old = std::ssize(blocks_);
  const int64_t free = std::min(std::ssize(fresh), places - old);
  std::vector<int32_t> taken(by_block_);
  const auto given_up = taken.begin() + (std::ssize(fresh) - free);
  if (given_up != taken.begin() && given_up != taken.end()) {
    std::nth_element(taken.begin(), given_up, taken.end(), [&](int32_t a, int32_t b) {
      const int64_t of_a = listed_[static_cast<size_t>(a)], of_b = listed_[static_cast<size_t>(b)];
      return of_a != of_b ? of_a < of_b : a < b;
    });
  }
  taken.erase(given_up, taken.end());
  for (int64_t i = 0; i < free; ++i) taken.push_back(static_cast<int32_t>(old + i));
  std::sort(taken.begin(), taken.end());
  const auto gives_up = [&](int32_t place) {
    return std::binary_search(taken.begin(), taken.end(), place);
  };
  std::erase_if(by_block_, gives_up);
  blocks_.resize(static_cast<size_t>(old + free));
  listed_.resize(blocks_.size());
  for (size_t i = 0; i < fresh.size(); ++i) {
    fresh[i].place = taken[i];
    blocks_[static_cast<size_t>(taken[i])] = fresh[i].block;
    listed_[static_cast<size_t>(taken[i])] = choices_;
  }
  std::vector<int32_t> merged;
  std::merge(by_block_.begin(), by_block_.end(), taken.begin(), taken.end(),
             std::back_inserter(merged), [&](int32_t a, int32_t b) {
               return blocks_[static_cast<size_t>(a)] < blocks_[static_cast<size_t>(b)];
             });
  by_block_ = std::move(merged);
}

bool SalientBlocks::Has(int32_t block) const {
  const auto before = [&](int32_t place, int32_t of) {
    return blocks_[static_cast<size_t>(place)] < of;
  };
  const auto at = std::lower_bound(by_block_.begin(), by_block_.end(), block, before);
  return at != by_block_.end() && blocks_[static_cast<size_t>(*at)] == block;
}

}  // namespace headway::kv
