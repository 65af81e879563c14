// Steps that verify drafts: logits behind each token are those of steps of one token each, wherever
// the cache lies, and what is taken back leaves no trace.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "base/random.h"
#include "support/grid.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

constexpr int64_t kDrafts = 7;

// A sequence whose tokens are known, and how far a harness has come with it.
struct Known {
  std::vector<TokenId> tokens;
  kv::SequenceId id = 0;
  size_t at = 0;
  LogitRows rows = {};

  std::span<const TokenId> Rest() const { return std::span(tokens).subspan(at); }
};

// The next token and drafts behind it, of which the first `right` are what follows.
struct Guess {
  std::vector<TokenId> tokens;
  int64_t right = 0;

  int64_t drafts() const { return std::ssize(tokens) - 1; }
};

Guess MakeGuess(const Known& known, const HarnessConfig& config, Random& random) {
  const auto rest = std::ssize(known.Rest());
  const int64_t room = config.page_slots - 1 - static_cast<int64_t>(known.at) % config.page_slots;
  Guess guess;
  guess.tokens.push_back(known.Rest()[0]);
  const int64_t drafts = random.Below(std::max<int64_t>(1, std::min(room, kDrafts + 1)));
  guess.right = std::min(random.Below(drafts + 1), rest - 1);
  for (int64_t i = 0; i < drafts; ++i) {
    const TokenId next = i + 1 < rest ? known.Rest()[static_cast<size_t>(i) + 1] : 0;
    guess.tokens.push_back(i < guess.right ? next : (next + 1) % 96);
  }
  return guess;
}

// One step of all sequences that are not at their end; the rows of the right tokens are kept.
void Verify(StepHarness& h, const HarnessConfig& config, const RopeFrequencies& rope,
            std::vector<Known>& sequences, Random& random) {
  std::vector<Guess> guesses;
  std::vector<Known*> owners;
  for (Known& known : sequences) {
    if (known.Rest().empty()) continue;
    guesses.push_back(MakeGuess(known, config, random));
    owners.push_back(&known);
  }
  std::vector<StepInput> inputs;
  for (size_t i = 0; i < guesses.size(); ++i) {
    StepInput input{owners[i]->id, guesses[i].tokens, &rope, LogitsMode::kAll};
    input.drafts = guesses[i].drafts();
    inputs.push_back(input);
  }
  Result<std::vector<LogitRows>> rows = h.Step(inputs);
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  for (size_t i = 0; i < guesses.size(); ++i) {
    const Guess& guess = guesses[i];
    ASSERT_TRUE(h.store().TakeBack(owners[i]->id, guess.drafts() - guess.right).ok());
    for (int64_t t = 0; t <= guess.right; ++t) {
      owners[i]->rows.push_back(std::move((*rows)[i][static_cast<size_t>(t)]));
    }
    owners[i]->at += static_cast<size_t>(guess.right) + 1;
    ASSERT_EQ(h.store().Length(owners[i]->id), static_cast<int64_t>(owners[i]->at));
  }
}

// As RunTokens, but what is decoded comes several tokens a step.
LogitRows RunVerified(Model& model, HarnessConfig config, std::span<const TokenId> tokens,
                      int64_t decode, uint64_t seed) {
  config.drafts = kDrafts;
  const auto length = std::ssize(tokens);
  Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(model, config, 1, length + kDrafts);
  EXPECT_TRUE(h.ok()) << h.status().message();
  if (!h.ok()) return {};
  const RopeFrequencies rope = RopeOf(model, length);
  std::vector<Known> known(1);
  known[0] = {
      {tokens.begin(), tokens.end()}, *(*h)->NewSequence(), static_cast<size_t>(length - decode)};
  Result<LogitRows> rows =
      (*h)->Append(known[0].id, tokens.first(static_cast<size_t>(length - decode)), rope);
  EXPECT_TRUE(rows.ok()) << rows.status().message();
  if (!rows.ok()) return {};
  known[0].rows = std::move(*rows);
  Random random(seed);
  while (!known[0].Rest().empty() && !::testing::Test::HasFatalFailure()) {
    Verify(**h, config, rope, known, random);
  }
  return std::move(known[0].rows);
}

// Where the cache may lie, and how it may be cut.
std::vector<std::pair<std::string, HarnessConfig>> Places() {
  HarnessConfig resident, lru, disk, tiny, apart, host, half, recompute;
  lru.placement = kv::PlacementKind::kLru;
  lru.device_slabs = 2;
  lru.host_slabs = 4;
  disk.placement = kv::PlacementKind::kDiskOnly;
  disk.device_slabs = disk.host_slabs = 0;
  tiny.page_slots = 4;
  tiny.segment_pages = 3;
  apart.group_heads = 1;
  apart.page_slots = 64;
  host.placement = kv::PlacementKind::kHostOnly;
  host.device_slabs = 0;
  host.group_heads = 2;
  half = host;
  host.host_share = 1.0;
  half.host_share = 0.4;
  recompute.placement = kv::PlacementKind::kHostOnly;
  recompute.device_slabs = 0;
  recompute.x_segments = 2;
  return {{"resident", resident}, {"lru", lru},   {"disk", disk}, {"tiny pages", tiny},
          {"apart", apart},       {"host", host}, {"half", half}, {"recomputed", recompute}};
}

class DraftsTest : public ::testing::TestWithParam<DType> {};

