#include "kv/policy/unread_bound.h"

#include <algorithm>

#include "kernels/selection_bound.h"
#include "kernels/selection_math.h"

namespace headway::kv {

bool BoundHolds(const MassBound& bound, int64_t blocks, float read,
                std::span<const UnreadBlock> sample) {
  float top = read;
  for (const UnreadBlock& block : sample) top = std::max(top, block.mass);
  selection::SampledSum unread;
  for (const UnreadBlock& block : sample) {
    unread.Add(selection::SampledMass(selection::ShareWeight(top, block.mass), block.stratum));
  }
  return selection::BoundHolds(bound, blocks, selection::ShareWeight(top, read), unread, unread);
}

}  // namespace headway::kv
