#include "engine/saved_part.h"

#include <type_traits>

#include "engine/wire.h"

namespace headway {

namespace kv {

template <typename Wire, typename Slab>
requires std::is_same_v<std::remove_const_t<Slab>, SavedSlab>
void Pass(Wire& wire, Slab& slab) {
  wire(slab.layer, slab.group, slab.segment, slab.pages, slab.slot, slab.checksums);
}

template <typename Wire, typename Kept>
requires std::is_same_v<std::remove_const_t<Kept>, SavedKept>
void Pass(Wire& wire, Kept& kept) { wire(kept.policy, kept.from, kept.positions, kept.open); }

}  // namespace kv

std::string WordsOfPart(const Result<kv::Manifest>& part, const kv::LayerHeads& heads) {
  WireWriter wire;
  wire(part.status().code(), part.status().message(), heads);
  if (!part.ok()) return wire.bytes();
  wire(part->slabs, part->kept.has_value());
  if (part->kept.has_value()) wire(*part->kept);
  return wire.bytes();
}

Result<kv::Manifest> PartOfWords(std::string_view words, kv::LayerHeads* heads) {
  if (words.empty()) return Status(StatusCode::kIo, "it has no memory to say what it saves");
  WireReader wire(words);
  StatusCode code{};
  std::string message;
  wire(code, message, *heads);
  if (code != StatusCode::kOk) return Status(code, message);
  kv::Manifest part;
  bool kept = false;
  wire(part.slabs, kept);
  if (kept) wire(part.kept.emplace());
  return part;
}

}  // namespace headway
