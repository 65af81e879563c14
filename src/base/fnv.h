// FNV-1a, 64 bits, for hashes that files of earlier builds hold: session files (the tokenizer, the
// frequencies of RoPE) and the names of kept machine profiles. It must never change. Hashes of much
// data, and those that no file has, are xxhash's.
#ifndef HEADWAY_BASE_FNV_H_
#define HEADWAY_BASE_FNV_H_

#include <cstdint>
#include <string_view>

namespace headway {

inline constexpr uint64_t kFnvStart = 0xCBF29CE484222325u;

// Of the bytes behind those whose hash is `hash`.
constexpr uint64_t Fnv1a(std::string_view bytes, uint64_t hash = kFnvStart) {
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return hash;
}

}  // namespace headway

#endif  // HEADWAY_BASE_FNV_H_
