// How a session's pages that come up from disk are watched.
#ifndef HEADWAY_KV_STORE_UP_PROGRESS_H_
#define HEADWAY_KV_STORE_UP_PROGRESS_H_

#include <cstdint>
#include <functional>

namespace headway::kv {

// Hears how many tokens of `total` have come up; false: no more of them shall.
using UpProgress = std::function<bool(int64_t tokens, int64_t total)>;

}  // namespace headway::kv

#endif  // HEADWAY_KV_STORE_UP_PROGRESS_H_
