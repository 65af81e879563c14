#include "kv/policy/demotion.h"

#include <iterator>

namespace headway::kv {

std::vector<int32_t> LetGoOf(std::span<const int32_t> kept, int64_t closed) {
  std::vector<int32_t> let_go;
  let_go.reserve(static_cast<size_t>(closed - std::ssize(kept)));
  auto next = kept.begin();
  for (int32_t position = 0; position < closed; ++position) {
    if (next != kept.end() && *next == position) {
      ++next;
    } else {
      let_go.push_back(position);
    }
  }
  return let_go;
}

}  // namespace headway::kv
