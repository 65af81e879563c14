// Types that the public API and every room share.
#ifndef HEADWAY_TYPES_H_
#define HEADWAY_TYPES_H_

#include <cstdint>

namespace headway {

// A token id, as in tokenizer.json.
using TokenId = int32_t;

}  // namespace headway

#endif  // HEADWAY_TYPES_H_
