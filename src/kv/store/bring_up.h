// How a session's pages come up from disk, and are watched.
#ifndef HEADWAY_KV_STORE_BRING_UP_H_
#define HEADWAY_KV_STORE_BRING_UP_H_

#include <cstdint>
#include <functional>

namespace headway::kv {

// What becomes of pages that memory does not hold.
enum class WithoutRoom : uint8_t {
  kFails,  // kOutOfBudget
  kStays,  // on disk; summarised where single pages are read from there
};

// Hears of how many tokens of `total` the pages have come up, or stay; false: no more of them
// shall.
using UpProgress = std::function<bool(int64_t tokens, int64_t total)>;

}  // namespace headway::kv

#endif  // HEADWAY_KV_STORE_BRING_UP_H_
