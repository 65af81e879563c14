// Session files from bytes. The first byte says what the others are: a file as it is, a file whose
// superblocks get right checksums, a manifest that a right file is built around, or a manifest for
// the decoder alone. What opens must be usable: read, written to, committed and opened again.
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/budget.h"
#include "kv/session/session_layout.h"
#include "kv/session/slab_file.h"
#include "kv/session/wire.h"
#include "kv/testing/memory_env.h"
#include "kv/testing/slab_test_util.h"

namespace headway::kv {
namespace {

using Bytes = MemoryEnv::Bytes;

constexpr char kPath[] = "/disk/session";
// Of files that are built around a manifest.
constexpr int64_t kMostSlabBytes = 1 << 14;
constexpr int64_t kMostSlots = 12;

void Use(const Bytes& bytes) {
  MemoryEnv env({{kPath, bytes}});
  Budget budget("disk", kUnlimited);
  LooksLikeSession(&env, kPath);
  const Result<Manifest> inspected = InspectSession(&env, kPath);
  Manifest manifest;
  {
    Result<std::unique_ptr<SlabFile>> file = OpenSessionAt(&env, kPath, &budget);
    HEADWAY_CHECK(file.ok() == inspected.ok());
    if (!file.ok()) return;
    manifest = (*file)->manifest();
    const CacheFormat format = (*file)->format();
    Result<AlignedBuffer> slab =
        AlignedBuffer::Allocate(&env, static_cast<size_t>(format.slab_bytes()));
    HEADWAY_CHECK(slab.ok());
    for (SavedSlab& saved : manifest.slabs) {
      const Status status = (*file)->ReadPages(saved.slot, format.HeadsIn(saved.layer, saved.group),
                                               saved.checksums, slab->data());
      HEADWAY_CHECK(status.ok() || status.code() == StatusCode::kCorrupt);
      // In a slot of its own, what was read is right.
      const Result<int64_t> slot = (*file)->Allocate();
      HEADWAY_CHECK(slot.ok());
      Result<std::vector<uint64_t>> checksums = (*file)->WritePages(
          *slot, format.HeadsIn(saved.layer, saved.group), 0, saved.pages, slab->data());
      HEADWAY_CHECK(checksums.ok());
      (*file)->Free(saved.slot);
      saved.slot = *slot;
      saved.checksums = std::move(*checksums);
    }
    HEADWAY_CHECK((*file)->Commit(manifest).ok());
  }
  HEADWAY_CHECK(budget.used() == 0);
  const Result<std::unique_ptr<SlabFile>> again = OpenSessionAt(&env, kPath, &budget);
  HEADWAY_CHECK(again.ok());
  HEADWAY_CHECK(EncodeManifest((*again)->manifest()) == EncodeManifest(manifest));
}

void Seal(Bytes* bytes) {
  constexpr size_t kHashAt = kSuperblockBytes - sizeof(uint64_t);
  for (size_t block = 0; block + kSuperblockBytes <= bytes->size() && block <= kSuperblockBytes;
       block += kSuperblockBytes) {
    const uint64_t hash = XXH3_64bits(bytes->data() + block, kHashAt);
    StoreLittleEndian(hash, bytes->data() + block + kHashAt);
  }
}

// A file whose last slots hold `manifest`.
void UseAround(std::span<const std::byte> manifest) {
  int64_t slab_bytes = 2 * static_cast<int64_t>(kDirectAlignment);
  const Result<Manifest> decoded = DecodeManifest(manifest, kMostSlots);
  if (decoded.ok()) slab_bytes = decoded->format.slab_bytes();
  const auto size = static_cast<int64_t>(manifest.size());
  if (size == 0 || slab_bytes > kMostSlabBytes) return;
  const int64_t parts = ManifestSlots(size, slab_bytes);
  std::vector<int64_t> slots;
  for (int64_t i = 0; i < parts; ++i) slots.push_back(kMostSlots + (parts - 1 - i));

  MemoryEnv env;
  const Result<ManifestParts> laid = LayOutManifest(&env, manifest, slots, slab_bytes);
  HEADWAY_CHECK(laid.ok());
  Superblock superblock;
  superblock.generation = 1;
  superblock.slab_bytes = slab_bytes;
  superblock.slots = kMostSlots + parts;
  superblock.manifest_slot = slots.front();
  superblock.manifest_bytes = size;
  superblock.manifest_hash = XXH3_64bits(manifest.data(), manifest.size());
  Bytes bytes(static_cast<size_t>(kFirstSlotOffset + superblock.slots * slab_bytes));
  EncodeSuperblock(superblock, bytes.data());
  for (size_t i = 0; i < slots.size(); ++i) {
    const size_t at = i * laid->stride;
    std::memcpy(bytes.data() + kFirstSlotOffset + slots[i] * slab_bytes, laid->buffer.data() + at,
                std::min(laid->stride, laid->buffer.size() - at));
  }
  Use(bytes);
}

void Decode(std::span<const std::byte> bytes) {
  const Result<Manifest> manifest = DecodeManifest(bytes, kMaxSlots);
  if (!manifest.ok()) {
    HEADWAY_CHECK(manifest.status().code() == StatusCode::kCorrupt);
    return;
  }
  const std::vector<std::byte> encoded = EncodeManifest(*manifest);
  HEADWAY_CHECK(std::equal(encoded.begin(), encoded.end(), bytes.begin(), bytes.end()));
}

void Fuzz(std::span<const std::byte> input) {
  if (input.empty()) return;
  const std::span<const std::byte> rest = input.subspan(1);
  switch (std::to_integer<int>(input[0]) % 4) {
    case 0:
      return Decode(rest);
    case 1:
      return UseAround(rest);
    case 2:
      return Use(Bytes(rest.begin(), rest.end()));
    default: {
      Bytes bytes(rest.begin(), rest.end());
      Seal(&bytes);
      return Use(bytes);
    }
  }
}

}  // namespace
}  // namespace headway::kv

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  headway::kv::Fuzz(std::as_bytes(std::span(data, size)));
  return 0;
}
