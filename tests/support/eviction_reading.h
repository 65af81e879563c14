// Prompts that an evictor read, and what it kept of them, told by bytes alone: for tests that hold
// it to a plain reading.
#ifndef HEADWAY_TESTS_SUPPORT_EVICTION_READING_H_
#define HEADWAY_TESTS_SUPPORT_EVICTION_READING_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "support/cache_reading.h"
#include "support/step_harness.h"

namespace headway::testing {

struct Prompt {
  std::vector<TokenId> tokens;
  std::vector<std::vector<Cached>> heads;  // [layers][kv_heads]
  std::vector<Queries> queries;            // [layers], those that the policy asks for
};

class Reading {
 public:
  // `plain` is the same model, whose weights the host reads.
  Reading(Model& model, const Model& plain, const HarnessConfig& config, int64_t length);
  bool ok() const { return h_ != nullptr; }
  StepHarness& harness() { return *h_; }
  const RopeFrequencies& rope() const { return rope_; }

  // Reads a prompt, keeps some of it, and drops the rest.
  kv::SequenceId Evict(const std::vector<TokenId>& tokens, Prompt* prompt);

  // The lists of what is kept, checked.
  Lists Check(kv::SequenceId kept, const Prompt& prompt);

  int choices = 0, decided = 0;  // of heads in layers

 private:
  void CheckLayer(int layer, const Prompt& prompt, const std::vector<std::vector<int64_t>>& lists);
  // The queries that the policy asks for.
  Queries QueriesOf(int layer);

  const Model& plain_;
  const ModelShape shape_;
  const kv::EvictionPolicy policy_;
  const RopeFrequencies rope_;
  // [layers], all of the prompt at hand; where the policy asks for other queries than the last.
  std::vector<Queries> noted_;
  std::unique_ptr<StepHarness> h_;
};

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_EVICTION_READING_H_
