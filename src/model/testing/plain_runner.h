// PlainRunner: a model with the reference kernels and the plainest cache there can be, for tests of
// what models compute.
#ifndef HEADWAY_MODEL_TESTING_PLAIN_RUNNER_H_
#define HEADWAY_MODEL_TESTING_PLAIN_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "model/rope.h"

namespace headway::testing {

// Runs one sequence: all keys and values of a head in consecutive pages of its own.
class PlainRunner {
 public:
  // Room for `capacity` tokens; `prompt_length` is what RoPE may depend on.
  PlainRunner(const Model& model, DType kv_dtype, int64_t prompt_length, int64_t capacity);

  // The logits behind each of `ids`, which follow what ran before.
  std::vector<std::vector<float>> Run(std::span<const TokenId> ids);

 private:
  PageRun Pages(int layer, int64_t begin, int64_t count);
  void Attention(int layer, const RopeTable& table, int64_t tokens, const Activations& a);
  void Chunk(std::span<const TokenId> ids, std::vector<std::vector<float>>* logits);

  const Model& model_;
  const ModelShape shape_;
  const PageFormat format_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Kernels> kernels_;
  const RopeFrequencies rope_;
  std::vector<float> activations_;
  std::vector<float> lse_;
  std::vector<float> scratch_;
  std::vector<std::byte> memory_;  // [layers, kv_heads, K and V, pages_] pages
  int64_t pages_ = 0;
  int64_t length_ = 0;
};

}  // namespace headway::testing

#endif  // HEADWAY_MODEL_TESTING_PLAIN_RUNNER_H_
