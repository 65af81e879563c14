// The golden files of tests/golden: what Transformers computed for tiny random models. See
// scripts/make_golden.py for how they are made.
#ifndef HEADWAY_TESTS_SUPPORT_GOLDEN_H_
#define HEADWAY_TESTS_SUPPORT_GOLDEN_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/types.h"
#include "headway/status.h"

namespace headway {

struct Golden {
  std::string folder;  // of the model
  std::vector<TokenId> prompt;
  std::vector<TokenId> tokens;  // greedy continuation, end tokens ignored
  std::vector<float> margins;   // [tokens]: between the two best logits that each was chosen from
  // Logits of some positions of prompt + tokens; those of position p choose token p + 1.
  std::vector<int64_t> rows;
  std::vector<std::vector<float>> logits;  // [rows][vocab]
};

// The names of all models, sorted.
std::vector<std::string> GoldenNames();
// One of them as the name of a test's parameter.
std::string GoldenTestName(std::string name);

Result<Golden> LoadGolden(Env& env, const std::string& name);

// How far logits, with `reference` from Transformers in f32, may be off when the same model runs in
// f32 sums over another order, with K and V rounded to `kv_dtype` and activations to `activations`.
double GoldenTolerance(const ModelShape& shape, int64_t context, DType kv_dtype,
                       std::span<const float> reference, DType activations = DType::kF32);

// The largest distance between two rows of logits; infinite for a NaN or unequal lengths.
double MaxDifference(std::span<const float> a, std::span<const float> b);

}  // namespace headway

#endif  // HEADWAY_TESTS_SUPPORT_GOLDEN_H_
