// Run: the interpreter of the calls that a program was resolved into.
#ifndef HEADWAY_MODEL_ARCH_RUN_H_
#define HEADWAY_MODEL_ARCH_RUN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/types.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "model/arch/calls.h"
#include "model/arch/program.h"

namespace headway::arch {

// Where the tensors of one list are, by their TensorId.
struct TensorViews {
  std::span<const WeightView> matrices;
  std::span<const float* const> vectors;
  // Not null: a copy of a layer's block, in which its matrices lie at these offsets in bytes.
  const std::byte* block = nullptr;
  std::span<const int64_t> in_block = {};

  WeightView Matrix(TensorId id) const {
    WeightView view = matrices[static_cast<size_t>(id)];
    if (block != nullptr) view.data = block + in_block[static_cast<size_t>(id)];
    return view;
  }
  const float* Vector(TensorId id) const {
    return id == kNoTensor ? nullptr : vectors[static_cast<size_t>(id)];
  }
};

// Adds up the parts that the ranks have of the residual stream, piece by piece of a step's rows.
class ResidualSum {
 public:
  virtual ~ResidualSum() = default;
  // residual [count], which the stream has made by then, may be added up from now on.
  virtual void Begin(int piece, float* residual, int64_t count) = 0;
  // What the stream is given from now on finds the sum that was begun last of that piece, if any.
  virtual void Await(int piece) = 0;
};

// What the calls of one run work on.
struct Frame {
  TensorViews tensors = {};
  const ModelShape* shape = nullptr;
  int64_t rows = 0;
  std::array<void*, kSlots> slots = {};  // null where no call reads or writes
  int64_t qkv_stride = 0;                // elements between the tokens of q, of k and of v
  std::span<const TokenId> ids = {};     // [rows], for kEmbed
  std::span<const int32_t> positions = {};
  ResidualSum* sum = nullptr;  // of ranks; null where no call sums

  void*& operator[](Slot slot) { return slots[static_cast<size_t>(slot)]; }
  void* operator[](Slot slot) const { return slots[static_cast<size_t>(slot)]; }
};

// In so many pieces of neighbouring rows, one after the other up to each call that sums: while
// ranks add up one piece, the others are computed. More than one is for calls behind attention,
// and leaves the last sums to be awaited.
void Run(Kernels& kernels, Stream& stream, std::span<const Call> calls, const Frame& frame,
         int pieces = 1);
// Calls that come next, and do not sum: the rows of the last piece by themselves, since its sum
// comes last.
void RunBehindSums(Kernels& kernels, Stream& stream, std::span<const Call> calls,
                   const Frame& frame, int pieces);

}  // namespace headway::arch

#endif  // HEADWAY_MODEL_ARCH_RUN_H_
