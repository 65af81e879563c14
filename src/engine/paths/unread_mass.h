// UnreadMass: which KV heads leave out more of the keys before a window than a bound allows
// (kv/policy/unread_bound.h), as the host's cores find it by a sample of these keys. It reads,
// where they lie, the keys of 64 blocks a head and those of the window; of encoded pages, the
// numbers that codes stand for. The window's keys in open pages lie on the device alone. Cores do
// not wait for their mass, and count it as nothing.
#ifndef HEADWAY_ENGINE_PATHS_UNREAD_MASS_H_
#define HEADWAY_ENGINE_PATHS_UNREAD_MASS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "engine/step/key_logits.h"
#include "kernels/kernels.h"
#include "kernels/selection.h"
#include "kv/policy/unread_bound.h"
#include "model/config.h"

namespace headway {

// What a KV head of a decode leaves out.
struct UnreadKeys {
  struct Block {
    KeyRun keys;          // of this head alone, in memory of the host
    int64_t stratum = 1;  // UnreadBlock::stratum
    uint32_t unread = 0;  // bit i: key i is not read
  };
  int64_t blocks = 0;  // before the window
  // Those of selection::SampleOf of which something is not read, in their order.
  std::vector<Block> sample;
  // Of this head alone: keys in closed pages that are not before the window, in their order.
  std::vector<KeyRun> near;
};

class UnreadMass {
 public:
  struct Limits {
    ModelShape shape;
    PageFormat page;
    MassBound bound;  // but for its seed, which the samples know
    int64_t entries = 0;
    int64_t near = 0;  // most keys of UnreadKeys::near
  };
  // Bytes of memory that it works in; pure.
  static int64_t Bytes(const Limits& limits);
  // Kernels compute in memory of the host as `stream` is given work, and take queries in f32.
  UnreadMass(const Limits& limits, Kernels& kernels, Stream& stream, std::byte* memory);

  // A head, its group's queries [group, head_dim], and the natural logarithms of the masses of what
  // these read before the window [group]. The query's position is behind all keys.
  struct Head {
    const UnreadKeys* keys = nullptr;
    const float* q = nullptr;
    const float* lse = nullptr;
    int64_t position = 0;
  };
  // Whether the bound fails for a query head of each; at most as many as entries have.
  std::vector<bool> LeaveTooMuch(std::span<const Head> heads);

 private:
  int64_t Logits() const { return limits_.shape.group() * int64_t{slots_}; }  // of a block
  void WeighBlocks(std::span<const Head> heads);
  void WeighNear(std::span<const Head> heads);
  KeyLogitsItem ItemFor(const Head& head, const KeyRun& keys) const;

  const Limits limits_;
  const int slots_;  // of a block
  Stream& stream_;
  Kernels& kernels_;
  KeyLogits key_logits_;
  float* const logits_;       // [blocks, group, slots]
  float* const masses_;       // [blocks, group]: their natural logarithms
  float* const sums_;         // [blocks, slots], which KeyWeights leaves
  float* const near_logits_;  // [heads, group, near]
  float* const near_masses_;  // [heads, group]: their natural logarithms
  float* const near_sums_;    // [heads, near], which KeyWeights leaves
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_PATHS_UNREAD_MASS_H_
