#include "kv/session/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "kernels/lossless_codec.h"
#include "kv/session/wire.h"

namespace headway::kv {
namespace {

// Bytes of a slab's entry without its checksums: layer, group, segment, pages, slot.
constexpr size_t kSlabEntryBytes = 4 * sizeof(uint32_t) + sizeof(uint64_t);

// Bits of the flags.
constexpr uint8_t kKeysRotated = 1;
constexpr uint8_t kApproximate = 2;
constexpr uint8_t kKept = 4;

Status Corrupt(std::string reason) { return Status(StatusCode::kCorrupt, std::move(reason)); }

Status InRange(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return OkStatus();
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{} is {}; it must be {} to {}", field, value, low, high));
}

// Segments of a layer that must be there begin here, and those that may begin at 0.
int64_t FirstNeeded(const CacheFormat& format, int layer, int64_t tokens) {
  const int64_t window = format.WindowOf(layer);
  if (window == 0) return 0;
  // A query at p sees (p - window, p]. The cache was at most page_slots - 1 tokens past the closed
  // ones, so that its next query may have been at p = tokens + page_slots - 1.
  const int64_t first_seen = tokens + format.page.page_slots - window;
  return std::max<int64_t>(0, first_seen) / format.segment_tokens();
}

// `slabs` are those of one layer and group, by segment.
Status CheckColumn(const Manifest& manifest, int layer, int group,
                   std::span<const SavedSlab* const> slabs) {
  const CacheFormat& format = manifest.format;
  const auto tokens = std::ssize(manifest.tokens);
  const auto table = static_cast<size_t>(layer) * static_cast<size_t>(format.kv_heads) +
                     static_cast<size_t>(group);  // of what is kept
  const int64_t closed = manifest.kept.has_value()
                             ? manifest.kept->PagesOf(table, tokens, format.page.page_slots)
                             : tokens / format.page.page_slots;
  const int64_t segments = CeilDiv(closed, format.segment_pages);
  // Segments are distinct and ascend, the last is at most `segments`, so the first tells by their
  // number whether there is a gap.
  for (size_t i = 0; i < slabs.size(); ++i) {
    const SavedSlab& slab = *slabs[i];
    const int64_t expected = segments - static_cast<int64_t>(slabs.size() - i);
    if (slab.segment != expected) {
      return Corrupt(fmt::format("layer {}, head group {} holds segment {} where {} belongs", layer,
                                 group, slab.segment, expected));
    }
    const int64_t pages =
        std::min<int64_t>(format.segment_pages, closed - expected * format.segment_pages);
    if (slab.pages != pages) {
      return Corrupt(fmt::format("layer {}, head group {}, segment {} holds {} pages, not {}",
                                 layer, group, slab.segment, slab.pages, pages));
    }
  }
  const int64_t first = segments - static_cast<int64_t>(slabs.size());
  if (first > std::min(segments, FirstNeeded(format, layer, tokens))) {
    return Corrupt(
        fmt::format("layer {}, head group {} lacks segment {}", layer, group, first - 1));
  }
  return OkStatus();
}

Status CheckSlots(const Manifest& manifest, int64_t slots) {
  std::vector<int64_t> used;
  used.reserve(manifest.slabs.size());
  for (const SavedSlab& slab : manifest.slabs) {
    if (slab.slot < 0 || slab.slot >= slots) {
      return Corrupt(fmt::format("slot {} is not one of {}", slab.slot, slots));
    }
    used.push_back(slab.slot);
  }
  std::sort(used.begin(), used.end());
  const auto twice = std::adjacent_find(used.begin(), used.end());
  if (twice != used.end()) return Corrupt(fmt::format("slot {} is used twice", *twice));
  return OkStatus();
}

Status CheckSlabs(const Manifest& manifest) {
  const CacheFormat& format = manifest.format;
  std::vector<const SavedSlab*> sorted;
  sorted.reserve(manifest.slabs.size());
  for (const SavedSlab& slab : manifest.slabs) {
    if (slab.layer < 0 || slab.layer >= format.layers || slab.group < 0 ||
        slab.group >= format.head_groups(slab.layer) || slab.segment < 0) {
      return Corrupt(fmt::format("there is no layer {}, head group {}, segment {}", slab.layer,
                                 slab.group, slab.segment));
    }
    if (static_cast<int64_t>(slab.checksums.size()) != slab.pages) {
      return Corrupt(
          fmt::format("layer {}, head group {}, segment {} has {} checksums for {} pages",
                      slab.layer, slab.group, slab.segment, slab.checksums.size(), slab.pages));
    }
    sorted.push_back(&slab);
  }
  std::sort(sorted.begin(), sorted.end(), [](const SavedSlab* a, const SavedSlab* b) {
    return std::tie(a->layer, a->group, a->segment) < std::tie(b->layer, b->group, b->segment);
  });
  size_t next = 0;
  for (int layer = 0; layer < format.layers; ++layer) {
    for (int group = 0; group < format.head_groups(layer); ++group) {
      const size_t first = next;
      while (next < sorted.size() && sorted[next]->layer == layer && sorted[next]->group == group) {
        ++next;
      }
      Status status =
          CheckColumn(manifest, layer, group, std::span(sorted).subspan(first, next - first));
      if (!status.ok()) return status;
    }
  }
  return OkStatus();
}

void PutFormat(const CacheFormat& format, WireWriter* out) {
  out->Put(static_cast<uint32_t>(format.layers));
  out->Put(static_cast<uint32_t>(format.kv_heads));
  out->Put(static_cast<uint8_t>(format.page.dtype));
  out->Put(static_cast<uint8_t>(format.page.encoding));
  out->Put(static_cast<uint32_t>(format.page.page_slots));
  out->Put(static_cast<uint32_t>(format.page.head_dim));
  out->Put(static_cast<uint32_t>(format.group_heads));
  out->Put(static_cast<uint32_t>(format.segment_pages));
  out->Put(static_cast<uint32_t>(format.window.size()));
  for (const int64_t window : format.window) out->Put(window);
}

Result<CacheFormat> GetFormat(WireReader* in) {
  CacheFormat format;
  format.layers = in->Get<int32_t>();
  format.kv_heads = in->Get<int32_t>();
  const auto dtype = in->Get<uint8_t>();
  if (dtype > static_cast<uint8_t>(DType::kBF16)) {
    return Corrupt(fmt::format("there is no data type {}", dtype));
  }
  format.page.dtype = static_cast<DType>(dtype);
  const auto encoding = in->Get<uint8_t>();
  if (encoding > static_cast<uint8_t>(Encoding::kLossless)) {
    return Corrupt(fmt::format("there is no KV encoding {}", encoding));
  }
  format.page.encoding = static_cast<Encoding>(encoding);
  format.page.page_slots = in->Get<int32_t>();
  format.page.head_dim = in->Get<int32_t>();
  format.group_heads = in->Get<int32_t>();
  format.segment_pages = in->Get<int32_t>();
  const auto windows = in->Get<uint32_t>();
  if (windows > in->left() / sizeof(int64_t)) return Corrupt("the windows are cut short");
  format.window.resize(windows);
  for (int64_t& window : format.window) window = in->Get<int64_t>();
  return format;
}

Status GetSlab(WireReader* in, SavedSlab* slab) {
  slab->layer = in->Get<int32_t>();
  slab->group = in->Get<int32_t>();
  slab->segment = in->Get<int32_t>();
  slab->pages = in->Get<int32_t>();
  slab->slot = in->Get<int64_t>();
  if (slab->pages < 0 || static_cast<size_t>(slab->pages) > in->left() / sizeof(uint64_t)) {
    return Corrupt("the checksums of a slab are cut short");
  }
  slab->checksums.resize(static_cast<size_t>(slab->pages));
  for (uint64_t& checksum : slab->checksums) checksum = in->Get<uint64_t>();
  return OkStatus();
}

}  // namespace

Status CheckFormat(const CacheFormat& format) {
  const struct {
    const char* field;
    int64_t value;
    int64_t high;
  } bounds[] = {
      {"layers", format.layers, kMaxLayers},
      {"kv_heads", format.kv_heads, kMaxHeads},
      {"page_slots", format.page.page_slots, kMaxPageSlots},
      {"head_dim", format.page.head_dim, kMaxHeadDim},
      {"group_heads", format.group_heads, kMaxHeads},
      {"segment_pages", format.segment_pages, kMaxSegmentPages},
  };
  for (const auto& bound : bounds) {
    Status status = InRange(bound.field, bound.value, 1, bound.high);
    if (!status.ok()) return status;
  }
  if (format.page.encoding == Encoding::kLossless && !lossless::Takes(format.page)) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("pages of {} slots and heads of {} in {} are not lossless ones",
                    format.page.page_slots, format.page.head_dim, DTypeName(format.page.dtype)));
  }
  if (!format.window.empty() && format.window.size() != static_cast<size_t>(format.layers)) {
    return Status(StatusCode::kInvalidArgument, fmt::format("{} windows are given for {} layers",
                                                            format.window.size(), format.layers));
  }
  for (const int64_t window : format.window) {
    Status status = InRange("window", window, 0, int64_t{1} << 40);
    if (!status.ok()) return status;
  }
  const HeadPattern& pattern = format.pattern;
  if (!pattern.streaming.empty()) {
    bool fits = pattern.streaming.size() == static_cast<size_t>(format.layers);
    for (const std::vector<bool>& heads : pattern.streaming) {
      fits = fits && heads.size() == static_cast<size_t>(format.kv_heads);
    }
    if (!fits) {
      return Status(StatusCode::kInvalidArgument,
                    "the pattern of streaming heads is that of another model");
    }
    Status status = InRange("sink", pattern.sink, 0, kMaxLength);
    if (status.ok()) status = InRange("recent", pattern.recent, 1, kMaxLength);
    if (!status.ok()) return status;
  }
  if (format.encoded() && format.page.head_dim % 2 != 0) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("pages of head_dim {} cannot be encoded: it is odd", format.page.head_dim));
  }
  // Of a page of the whole group.
  const int64_t page = 2 * format.group_heads * format.closed_stride() + format.param_stride();
  int64_t bytes = 0;
  if (!CheckedMul(page, format.segment_pages, &bytes) || bytes > kMaxSlabBytes) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("a slab of {} heads x {} pages is larger than {}", format.group_heads,
                              format.segment_pages, FormatBytes(kMaxSlabBytes)));
  }
  return OkStatus();
}

