// What is appended brings back what heads had dropped: a needle in a text that repeats something
// else, and the words of the needle again behind it. The demo model looks for where it has read
// such words before.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "support/api.h"
#include "support/decode_outputs.h"
#include "support/grid.h"
#include "support/salience_decode.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

constexpr int64_t kNeedleAt = 151, kNeedle = 48;  // tokens
constexpr int64_t kPrompt = 600;
constexpr int64_t kBefore = 9, kBehind = 3;  // steps before and behind what is appended
constexpr int64_t kQueries = 32;
constexpr int64_t kAsked = 30;  // of the needle's tokens, that steps behind begin with

HarnessConfig Config() {
  HarnessConfig config;
  config.chunk = 128;
  config.isa = "avx2";  // outputs are compared as far as sums of f32 can tell
  config.salience.beta = 1.0;
  config.salience.window = 64;
  config.salience.most = 0.2;
  config.salience.queries = kQueries;
  config.salient_on_host = true;
  if (TestDevice() != "cpu") {  // whose memory the cores do not read
    config.placement = kv::PlacementKind::kHostOnly;
    config.device_slabs = 0;
  }
  return config;
}

struct Text {
  std::vector<TokenId> tokens;
  int64_t appended_to = 0;  // where what is appended ends
};

// A prompt with the needle, steps, the needle's words or others, and steps with some of them.
Text TextWith(bool needle_again) {
  const std::unique_ptr<Engine> engine = Open(kDemo);
  Text text;
  text.tokens = Quoting(*engine, kPrompt + kBefore - kNeedle, 9);
  const std::vector<TokenId> needle = Quoting(*engine, kNeedle + 1, 700);
  const std::vector<TokenId> other = Quoting(*engine, kNeedle + 1, 1100);
  text.tokens.insert(text.tokens.begin() + kNeedleAt, needle.begin() + 1, needle.end());
  const std::vector<TokenId>& more = needle_again ? needle : other;
  text.tokens.insert(text.tokens.end(), more.begin() + 1, more.end());
  text.appended_to = std::ssize(text.tokens);
  text.tokens.insert(text.tokens.end(), needle.begin() + kAsked, needle.begin() + kAsked + kBehind);
  return text;
}

// What heads attended to in the last step before something was appended and in the first behind.
struct Turns {
  Lists before, behind;
};

// Positions of the needle that a head has in `behind` and did not have in `before`.
std::vector<int64_t> BroughtBack(const Turns& turns, size_t layer, size_t head) {
  std::vector<int64_t> back;
  const std::vector<int64_t>& had = turns.before[layer][head];
  const std::vector<int64_t>& has = turns.behind[layer][head];
  for (int64_t key = kNeedleAt; key < kNeedleAt + kNeedle; ++key) {
    const bool dropped = std::find(had.begin(), had.end(), key) == had.end();
    if (dropped && std::find(has.begin(), has.end(), key) != has.end()) back.push_back(key);
  }
  return back;
}

// The head, of those of all layers, that has the most of the needle's tokens back.
struct Head {
  size_t layer = 0, head = 0;
};
Head NeedleHead(const Turns& turns) {
  Head most;
  for (size_t layer = 0; layer < turns.before.size(); ++layer) {
    for (size_t head = 0; head < turns.before[layer].size(); ++head) {
      if (BroughtBack(turns, layer, head).size() >
          BroughtBack(turns, most.layer, most.head).size()) {
        most = {layer, head};
      }
    }
  }
  return most;
}

class EngineSalienceAppend : public ::testing::Test {
 protected:
  EngineSalienceAppend() {
    Result<std::unique_ptr<Model>> model = Model::Load(Env::Default(), kDemo);
    EXPECT_TRUE(model.ok()) << model.status().message();
    if (model.ok()) model_ = std::move(*model);
  }

  // Both turns; where the needle's words are appended, the outputs of the first step behind them
  // are those of attention to its lists.
  Turns Read(bool needle_again) {
    const Text text = TextWith(needle_again);
    std::vector<DecodeOutput> outputs;
    HarnessConfig config = Config();
    if (TestDevice() == "cpu") {
      config.wrap_kernels = [&](std::unique_ptr<Kernels> kernels) {
        return std::make_unique<RecordingKernels>(std::move(kernels), &outputs);
      };
    }
    SalienceDecode decode(*model_, config, text.tokens);
    if (!decode.ok()) return {};
    Turns turns;
    decode.Prompt(kPrompt);
    for (int64_t step = 0; step < kBefore && !HasFailure(); ++step) decode.Step();
    if (HasFailure()) return {};
    turns.before = decode.lists().back();
    decode.Prompt(text.appended_to);
    outputs.clear();
    decode.after_step = [&](const Lists& lists) {
      if (turns.behind.empty()) {
        turns.behind = lists;
        if (needle_again) ExpectRead(decode, turns, outputs);
      }
    };
    for (int64_t step = 0; step < kBehind && !HasFailure(); ++step) decode.Step();
    return turns;
  }

  // The step attended to what its lists say, and without what came back it would be another's.
  void ExpectRead(SalienceDecode& decode, const Turns& turns,
                  const std::vector<DecodeOutput>& outputs) const {
    if (TestDevice() != "cpu") return;
    const auto expect = [&](const Lists& lists) {
      ExpectOutputs({decode.harness(), model_->shape(), decode.sequence(), lists}, outputs, 0);
    };
    expect(turns.behind);
    Lists without = turns.behind;
    const auto [layer, head] = NeedleHead(turns);
    for (const int64_t key : BroughtBack(turns, layer, head)) std::erase(without[layer][head], key);
    ::testing::TestPartResultArray differ;
    {
      const ::testing::ScopedFakeTestPartResultReporter reporter(
          ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &differ);
      expect(without);
    }
    EXPECT_GT(differ.size(), 0);
  }

  std::unique_ptr<Model> model_;
};

TEST_F(EngineSalienceAppend, BringsBackANeedleThatHadBeenDropped) {
  ASSERT_NE(model_, nullptr);
  const Turns asked = Read(/*needle_again=*/true);
  ASSERT_FALSE(HasFailure());
  const auto [layer, head] = NeedleHead(asked);
  const auto count = std::ssize(BroughtBack(asked, layer, head));
  EXPECT_GE(count, kNeedle / 2) << "layer " << layer << " head " << head;
  // Who appends something else does not ask for it.
  const Turns other = Read(/*needle_again=*/false);
  ASSERT_FALSE(other.behind.empty());
  EXPECT_LE(std::ssize(BroughtBack(other, layer, head)), count / 2);
}

}  // namespace
}  // namespace headway::testing
