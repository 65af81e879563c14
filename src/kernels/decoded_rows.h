// Rows of closed pages as numbers of the cache's dtype.
#ifndef HEADWAY_KERNELS_DECODED_ROWS_H_
#define HEADWAY_KERNELS_DECODED_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/page_codec.h"

namespace headway {

// What DecodeKeyRow and DecodeValueRow of page_codec.h have of a slot, rounded to f32 and then to
// the dtype: the same bits on every device.
void DecodeKeySlot(const PageFormat& format, const std::byte* codes, const std::byte* params,
                   int64_t slot, std::byte* row);
void DecodeValueSlot(const PageFormat& format, const std::byte* codes, const std::byte* params,
                     int64_t slot, std::byte* row);

}  // namespace headway

#endif  // HEADWAY_KERNELS_DECODED_ROWS_H_
