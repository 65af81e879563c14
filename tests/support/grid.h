// A model small enough for grids of plans, and how logits of two plans are compared.
#ifndef HEADWAY_TESTS_SUPPORT_GRID_H_
#define HEADWAY_TESTS_SUPPORT_GRID_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "model/rope.h"
#include "support/step_harness.h"

namespace headway::testing {

// Heads and dims are odd on purpose.
ModelConfig TinyConfig(DType dtype);
// The same as OPT; `behind`: as its 350m, with norms behind and projections.
ModelConfig TinyOptConfig(DType dtype, bool behind);
// The same as GPT-NeoX; `parallel`: attention and MLP side by side.
ModelConfig TinyNeoXConfig(DType dtype, bool parallel);
std::unique_ptr<Model> Tiny(const ModelConfig& config);
std::vector<TokenId> RandomTokens(int64_t count, int vocab, uint64_t seed);
RopeFrequencies RopeOf(const Model& model, int64_t length);

// Prefills all but the last `decode` tokens in chunks, and those one by one.
LogitRows RunTokens(Model& model, const HarnessConfig& config, std::span<const TokenId> tokens,
                    int64_t decode);

void ExpectSameBits(const LogitRows& a, const LogitRows& b, const std::string& what);
// The same bits, unless the host attends under `config` to what lies in its memory: then residence
// decides what is added where.
void ExpectSameAnywhere(const Model& model, const HarnessConfig& config, const LogitRows& a,
                        const LogitRows& b, const std::string& what);
// Within what the order of additions can change.
void ExpectNear(const Model& model, const LogitRows& a, const LogitRows& b,
                const std::string& what);
// The life of a batch under each of the configurations, near to that under the first: sequences of
// unequal lengths, a fork that shares slabs and goes its own way, prefills among decodes, a step
// that is given up, sequences that are cut back.
void ExpectBatchesNear(Model& model, std::span<const HarnessConfig> configs);
inline void ExpectBatchesNear(Model& model, std::initializer_list<HarnessConfig> configs) {
  ExpectBatchesNear(model, std::span(configs.begin(), configs.size()));
}

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_GRID_H_
