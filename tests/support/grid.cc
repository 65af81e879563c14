#include "support/grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/random.h"

namespace headway::testing {

ModelConfig TinyConfig(DType dtype) {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.shape = {3, 48, 6, 3, 16, 80, 96, dtype};
  config.tied_embeddings = true;
  config.windows.assign(3, 0);
  config.max_position = 4096;
  return config;
}

ModelConfig TinyOptConfig(DType dtype, bool behind) {
  ModelConfig config;
  config.architecture = "OPTForCausalLM";
  config.family = &arch::kOpt;
  config.shape = {3, 48, 3, 3, 16, 80, 96, dtype, /*gated_mlp=*/false};
  config.layer_norm = true;
  config.norm_behind = behind;
  config.final_norm = !behind;
  config.embed_width = behind ? 40 : 0;
  config.qkv_bias = config.o_bias = config.mlp_bias = true;
  config.tied_embeddings = true;
  config.rope.type = RopeType::kNone;
  config.learned_positions = true;
  config.windows.assign(3, 0);
  config.max_position = 300;
  return config;
}

ModelConfig TinyNeoXConfig(DType dtype, bool parallel) {
  ModelConfig config;
  config.architecture = "GPTNeoXForCausalLM";
  config.family = &arch::kGptNeoX;
  config.shape = {3, 48, 3, 3, 16, 80, 96, dtype, /*gated_mlp=*/false};
  config.layer_norm = true;
  config.qkv_bias = config.o_bias = config.mlp_bias = true;
  config.parallel_residual = parallel;
  config.tanh_gelu = !parallel;
  config.rope.share = parallel ? 0.25 : 0.625;
  config.windows.assign(3, 0);
  config.max_position = 4096;
  return config;
}

std::unique_ptr<Model> Tiny(const ModelConfig& config) {
  Result<std::unique_ptr<Model>> model = Model::Random(Env::Default(), config, 11, nullptr);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return std::move(*model);
}

std::vector<TokenId> RandomTokens(int64_t count, int vocab, uint64_t seed) {
  Random random(seed);
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(random.Below(vocab)));
  return tokens;
}

RopeFrequencies RopeOf(const Model& model, int64_t length) {
  return ComputeRope(model.config().rope, model.shape().head_dim, length);
}

LogitRows RunTokens(Model& model, const HarnessConfig& config, std::span<const TokenId> tokens,
                    int64_t decode) {
  Result<std::unique_ptr<StepHarness>> h =
      StepHarness::Create(model, config, 1, static_cast<int64_t>(tokens.size()));
  EXPECT_TRUE(h.ok()) << h.status().message();
  if (!h.ok()) return {};
  Result<kv::SequenceId> sequence = (*h)->NewSequence();
  EXPECT_TRUE(sequence.ok()) << sequence.status().message();
  const RopeFrequencies rope = RopeOf(model, static_cast<int64_t>(tokens.size()));
  const size_t prompt = tokens.size() - static_cast<size_t>(decode);
  Result<LogitRows> rows = (*h)->Append(*sequence, tokens.first(prompt), rope);
  EXPECT_TRUE(rows.ok()) << rows.status().message();
  if (!rows.ok()) return {};
  for (size_t i = prompt; i < tokens.size(); ++i) {
    Result<LogitRows> one = (*h)->Append(*sequence, tokens.subspan(i, 1), rope);
    EXPECT_TRUE(one.ok()) << one.status().message();
    if (!one.ok()) return {};
    rows->push_back(std::move((*one)[0]));
  }
  return std::move(*rows);
}

void ExpectSameBits(const LogitRows& a, const LogitRows& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)), 0)
        << what << ", token " << i;
  }
}

void ExpectSameAnywhere(const Model& model, const HarnessConfig& config, const LogitRows& a,
                        const LogitRows& b, const std::string& what) {
  if (config.host_share > 0.0) {
    ExpectNear(model, a, b, what);
  } else {
    ExpectSameBits(a, b, what);
  }
}

