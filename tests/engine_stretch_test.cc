// Prompts that pass through one layer after the other: the bits of the same chunks through all
// layers, wherever pages and weights lie, and nothing is left of a stretch that is given up.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/delaying_device.h"
#include "support/grid.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

constexpr int64_t kChunk = 21;
constexpr int64_t kStretch = 16 * kChunk;
constexpr int64_t kLength = 420;
constexpr int kVocab = 96;

struct Named {
  const char* name;
  HarnessConfig config;
};

HarnessConfig Base() {
  HarnessConfig config = HarnessConfig::Default();
  config.chunk = kChunk;
  config.page_slots = 4;
  config.segment_pages = 2;
  config.group_heads = 2;
  return config;
}

std::vector<Named> Plans() {
  HarnessConfig tiers = Base();
  tiers.device_slabs = 60;
  tiers.host_slabs = 80;
  HarnessConfig lru = tiers;
  lru.placement = kv::PlacementKind::kLru;
  HarnessConfig disk = Base();
  disk.placement = kv::PlacementKind::kDiskOnly;
  HarnessConfig weights = Base();
  weights.placement = kv::PlacementKind::kHostOnly;
  weights.weight_layers = 0;
  HarnessConfig disk_weights = weights;
  disk_weights.disk_layers = 2;
  HarnessConfig codes = tiers;
  codes.encoding = Encoding::kInt8;
  HarnessConfig selection = tiers;
  selection.placement = kv::PlacementKind::kRecent;
  selection.host_slabs = 200;  // prompts read what lies on disk whole
  selection.page_slots = 8;
  selection.selection = {{SummaryKind::kMoments, 8}, 8, 1, 1, BudgetShare::kHead};
  selection.selection.prompts = kv::SelectionPolicy::Prompts::kSelected;
  selection.page_cache_bytes = 64 << 10;
  HarnessConfig reaching = selection;
  reaching.selection.distance = 8;
  return {{"resident", Base()}, {"three tiers", tiers},   {"lru", lru},
          {"disk only", disk},  {"weights", weights},     {"weights on disk", disk_weights},
          {"int8", codes},      {"selection", selection}, {"reaching", reaching}};
}

ModelConfig Plain() {
  ModelConfig config = TinyConfig(DType::kBF16);
  config.windows.assign(config.windows.size(), 0);
  return config;
}

enum class Order { kChunks, kLayers };

// Two sequences that are read, decode, are read on and decode again.
class Life {
 public:
  Life(Model& model, const HarnessConfig& config, Order order)
      : model_(model), order_(order), rope_(RopeOf(model, kLength)) {
    HarnessConfig with = config;
    if (order == Order::kLayers) with.stretch = kStretch;
    Result<std::unique_ptr<StepHarness>> made = StepHarness::Create(model, with, 2, kLength);
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (!made.ok()) return;
    harness_ = std::move(*made);
    for (kv::SequenceId& id : sequences_) id = *harness_->NewSequence();
  }

  bool ok() const { return harness_ != nullptr; }
  StepHarness& harness() { return *harness_; }
  int64_t LengthOf(size_t i) const { return harness_->store().Length(sequences_[i]); }

  Status Read(std::span<const TokenId> a, std::span<const TokenId> b,
              const std::atomic<bool>* cancel = nullptr) {
    const StepInput inputs[] = {{sequences_[0], a, &rope_}, {sequences_[1], b, &rope_}};
    if (order_ == Order::kLayers) return harness_->executor().Step(inputs, nullptr, cancel);
    size_t at[] = {0, 0};
    while (at[0] < a.size() || at[1] < b.size()) {
      std::vector<StepInput> step;
      size_t room = static_cast<size_t>(kChunk);
      for (size_t i = 0; i < 2; ++i) {
        const size_t count = std::min(inputs[i].tokens.size() - at[i], room);
        if (count == 0) continue;
        step.push_back(inputs[i]);
        step.back().tokens = inputs[i].tokens.subspan(at[i], count);
        at[i] += count;
        room -= count;
      }
      if (Status s = harness_->executor().Step(step, nullptr, cancel); !s.ok()) return s;
    }
    return OkStatus();
  }

