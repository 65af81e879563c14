// BlockCache: device memory that keeps copies of listed blocks of host memory, so that a block that
// is listed in step after step crosses the bus once.
//
// All layers, heads and sequences share its lines. A block may have one of the kWays lines of a
// set, which its name leads to; a new one takes the line that was not read for longest, and if all
// of them were read in this step it is read where it lies. A decode step is one step; of a prompt's
// each layer is one, since a chunk may choose more than all lines hold. An entry says what a line
// keeps: the block's name, and the step that read it last, in one word, so that threads that take
// lines at the same time agree by comparing and swapping it. Whether a block is kept changes no
// result.
#ifndef HEADWAY_KERNELS_BLOCK_CACHE_H_
#define HEADWAY_KERNELS_BLOCK_CACHE_H_

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "kernels/page_codec.h"
#include "kernels/pages.h"

namespace headway {

struct BlockCache {
  static constexpr int kWays = 16;
  // Kinds of reads of blocks of host memory, as they are counted, list by list: of a line, into a
  // line, and where the block lies.
  enum Read : uint8_t { kFound, kBrought, kPassed };
  static constexpr int kReads = 3;

  std::byte* lines = nullptr;   // [sets, kWays, CacheLineBytes], on 16 bytes; null: no cache
  uint64_t* entries = nullptr;  // [sets, kWays], on 128 bytes; 0 before anything is kept
  uint64_t* reads = nullptr;    // [kReads]: added to
  uint32_t sets = 0;
  uint32_t step = 0;
};

// Bytes of K, and of V, of a block of `block_slots` slots of a closed page.
inline int64_t BlockBytes(const PageFormat& format, int block_slots) {
  return static_cast<int64_t>(format.closed_bytes()) / format.page_slots * block_slots;
}
// A line: K of a block, then V, then of encoded pages the parameters, as its page has them.
inline int64_t CacheLineBytes(const PageFormat& format, int block_slots) {
  const int64_t params = format.encoding == Encoding::kNone ? 0 : ParamBytes(format);
  return RoundUp(2 * BlockBytes(format, block_slots) + params, int64_t{16});
}

namespace block_cache {

// --- Entries: a name of 52 bits, and a step of 12 bits. Names are not 0: versions are not.
inline constexpr int kStepBits = 12;
inline constexpr int kNumberBits = 20;
// Of block `number` of a slab, counted through its heads; below 2^kNumberBits.
constexpr uint64_t Name(uint32_t version, uint32_t number) {
  return uint64_t{version} << kNumberBits | number;
}
constexpr uint64_t Entry(uint64_t name, uint32_t step) {
  return name << kStepBits | (step & ((1u << kStepBits) - 1));
}
constexpr uint64_t NameOf(uint64_t entry) { return entry >> kStepBits; }
// Steps since its line was read, modulo 2^kStepBits.
constexpr uint32_t AgeOf(uint64_t entry, uint32_t step) {
  return (step - static_cast<uint32_t>(entry)) & ((1u << kStepBits) - 1);
}
// Before it is scaled to the number of sets: names are near each other.
constexpr uint32_t Hash(uint64_t name) {
  return static_cast<uint32_t>((name * 0x9E3779B97F4A7C15u) >> 32);
}
constexpr uint32_t SetOf(uint64_t name, uint32_t sets) {
  return static_cast<uint32_t>(uint64_t{Hash(name)} * sets >> 32);
}

}  // namespace block_cache

}  // namespace headway

#endif  // HEADWAY_KERNELS_BLOCK_CACHE_H_