TEST_P(DraftsTest, AreVerifiedWhereverTheCacheLies) {
  for (const bool windows : {false, true}) {
    ModelConfig tiny = TinyConfig(GetParam());
    if (windows) tiny.windows = {40, 0, 17};
    const std::unique_ptr<Model> model = Tiny(tiny);
    uint64_t seed = 1;
    for (auto& [name, config] : Places()) {
      const std::vector<TokenId> tokens = RandomTokens(230, 96, ++seed);
      ExpectNear(*model, RunTokens(*model, config, tokens, 150),
                 RunVerified(*model, config, tokens, 150, seed), name);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(DraftsTest, AreVerifiedOverEncodedPages) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config;
  config.encoding = Encoding::kInt8;
  const std::vector<TokenId> tokens = RandomTokens(200, 96, 5);
  ExpectNear(*model, RunTokens(*model, config, tokens, 150),
             RunVerified(*model, config, tokens, 150, 5), "int8");
}

// Each draft has a window of its own, before and behind the model's.
TEST_P(DraftsTest, AreVerifiedByStreamingHeads) {
  for (const bool windows : {false, true}) {
    ModelConfig tiny = TinyConfig(GetParam());
    if (windows) tiny.windows = {40, 0, 17};
    const std::unique_ptr<Model> model = Tiny(tiny);
    const auto heads = static_cast<size_t>(tiny.shape.kv_heads);
    for (const auto& [sink, recent] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 1}, {5, 21}, {16, 64}, {40, 3}, {500, 1}, {3, 500}}) {
      HarnessConfig config;
      config.pattern = {sink, recent, {}};
      for (int layer = 0; layer < tiny.shape.layers; ++layer) {
        config.pattern.streaming.emplace_back(heads, layer == 1);
        if (layer != 1) config.pattern.streaming.back()[0] = true;
      }
      const std::vector<TokenId> tokens = RandomTokens(170, 96, 8);
      ExpectNear(*model, RunTokens(*model, config, tokens, 120),
                 RunVerified(*model, config, tokens, 120, 8),
                 "sink " + std::to_string(sink) + " recent " + std::to_string(recent));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(DraftsTest, AreVerifiedWithWeightsThatStream) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(GetParam()));
  HarnessConfig config;
  config.weight_layers = 1;
  const std::vector<TokenId> tokens = RandomTokens(150, 96, 6);
  ExpectNear(*model, RunTokens(*model, config, tokens, 100),
             RunVerified(*model, config, tokens, 100, 6), "weights");
}

TEST_P(DraftsTest, AreVerifiedByOtherFamilies) {
  for (const ModelConfig& config :
       {TinyOptConfig(GetParam(), false), TinyNeoXConfig(GetParam(), true)}) {
    const std::unique_ptr<Model> model = Tiny(config);
    const std::vector<TokenId> tokens = RandomTokens(150, 96, 7);
    ExpectNear(*model, RunTokens(*model, {}, tokens, 100), RunVerified(*model, {}, tokens, 100, 7),
               config.architecture);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, DraftsTest,
                         ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& param) { return std::string(DTypeName(param.param)); });

// Sequences of a batch have their own numbers of drafts; one is a fork, made between two steps, and
// one step is given up, which leaves whole pages.
TEST(Drafts, ABatchVerifiesUnequalNumbers) {
  const std::unique_ptr<Model> model = Tiny(TinyConfig(DType::kBF16));
  for (auto& [name, place] : Places()) {
    HarnessConfig config = place;
    config.drafts = kDrafts;
    const RopeFrequencies rope = RopeOf(*model, 150);
    Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(*model, config, 4, 150 + kDrafts);
    ASSERT_TRUE(h.ok()) << h.status().message();
    std::vector<Known> known;
    for (const size_t prompt : {1, 33, 64}) {
      known.push_back({RandomTokens(150, 96, prompt), *(*h)->NewSequence(), prompt});
      Known& last = known.back();
      Result<LogitRows> rows = (*h)->Append(last.id, std::span(last.tokens).first(prompt), rope);
      ASSERT_TRUE(rows.ok()) << rows.status().message();
      last.rows = std::move(*rows);
    }
    Random random(9);
    for (int step = 0; known[0].at < 150 || known.back().at < 150; ++step) {
      Verify(**h, config, rope, known, random);
      if (HasFatalFailure()) return;
      if (step == 5) {
        known.push_back(known[1]);
        known.back().id = *(*h)->store().Fork(known[1].id);
      }
      if (step != 9) continue;
      const std::vector<TokenId> two = {1, 2};
      StepInput input{known[2].id, two, &rope, LogitsMode::kAll};
      const size_t whole = known[2].at / static_cast<size_t>(config.page_slots) *
                           static_cast<size_t>(config.page_slots);
      input.drafts = known[2].at % static_cast<size_t>(config.page_slots) < 2 ? 1 : 0;
      const std::atomic<bool> stop = true;
      EXPECT_EQ((*h)->executor().Step({&input, 1}, nullptr, &stop).code(), StatusCode::kCancelled);
      ASSERT_EQ((*h)->store().Length(known[2].id), static_cast<int64_t>(whole));
      known[2].at = whole;
      known[2].rows.resize(whole);
    }
    for (size_t i = 0; i < known.size(); ++i) {
      ExpectNear(*model, RunTokens(*model, place, known[i].tokens, 100), known[i].rows,
                 name + ", sequence " + std::to_string(i));
    }
  }
}

}  // namespace
}  // namespace headway::testing
