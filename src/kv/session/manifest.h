// Manifest: what a session file says of itself beside the slabs, as fields, as bytes, and the rules
// that it must keep to be believed.
#ifndef HEADWAY_KV_SESSION_MANIFEST_H_
#define HEADWAY_KV_SESSION_MANIFEST_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"
#include "headway/status.h"
#include "headway/types.h"
#include "kv/pages/format.h"
#include "kv/session/saved_kept.h"

namespace headway::kv {

// One slab of a saved cache.
struct SavedSlab {
  int32_t layer = 0;
  int32_t group = 0;
  int32_t segment = 0;
  int32_t pages = 0;  // closed pages that it holds, from its first
  int64_t slot = 0;
  // [pages]: XXH3 of the page, without padding: of every head of the group, K then V; of encoded
  // pages then the parameters of all heads.
  std::vector<uint64_t> checksums;
};

// What a session file holds beside the slabs.
struct Manifest {
  // Which model it is of. The configuration is the model's own text: bytes that mean nothing here.
  std::string model_config;
  uint64_t weights_hash = 0;
  uint64_t tokenizer_hash = 0;
  uint64_t rope_hash = 0;    // of the frequencies that the keys were rotated with
  bool keys_rotated = true;  // K is stored after RoPE
  bool approximate = false;  // some tokens attended to chosen keys alone
  CacheFormat format;
  // Those that the closed pages hold, a multiple of page_slots, or of what is kept, all.
  std::vector<TokenId> tokens;
  std::vector<SavedSlab> slabs;
  std::optional<SavedKept> kept;  // where heads have let go of tokens
  std::string note;               // the saver's own: bytes that mean nothing here
};

// Bounds on what a file may claim, so that no product of them overflows and no table built from
// them is out of proportion.
inline constexpr int kMaxLayers = 1 << 12;
inline constexpr int kMaxHeads = 1 << 10;
inline constexpr int kMaxPageSlots = 1 << 16;
inline constexpr int kMaxHeadDim = 1 << 16;
inline constexpr int kMaxSegmentPages = 1 << 20;
inline constexpr int64_t kMaxSlabBytes = int64_t{1} << 36;
inline constexpr int64_t kMaxSlots = int64_t{1} << 26;
inline constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;
inline constexpr int64_t kMaxSavedTokens = kMaxManifestBytes / int64_t{sizeof(TokenId)};

// kInvalidArgument, naming the field, when a number of the format is outside its bounds.
Status CheckFormat(const CacheFormat& format);

// The rules: the format is sound; tokens fill whole pages; slabs lie in distinct slots below
// `slots`; each layer and head group has one slab for every segment of the tokens, with as many
// pages as the tokens close there, or as are left of those with what is kept. Missing may be only
// the oldest segments of a layer with a sliding window, those that no query could see any more
// before the open page behind the last closed one was full (the open page is not saved: whether the
// window's keys suffice at the last closed page is for the reader to check). kCorrupt, with a
// reason that names no file.
Status CheckManifest(const Manifest& manifest, int64_t slots);

std::vector<std::byte> EncodeManifest(const Manifest& manifest);
// Reads and checks. kCorrupt, with a reason that names no file.
Result<Manifest> DecodeManifest(std::span<const std::byte> bytes, int64_t slots);

}  // namespace headway::kv

#endif  // HEADWAY_KV_SESSION_MANIFEST_H_