Status CheckManifest(const Manifest& manifest, int64_t slots) {
  Status format = CheckFormat(manifest.format);
  if (!format.ok()) return Corrupt(format.message());
  const auto tokens = static_cast<int64_t>(manifest.tokens.size());
  const bool whole = manifest.kept.has_value() || tokens % manifest.format.page.page_slots == 0;
  if (tokens > kMaxSavedTokens || !whole) {
    return Corrupt(fmt::format("{} tokens do not fill whole pages of {}", tokens,
                               manifest.format.page.page_slots));
  }
  for (const TokenId token : manifest.tokens) {
    if (token < 0) return Corrupt(fmt::format("there is no token {}", token));
  }
  if (manifest.kept.has_value()) {
    if (Status s = CheckKept(*manifest.kept, manifest.format, tokens); !s.ok()) return s;
  }
  Status status = CheckSlots(manifest, slots);
  if (!status.ok()) return status;
  return CheckSlabs(manifest);
}

std::vector<std::byte> EncodeManifest(const Manifest& manifest) {
  WireWriter out;
  size_t bytes = 128 + manifest.format.window.size() * sizeof(int64_t) +
                 manifest.tokens.size() * sizeof(TokenId) + manifest.note.size() +
                 manifest.model_config.size();
  for (const SavedSlab& slab : manifest.slabs) {
    bytes += kSlabEntryBytes + slab.checksums.size() * sizeof(uint64_t);
  }
  out.Reserve(bytes);
  out.Put(manifest.weights_hash);
  out.Put(manifest.tokenizer_hash);
  out.Put(manifest.rope_hash);
  out.Put(static_cast<uint8_t>((manifest.keys_rotated ? kKeysRotated : 0) |
                               (manifest.approximate ? kApproximate : 0) |
                               (manifest.kept.has_value() ? kKept : 0)));
  PutFormat(manifest.format, &out);
  out.Put(static_cast<uint64_t>(manifest.tokens.size()));
  for (const TokenId token : manifest.tokens) out.Put(token);
  out.Put(static_cast<uint64_t>(manifest.slabs.size()));
  for (const SavedSlab& slab : manifest.slabs) {
    out.Put(slab.layer);
    out.Put(slab.group);
    out.Put(slab.segment);
    out.Put(slab.pages);
    out.Put(slab.slot);
    for (const uint64_t checksum : slab.checksums) out.Put(checksum);
  }
  out.PutSized(std::as_bytes(std::span(manifest.note)));
  out.PutSized(std::as_bytes(std::span(manifest.model_config)));
  if (manifest.kept.has_value()) PutKept(*manifest.kept, &out);
  return out.Take();
}

