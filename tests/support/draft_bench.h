// A generator over a harness, for tests of drafts.
#ifndef HEADWAY_TESTS_SUPPORT_DRAFT_BENCH_H_
#define HEADWAY_TESTS_SUPPORT_DRAFT_BENCH_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/draft_model.h"
#include "engine/generator.h"
#include "support/api.h"
#include "support/golden.h"
#include "support/step_harness.h"

namespace headway::testing {

inline constexpr int64_t kDrafts = 7;

// What a bench drafts by beside steps over chosen keys, which its configuration has.
struct DraftsBy {
  NewDrafter drafter = nullptr;
  Model* model = nullptr;     // another, or the same again
  HarnessConfig config = {};  // of that
  bool paces = false;         // as many drafts as are fastest
};

// A harness with a generator over it, of `sequences` slots.
struct Bench {
  Bench(Model& model, HarnessConfig config, int sequences, int64_t length,
        NewDrafter drafter = nullptr)
      : Bench(model, config, sequences, length, DraftsBy{.drafter = std::move(drafter)}) {}

  Bench(Model& model, HarnessConfig config, int sequences, int64_t length, DraftsBy by) {
    const bool drafts = by.drafter != nullptr || by.model != nullptr || config.selection.drafts();
    config.drafts = by.config.drafts = drafts ? kDrafts : 0;
    harness = Made(model, config, sequences, length);
    if (harness == nullptr) return;
    GeneratorParts parts{model, nullptr, harness->executor(), harness->store(), *Env::Default()};
    parts.new_drafter = std::move(by.drafter);
    parts.paces_drafts = by.paces;
    if (by.model != nullptr) {
      draft_harness = Made(*by.model, by.config, sequences, length);
      if (draft_harness == nullptr) return;
      draft_model = std::make_unique<DraftModel>(
          DraftModel::Parts{*by.model, draft_harness->executor(), draft_harness->store()},
          static_cast<size_t>(sequences), model.shape().vocab);
      parts.draft_model = draft_model.get();
    }
    const auto slots = static_cast<size_t>(sequences);
    const int x_segments = model.config().windows.empty() ? config.x_segments : 0;
    generator = std::make_unique<Generator>(parts, std::vector<int64_t>(slots, length),
                                            std::vector<int>(slots, x_segments), config.chunk);
  }

  Generation Run(const Request& request, const Hooks& hooks = {}) {
    Result<std::vector<Generation>> result = generator->Generate({&request, 1}, hooks);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.ok() ? std::move((*result)[0]) : Generation();
  }

  static std::unique_ptr<StepHarness> Made(Model& model, const HarnessConfig& config, int sequences,
                                           int64_t length) {
    Result<std::unique_ptr<StepHarness>> made =
        StepHarness::Create(model, config, sequences, length);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? std::move(*made) : nullptr;
  }

  std::unique_ptr<StepHarness> harness, draft_harness;  // the latter where a model drafts
  std::unique_ptr<DraftModel> draft_model;
  std::unique_ptr<Generator> generator;
};

// Every option of sampling, alone or with others; the last one is greedy.
inline constexpr int kSamplingKinds = 5;
inline SamplingOptions SamplingOfKind(int kind) {
  SamplingOptions sampling;
  sampling.seed = static_cast<uint64_t>(kind);
  sampling.temperature = kind == 4 ? 0.0f : 0.7f;
  if (kind == 1) sampling.top_k = 8;
  if (kind == 2) sampling.top_p = 0.8f;
  if (kind == 3) sampling.min_p = 0.05f;
  if (kind >= 3) sampling.repetition_penalty = 1.2f;
  if (kind >= 3) sampling.frequency_penalty = 0.3f;
  return sampling;
}

// Every token is the best of the logits that plain steps compute before it, as far as these can
// tell.
inline void ExpectGreedy(Model& model, const HarnessConfig& config, const Request& request,
                         const std::vector<TokenId>& tokens, const std::string& what) {
  std::vector<TokenId> all = request.prompt;
  all.insert(all.end(), tokens.begin(), tokens.end());
  const auto length = std::ssize(all);
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(model, config, 1, length);
  ASSERT_TRUE(h.ok()) << h.status().message();
  const RopeFrequencies rope =
      ComputeRope(model.config().rope, model.shape().head_dim, std::ssize(request.prompt));
  Result<LogitRows> rows = (*h)->Append(*(*h)->NewSequence(), all, rope);
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  const DType activations = TestDevice() == "cpu" ? DType::kF32 : model.shape().dtype;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::vector<float>& row = (*rows)[request.prompt.size() - 1 + i];
    const double tolerance =
        GoldenTolerance(model.shape(), length, model.shape().dtype, row, activations);
    ASSERT_GE(row[static_cast<size_t>(tokens[i])],
              *std::max_element(row.begin(), row.end()) - 2 * tolerance)
        << what << ", token " << i;
  }
}

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_DRAFT_BENCH_H_