  // Adds the logits behind one token of each.
  Status Decode(std::span<const TokenId> tokens, LogitRows* rows) {
    for (const TokenId& token : tokens) {
      const StepInput inputs[] = {{sequences_[0], {&token, 1}, &rope_, LogitsMode::kAll},
                                  {sequences_[1], {&token, 1}, &rope_, LogitsMode::kAll}};
      Result<std::vector<LogitRows>> step = harness_->Step(inputs);
      if (!step.ok()) return step.status();
      for (LogitRows& of : *step) rows->push_back(std::move(of[0]));
    }
    return OkStatus();
  }

  Result<LogitRows> Whole() {
    const std::vector<TokenId> first = RandomTokens(157, kVocab, 1);
    const std::vector<TokenId> second = RandomTokens(95, kVocab, 2);
    const std::vector<TokenId> more = RandomTokens(64, kVocab, 3);
    LogitRows rows;
    Status status = Read(first, second);
    if (status.ok()) status = Decode(std::span(more).first(7), &rows);
    if (status.ok()) status = Read(second, more);
    if (status.ok()) status = Decode(std::span(more).first(3), &rows);
    if (!status.ok()) return status;
    return rows;
  }

 private:
  Model& model_;
  const Order order_;
  const RopeFrequencies rope_;
  std::unique_ptr<StepHarness> harness_;
  kv::SequenceId sequences_[2] = {};
};

LogitRows RowsOf(Model& model, const HarnessConfig& config, Order order) {
  Life life(model, config, order);
  if (!life.ok()) return {};
  Result<LogitRows> rows = life.Whole();
  EXPECT_TRUE(rows.ok()) << rows.status().message();
  return rows.ok() ? std::move(*rows) : LogitRows();
}

TEST(Stretch, HasTheBitsOfChunks) {
  for (const Named& plan : Plans()) {
    const std::unique_ptr<Model> model = Tiny(Plain());
    const LogitRows expected = RowsOf(*model, plan.config, Order::kChunks);
    ASSERT_FALSE(expected.empty()) << plan.name;
    ExpectSameBits(RowsOf(*model, plan.config, Order::kLayers), expected, plan.name);
  }
}

TEST(Stretch, BringsWeightsOnceForAllChunks) {
  HarnessConfig config = Base();
  config.weight_layers = 0;
  const std::unique_ptr<Model> model = Tiny(Plain());
  // The tiny model's layers have more bytes than anything else that comes up.
  const auto bytes_up = [&](Order order) {
    Life life(*model, config, order);
    if (!life.ok()) return int64_t{0};
    const std::vector<TokenId> tokens = RandomTokens(8 * kChunk, kVocab, 1);
    EXPECT_TRUE(life.Read(tokens, std::span(tokens).first(kChunk)).ok());
    life.harness().lanes().Drain();
    return life.harness().trace().totals(Lane::kHostToDevice).bytes / 2;
  };
  const ModelShape& shape = model->shape();
  const int64_t hidden = int64_t{9} * kChunk * shape.d_model * 4 * (shape.layers - 1);
  const int64_t layers = model->weight_bytes().layer * shape.layers;
  // As many layers as there are buffers come ahead of the step behind.
  EXPECT_LE(bytes_up(Order::kLayers), hidden + 2 * layers);
  EXPECT_GE(bytes_up(Order::kChunks), 9 * layers);
}

TEST(Stretch, NothingIsLeftOfOneThatIsGivenUp) {
  for (const Named& plan : Plans()) {
    const std::unique_ptr<Model> model = Tiny(Plain());
    const LogitRows expected = RowsOf(*model, plan.config, Order::kChunks);
    const std::vector<TokenId> tokens = RandomTokens(150, kVocab, 9);
    for (const int64_t parts : {1, 5, 17}) {
      Life life(*model, plan.config, Order::kLayers);
      ASSERT_TRUE(life.ok());
      const int64_t device = life.harness().store().Usage(Tier::kDevice).slabs;
      std::atomic<bool> cancel = false;
      life.harness().executor().OnPart([&](int64_t done, int64_t) { cancel = done == parts; });
      const Status status = life.Read(tokens, std::span(tokens).first(99), &cancel);
      EXPECT_EQ(status.code(), StatusCode::kCancelled) << plan.name;
      EXPECT_EQ(life.LengthOf(0) + life.LengthOf(1), 0) << plan.name;
      EXPECT_EQ(life.harness().store().Usage(Tier::kDevice).slabs, device) << plan.name;
      life.harness().executor().OnPart(nullptr);
      const Result<LogitRows> rows = life.Whole();
      ASSERT_TRUE(rows.ok()) << plan.name << ": " << rows.status().message();
      ExpectSameBits(*rows, expected, plan.name);
    }
  }
}

