// PlainLines: kernels that look at what a page cache's lines hold before and behind each decode
// step's attention. Where kernels do not use lines, since there is no bus between, it fills them
// itself, as kernels/block_cache.h says, so that names, versions and the sizes of lines are tested
// on every device.
#ifndef HEADWAY_TESTS_SUPPORT_PLAIN_LINES_H_
#define HEADWAY_TESTS_SUPPORT_PLAIN_LINES_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "support/forwarding_kernels.h"

namespace headway::testing {

class PlainLines : public ForwardingKernels {
 public:
  // What was seen of all calls.
  struct Seen {
    int64_t listed = 0;       // blocks of host memory that lists have
    int64_t missed = 0;       // of these, those that no line held before the call
    int64_t moved_lines = 0;  // that held other bytes behind it
    int64_t line_bytes = 0;
    int64_t other = 0;  // lines of listed blocks that held other bytes than these
  };

  // `fills`: lines are this class's to fill.
  PlainLines(std::unique_ptr<Kernels> inner, bool fills, Seen* seen)
      : ForwardingKernels(std::move(inner)), fills_(fills), seen_(*seen) {}

  void AttendBlocks(Stream& stream, const PageFormat& format, const SummaryFormat& summary,
                    int group, float scale, std::span<const AttendBlocksItem> items) override;

 private:
  struct Block;
  struct Memory {
    std::vector<uint64_t> entries;
    std::vector<std::byte> lines;
  };
  static Memory Read(Stream& stream, const BlockCache& cache, int64_t line_bytes);
  static std::vector<Block> BlocksOf(Stream& stream, const PageFormat& format, int block_slots,
                                     const AttendBlocksItem& item);
  static void Take(const BlockCache& cache, const Block& block, int64_t line_bytes);

  const bool fills_;
  Seen& seen_;
};

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_PLAIN_LINES_H_
