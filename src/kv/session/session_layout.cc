#include "kv/session/session_layout.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "headway/refusal.h"
#include "kv/session/wire.h"

namespace headway::kv {
namespace {

constexpr std::array<char, 8> kMagic = {'H', 'D', 'W', 'Y', 'S', 'E', 'S', 'S'};
constexpr size_t kVersionAt = 8;
constexpr size_t kGenerationAt = 12;
constexpr size_t kHashAt = kSuperblockBytes - sizeof(uint64_t);

Status Damaged(const std::string& path, const std::string& reason) {
  return Status(StatusCode::kCorrupt,
                Refusal{{fmt::format("{} is damaged: {}; delete it or give another ", path, reason),
                         Option::kSession, " file"}});
}

Status Foreign(const std::string& path) {
  return Status(StatusCode::kInvalidArgument,
                Refusal{{fmt::format("{} is not a Headway session; give another ", path),
                         Option::kSession, " file"}});
}

// A superblock as far as it can be read.
struct Side {
  bool magic = false;
  bool intact = false;  // its hash is right
  uint32_t version = 0;
  uint64_t generation = 0;
  Superblock superblock;  // of a version that is read
};

Side DecodeSide(std::span<const std::byte> block) {
  Side side;
  side.magic = HasSessionMagic(block);
  const auto hash = LoadLittleEndian<uint64_t>(block.data() + kHashAt);
  side.intact = side.magic && hash == XXH3_64bits(block.data(), kHashAt);
  side.version = LoadLittleEndian<uint32_t>(block.data() + kVersionAt);
  WireReader in(block.subspan(kGenerationAt));
  Superblock& superblock = side.superblock;
  side.generation = superblock.generation = in.Get<uint64_t>();
  superblock.slab_bytes = in.Get<int64_t>();
  superblock.slots = in.Get<int64_t>();
  superblock.manifest_slot = in.Get<int64_t>();
  superblock.manifest_bytes = in.Get<int64_t>();
  superblock.manifest_hash = in.Get<uint64_t>();
  return side;
}

Status CheckSuperblock(const Superblock& superblock, int64_t file_bytes, const std::string& path) {
  if (superblock.generation >= uint64_t{1} << 63) {  // so that the next ones stay above it
    return Damaged(path, fmt::format("generation {} cannot be", superblock.generation));
  }
  const int64_t slab = superblock.slab_bytes;
  if (slab < 2 * static_cast<int64_t>(kDirectAlignment) || slab > kMaxSlabBytes ||
      slab % static_cast<int64_t>(kDirectAlignment) != 0) {
    return Damaged(path, fmt::format("slabs of {} bytes cannot be", slab));
  }
  if (superblock.slots < 1 || superblock.slots > kMaxSlots) {
    return Damaged(path, fmt::format("{} slots cannot be", superblock.slots));
  }
  const int64_t expected = kFirstSlotOffset + superblock.slots * slab;
  if (file_bytes < expected) {
    return Damaged(path, fmt::format("it is cut off at {} of {} bytes", file_bytes, expected));
  }
  if (superblock.manifest_bytes < 1 || superblock.manifest_bytes > kMaxManifestBytes ||
      ManifestSlots(superblock.manifest_bytes, slab) > superblock.slots) {
    return Damaged(path,
                   fmt::format("a manifest of {} bytes cannot be", superblock.manifest_bytes));
  }
  return OkStatus();
}

// The newest superblock and which it is.
Result<std::pair<Superblock, int>> ReadSuperblock(Env* env, File* file, const std::string& path) {
  Result<int64_t> size = file->Size();
  if (!size.ok()) return size.status();
  if (*size < kFirstSlotOffset) {
    Result<std::string> text = env->ReadFile(path);
    if (!text.ok()) return text.status();
    if (HasSessionMagic(std::as_bytes(std::span(*text)))) return Damaged(path, "it is cut off");
    return Foreign(path);
  }
  Result<AlignedBuffer> buffer = AlignedBuffer::Allocate(env, 2 * kSuperblockBytes);
  if (!buffer.ok()) return buffer.status();
  const IoPiece piece{buffer->data(), 2 * kSuperblockBytes, 0};
  Status status = file->Read({&piece, 1});
  if (!status.ok()) return status;

  const std::array<Side, 2> sides = {DecodeSide(buffer->bytes().first(kSuperblockBytes)),
                                     DecodeSide(buffer->bytes().last(kSuperblockBytes))};
  if (!sides[0].magic && !sides[1].magic) return Foreign(path);
  // One may be torn by a crash in the middle of its write; the other then counts.
  if (!sides[0].intact && !sides[1].intact) return Damaged(path, "neither header is whole");
  const int newest =
      sides[1].intact && (!sides[0].intact || sides[1].generation > sides[0].generation) ? 1 : 0;
  const Side& side = sides[static_cast<size_t>(newest)];
  if (side.version < kOldestSessionVersion || side.version > kSessionVersion) {
    return Status(
        StatusCode::kUnsupported,
        Refusal{{fmt::format("{} has session format {}, this Headway reads {} and {}{}; use the "
                             "Headway that wrote it or give another ",
                             path, side.version, kOldestSessionVersion, kSessionVersion,
                             side.version < kOldestSessionVersion
                                 ? ", since older ones do not say enough about their model"
                                 : ""),
                 Option::kSession, " file"}});
  }
  status = CheckSuperblock(side.superblock, *size, path);
  if (!status.ok()) return status;
  return std::pair(side.superblock, newest);
}

// Follows the chain of slots. `manifest` has manifest_bytes.
Result<std::vector<int64_t>> ReadManifestBytes(Env* env, File* file, const std::string& path,
                                               const Superblock& superblock, std::byte* manifest) {
  const int64_t payload = superblock.slab_bytes - kLinkBytes;
  const int64_t largest = kLinkBytes + std::min(payload, superblock.manifest_bytes);
  Result<AlignedBuffer> part =
      AlignedBuffer::Allocate(env, static_cast<size_t>(RoundUp(largest, kDirectAlignment)));
  if (!part.ok()) return part.status();
  std::vector<int64_t> slots;
  int64_t done = 0;
  int64_t slot = superblock.manifest_slot;
  while (done < superblock.manifest_bytes) {
    if (slot < 0 || slot >= superblock.slots) {
      return Damaged(path,
                     fmt::format("its manifest goes on in slot {} of {}", slot, superblock.slots));
    }
    slots.push_back(slot);
    const int64_t count = std::min(payload, superblock.manifest_bytes - done);
    const auto bytes = static_cast<size_t>(RoundUp(kLinkBytes + count, kDirectAlignment));
    std::vector<IoPiece> pieces;
    AppendPieces(part->data(), bytes, kFirstSlotOffset + slot * superblock.slab_bytes, &pieces);
    Status status = file->Read(pieces);
    if (!status.ok()) return status;
    std::memcpy(manifest + done, part->data() + kLinkBytes, static_cast<size_t>(count));
    slot = LoadLittleEndian<int64_t>(part->data());
    done += count;
  }
  return slots;
}

// No two of the slots that the manifest lies in and describes may be one.
Status CheckDistinct(const SavedSession& session, const std::string& path) {
  std::vector<int64_t> used = session.manifest_slots;
  for (const SavedSlab& slab : session.manifest.slabs) used.push_back(slab.slot);
  std::sort(used.begin(), used.end());
  const auto twice = std::adjacent_find(used.begin(), used.end());
  if (twice == used.end()) return OkStatus();
  return Damaged(path, fmt::format("slot {} is used twice", *twice));
}

}  // namespace

void EncodeSuperblock(const Superblock& superblock, std::byte* block) {
  std::memset(block, 0, kSuperblockBytes);
  std::memcpy(block, kMagic.data(), kMagic.size());
  StoreLittleEndian(kSessionVersion, block + kVersionAt);
  WireWriter out;
  out.Put(superblock.generation);
  out.Put(superblock.slab_bytes);
  out.Put(superblock.slots);
  out.Put(superblock.manifest_slot);
  out.Put(superblock.manifest_bytes);
  out.Put(superblock.manifest_hash);
  const std::vector<std::byte> fields = out.Take();
  std::memcpy(block + kGenerationAt, fields.data(), fields.size());
  StoreLittleEndian(static_cast<uint64_t>(XXH3_64bits(block, kHashAt)), block + kHashAt);
}

bool HasSessionMagic(std::span<const std::byte> bytes) {
  return bytes.size() >= kMagic.size() &&
         std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0;
}

Result<SavedSession> ReadSession(Env* env, File* file, const std::string& path) {
  Result<std::pair<Superblock, int>> newest = ReadSuperblock(env, file, path);
  if (!newest.ok()) return newest.status();
  SavedSession session;
  session.superblock = newest->first;
  session.side = newest->second;
  const Superblock& superblock = session.superblock;

  Result<AlignedBuffer> bytes =
      AlignedBuffer::Allocate(env, static_cast<size_t>(superblock.manifest_bytes));
  if (!bytes.ok()) return bytes.status();
  Result<std::vector<int64_t>> slots =
      ReadManifestBytes(env, file, path, superblock, bytes->data());
  if (!slots.ok()) return slots.status();
  session.manifest_slots = std::move(*slots);
  if (XXH3_64bits(bytes->data(), bytes->size()) != superblock.manifest_hash) {
    return Damaged(path, "the checksum of its manifest is wrong");
  }
  Result<Manifest> manifest = DecodeManifest(bytes->bytes(), superblock.slots);
  if (!manifest.ok()) return Damaged(path, manifest.status().message());
  session.manifest = std::move(*manifest);
  if (session.manifest.format.slab_bytes() != superblock.slab_bytes) {
    return Damaged(path, "its header and its manifest disagree about slabs");
  }
  Status status = CheckDistinct(session, path);
  if (!status.ok()) return status;
  return session;
}

int64_t ManifestSlots(int64_t manifest_bytes, int64_t slab_bytes) {
  return CeilDiv(manifest_bytes, slab_bytes - kLinkBytes);
}

Result<ManifestParts> LayOutManifest(Env* env, std::span<const std::byte> manifest,
                                     std::span<const int64_t> slots, int64_t slab_bytes) {
  HEADWAY_CHECK(!slots.empty());
  const auto stride = static_cast<size_t>(slab_bytes);
  const size_t payload = stride - kLinkBytes;
  const size_t last = manifest.size() - (slots.size() - 1) * payload;
  const auto last_bytes =
      static_cast<size_t>(RoundUp(static_cast<int64_t>(last) + kLinkBytes, kDirectAlignment));
  Result<AlignedBuffer> buffer =
      AlignedBuffer::Allocate(env, (slots.size() - 1) * stride + last_bytes);
  if (!buffer.ok()) return buffer.status();
  for (size_t i = 0; i < slots.size(); ++i) {
    const bool is_last = i + 1 == slots.size();
    std::byte* part = buffer->data() + i * stride;
    StoreLittleEndian(is_last ? int64_t{-1} : slots[i + 1], part);
    std::memcpy(part + kLinkBytes, manifest.data() + i * payload, is_last ? last : payload);
  }
  return ManifestParts{std::move(*buffer), stride};
}

void AppendPieces(std::byte* data, size_t size, int64_t offset, std::vector<IoPiece>* pieces) {
  while (size > 0) {
    size_t count = 0;
    IoPiece* last = pieces->empty() ? nullptr : &pieces->back();
    if (last != nullptr && last->size < kIoPieceBytes && last->data + last->size == data &&
        last->offset + static_cast<int64_t>(last->size) == offset) {
      count = std::min(size, kIoPieceBytes - last->size);
      last->size += count;
    } else {
      count = std::min(size, kIoPieceBytes);
      pieces->push_back({data, count, offset});
    }
    data += count;
    offset += static_cast<int64_t>(count);
    size -= count;
  }
}

}  // namespace headway::kv