TEST(Stretch, RefusesWhatItCannotHold) {
  const std::unique_ptr<Model> model = Tiny(Plain());
  Life life(*model, Base(), Order::kLayers);
  ASSERT_TRUE(life.ok());
  const std::vector<TokenId> tokens = RandomTokens(kStretch, kVocab, 9);
  const Status status = life.Read(tokens, std::span(tokens).first(1));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
  EXPECT_EQ(life.LengthOf(0), 0);
  // Windows would let go of what a stretch that is given up goes back to.
  ModelConfig windows = Plain();
  windows.windows.assign(windows.windows.size(), 30);
  const std::unique_ptr<Model> with_windows = Tiny(windows);
  Life other(*with_windows, Base(), Order::kLayers);
  ASSERT_TRUE(other.ok());
  const Status refused = other.Read(std::span(tokens).first(60), std::span(tokens).first(1));
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << refused.message();
  EXPECT_EQ(other.LengthOf(0), 0);
}

constexpr Lane kLate[] = {Lane::kCompute, Lane::kHostToDevice, Lane::kDeviceToHost};

TEST(Stretch, DelaysNeverChangeABit) {
  for (const Named& plan : Plans()) {
    const std::unique_ptr<Model> model = Tiny(Plain());
    const LogitRows expected = RowsOf(*model, plan.config, Order::kChunks);
    for (const Lane lane : kLate) {
      Delays delays(7);
      delays.Set(lane, /*every=*/8);
      HarnessConfig config = plan.config;
      config.delays = &delays;
      ExpectSameBits(RowsOf(*model, config, Order::kLayers), expected,
                     std::string(plan.name) + ", " + LaneName(lane) + " late");
    }
  }
}

// Each wait of hidden states, left out, changes something when some lane is late.
TEST(Stretch, EveryWaitLeftOutIsSeen) {
#ifdef HEADWAY_SANITIZED
  GTEST_SKIP() << "races on purpose";
#endif
  HarnessConfig base = Base();
  base.threads = 1;
  const std::unique_ptr<Model> model = Tiny(Plain());
  const LogitRows expected = RowsOf(*model, base, Order::kChunks);
  const auto is_hidden = [](const LaneWait& wait) {
    return std::string(wait.file).ends_with("step/hidden_states.cc");
  };
  std::set<int> lines;
  HarnessConfig listening = base;
  Delays slow(7);
  listening.delays = &slow;
  slow.Set(Lane::kDeviceToHost, 1);
  listening.wait_filter = [&](const LaneWait& wait) {
    if (is_hidden(wait)) lines.insert(wait.line);
    return true;
  };
  ExpectSameBits(RowsOf(*model, listening, Order::kLayers), expected, "all waits");
  EXPECT_GE(lines.size(), 3u);
  for (const int line : lines) {
    bool seen = false;
    for (int attempt = 0; attempt < 3 && !seen; ++attempt) {
      for (const Lane lane : kLate) {
        Delays delays(7);
        delays.Set(lane, /*every=*/1, /*least_us=*/300, /*most_us=*/600);
        HarnessConfig config = base;
        config.delays = &delays;
        config.wait_filter = [&](const LaneWait& wait) {
          return !is_hidden(wait) || wait.line != line;
        };
        seen = seen || RowsOf(*model, config, Order::kLayers) != expected;
      }
    }
    EXPECT_TRUE(seen) << "hidden_states.cc:" << line;
  }
}

}  // namespace
}  // namespace headway::testing