namespace {

// How far two plans may be apart that add in another order. Each of a layer's sums of n <= 256
// terms (d_model, d_ff, keys) errs by at most n * eps relative to its terms' magnitudes; six of
// them follow one another in a layer, and with 16-bit pages a last-bit change of a sum can turn the
// rounding of a key or value, which is 2^-8 (bf16) of it; where
// activations have 16 bits, too, that of eight values which follow one another (normed, q or k, o,
// normed, gate, up, their product). The norms keep magnitudes at the logits' scale.
double Tolerance(const Model& model, const LogitRows& rows) {
  double scale = 0.0;
  for (const auto& row : rows) {
    for (float x : row) scale = std::max(scale, std::abs(static_cast<double>(x)));
  }
  const double sums = 6.0 * 256.0 * std::numeric_limits<float>::epsilon();
  const double rounding = model.shape().dtype == DType::kF32 ? 0.0 : std::ldexp(1.0, -8);
  const double values = TestDevice() == "cpu" ? 1.0 : 8.0;
  return scale * model.shape().layers * (sums + values * rounding);
}

}  // namespace

void ExpectNear(const Model& model, const LogitRows& a, const LogitRows& b,
                const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  const double tolerance = Tolerance(model, a);
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[i].size(); ++j) {
      ASSERT_NEAR(a[i][j], b[i][j], tolerance) << what << ", token " << i << ", logit " << j;
    }
  }
}

namespace {

void LiveBatch(Model& model, const HarnessConfig& config, std::vector<LogitRows>* got) {
  constexpr int64_t kMost = 140;
  const RopeFrequencies rope = RopeOf(model, kMost);
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(model, config, 5, kMost);
  ASSERT_TRUE(h.ok()) << h.status().message();
  std::vector<kv::SequenceId> ids;
  for (const int64_t length : {1, 33, 90, 64}) {
    ids.push_back(*(*h)->NewSequence());
    const std::vector<TokenId> prompt = RandomTokens(length, 96, static_cast<uint64_t>(length));
    ASSERT_TRUE((*h)->Append(ids.back(), prompt, rope).ok());
  }
  Result<kv::SequenceId> fork = (*h)->store().Fork(ids[2]);
  ASSERT_TRUE(fork.ok());
  ids.push_back(*fork);
  got->resize(ids.size());
  for (int step = 0; step < 30; ++step) {
    std::vector<std::vector<TokenId>> tokens;
    for (size_t i = 0; i < ids.size(); ++i) {
      const int64_t count = (static_cast<size_t>(step) % 7) == i ? 5 : 1;
      tokens.push_back(RandomTokens(count, 96, static_cast<uint64_t>(1000 * step) + i));
    }
    std::vector<StepInput> inputs;
    for (size_t i = 0; i < ids.size(); ++i) {
      inputs.push_back({ids[i], tokens[i], &rope, LogitsMode::kAll});
    }
    if (step == 9) {
      const std::atomic<bool> stop = true;
      EXPECT_EQ((*h)->executor().Step(inputs, nullptr, &stop).code(), StatusCode::kCancelled);
      continue;
    }
    if (step == 15) {
      EXPECT_EQ(*(*h)->store().Truncate(ids[4], 41), 32);
      EXPECT_EQ(*(*h)->store().Truncate(ids[3], 20), 16);
    }
    Result<std::vector<LogitRows>> rows = (*h)->Step(inputs);
    ASSERT_TRUE(rows.ok()) << rows.status().message();
    for (size_t i = 0; i < ids.size(); ++i) {
      for (auto& row : (*rows)[i]) (*got)[i].push_back(std::move(row));
    }
  }
}

}  // namespace

void ExpectBatchesNear(Model& model, std::span<const HarnessConfig> configs) {
  std::vector<LogitRows> first;
  for (size_t plan = 0; plan < configs.size(); ++plan) {
    std::vector<LogitRows> got;
    LiveBatch(model, configs[plan], &got);
    if (::testing::Test::HasFatalFailure()) return;
    if (plan == 0) first = got;
    for (size_t i = 0; i < first.size(); ++i) {
      ExpectNear(model, first[i], got[i],
                 "plan " + std::to_string(plan) + " sequence " + std::to_string(i));
    }
  }
}

}  // namespace headway::testing