Result<Manifest> DecodeManifest(std::span<const std::byte> bytes, int64_t slots) {
  WireReader in(bytes);
  Manifest manifest;
  manifest.weights_hash = in.Get<uint64_t>();
  manifest.tokenizer_hash = in.Get<uint64_t>();
  manifest.rope_hash = in.Get<uint64_t>();
  const auto flags = in.Get<uint8_t>();
  if (flags > (kKeysRotated | kApproximate | kKept)) {
    return Corrupt(fmt::format("there are no flags {:#x} of the keys", flags));
  }
  manifest.keys_rotated = (flags & kKeysRotated) != 0;
  manifest.approximate = (flags & kApproximate) != 0;
  Result<CacheFormat> format = GetFormat(&in);
  if (!format.ok()) return format.status();
  manifest.format = std::move(*format);

  // Counts are bounded by the bytes that are there before anything is sized by them.
  const auto tokens = in.Get<uint64_t>();
  if (tokens > in.left() / sizeof(TokenId)) return Corrupt("the tokens are cut short");
  manifest.tokens.resize(tokens);
  for (TokenId& token : manifest.tokens) token = in.Get<TokenId>();
  const auto slabs = in.Get<uint64_t>();
  if (slabs > in.left() / kSlabEntryBytes) return Corrupt("the slabs are cut short");
  manifest.slabs.resize(slabs);
  for (SavedSlab& slab : manifest.slabs) {
    Status status = GetSlab(&in, &slab);
    if (!status.ok()) return status;
  }
  if (!in.GetSized(&manifest.note)) return Corrupt("the note is cut short");
  if (!in.GetSized(&manifest.model_config)) return Corrupt("the configuration is cut short");
  if ((flags & kKept) != 0 && !GetKept(&in, &manifest.kept.emplace())) {
    return Corrupt("what is kept is cut short");
  }
  if (!in.ok()) return Corrupt("the manifest is cut short");
  if (in.left() != 0) return Corrupt(fmt::format("{} bytes are left over", in.left()));
  Status status = CheckManifest(manifest, slots);
  if (!status.ok()) return status;
  return manifest;
}

}  // namespace headway::kv
