// What KVzip keeps, against a plain reading: prompts and what repeats them are read once more, the
// largest weights are taken in double precision, and the best of all heads are those that are kept.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/reconstruction.h"
#include "support/cache_reading.h"
#include "support/golden.h"
#include "support/grid.h"
#include "support/plain_eviction.h"
#include "support/step_harness.h"

namespace headway::testing {
namespace {

using Scores = std::vector<std::vector<double>>;  // [layers * KV heads][tokens]

kv::EvictionPolicy Policy() {
  kv::EvictionPolicy policy;
  policy.method = kv::EvictionMethod::kZip;
  policy.budget = 40;
  policy.window = policy.pool = 1;
  policy.sink = 3;
  policy.repeat = 29;
  return policy;
}

// The keys of a sequence at these positions, then those from `behind` on.
Cached Part(const Cached& all, int64_t begin, int64_t end, int64_t behind) {
  Cached part;
  part.row_bytes = all.row_bytes;
  for (const auto& [from, to] : {std::pair(begin, end), std::pair(behind, all.tokens())}) {
    const auto first = all.k.begin() + from * static_cast<int64_t>(all.row_bytes);
    part.k.insert(part.k.end(), first, first + (to - from) * static_cast<int64_t>(all.row_bytes));
  }
  return part;
}

// A prompt that is repeated, kept, and read again plainly.
class Zip {
 public:
  Zip(Model& model, const HarnessConfig& cut, std::vector<TokenId> prompt)
      : model_(model), shape_(model.shape()), prompt_(std::move(prompt)) {
    HarnessConfig config = cut;
    config.eviction = Policy();
    Result<std::unique_ptr<StepHarness>> made =
        StepHarness::Create(model, config, 2, std::ssize(prompt_));
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (made.ok()) h_ = std::move(*made);
  }
  bool ok() const { return h_ != nullptr; }

  // The positions that each head keeps [layers * KV heads].
  std::vector<std::vector<int64_t>> Keep() {
    const RopeFrequencies rope = RopeOf(model_, std::ssize(prompt_));
    const kv::SequenceId sequence = *h_->NewSequence();
    EXPECT_TRUE(h_->Append(sequence, prompt_, rope).ok());
    Reconstruction reconstruction(h_->executor(), h_->store(), h_->evictor(), words_);
    EXPECT_TRUE(reconstruction.Repeat(sequence, prompt_, rope, nullptr).ok());
    EXPECT_EQ(h_->store().Length(sequence), std::ssize(prompt_));
    const Result<kv::SequenceId> kept = h_->evictor().Evict(sequence);
    EXPECT_TRUE(kept.ok()) << kept.status().message();
    std::vector<std::vector<int64_t>> lists;
    for (int at = 0; kept.ok() && at < shape_.layers * shape_.kv_heads; ++at) {
      const int layer = at / shape_.kv_heads, head = at % shape_.kv_heads;
      lists.push_back(PositionsOf(ReadHead(*h_, h_->kept_store(), *kept, layer, head),
                                  ReadHead(*h_, h_->store(), sequence, layer, head)));
    }
    return lists;
  }
  const std::vector<int64_t>& budgets() const { return h_->evictor().budgets(); }

  Scores Plain() {
    Scores scores(static_cast<size_t>(shape_.layers * shape_.kv_heads));
    for (int64_t begin = 0; begin < std::ssize(prompt_); begin += Policy().repeat) {
      AddChunk(begin, std::min(std::ssize(prompt_), begin + Policy().repeat), &scores);
    }
    return scores;
  }

 private:
  // The prompt and what repeats a chunk of it, in one step of a cache whose queries are observed.
  void AddChunk(int64_t begin, int64_t end, Scores* scores) {
    std::vector<TokenId> text = prompt_;
    const auto add = [&text](std::span<const TokenId> tokens) {
      text.insert(text.end(), tokens.begin(), tokens.end());
    };
    const std::span<const TokenId> prompt = prompt_;
    add(begin == 0 ? words_.first : words_.next);
    if (begin > 0) add(prompt.subspan(static_cast<size_t>(begin) - 8, 8));
    add(words_.behind);
    add(prompt.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    HarnessConfig config;
    config.chunk = 500;
    config.eviction = Policy();
    Result<std::unique_ptr<StepHarness>> h = StepHarness::Create(model_, config, 1, 200);
    ASSERT_TRUE(h.ok()) << h.status().message();
    const kv::SequenceId sequence = *(*h)->NewSequence();
    ASSERT_TRUE((*h)->Append(sequence, text, RopeOf(model_, std::ssize(prompt_))).ok());
    for (int layer = 0; layer < shape_.layers; ++layer) {
      const Queries queries = ReadQueries(**h, shape_, layer);
      ASSERT_EQ(queries.position, 0);
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const Cached keys = Part(ReadHead(**h, (*h)->store(), sequence, layer, head), begin, end,
                                 std::ssize(prompt_));
        const std::vector<double> most =
            Largest(queries, keys, head, end - begin, (*h)->store().format().page);
        std::vector<double>& all = (*scores)[static_cast<size_t>(layer * shape_.kv_heads + head)];
        all.insert(all.end(), most.begin(), most.end());
      }
    }
  }

  std::vector<double> Largest(const Queries& queries, const Cached& keys, int head, int64_t chunk,
                              const PageFormat& page) const {
    std::vector<double> most(static_cast<size_t>(chunk), 0.0);
    const int64_t width = int64_t{shape_.query_heads} * shape_.head_dim;
    for (int64_t behind = 0; behind < keys.tokens() - chunk; ++behind) {
      for (int g = 0; g < shape_.group(); ++g) {
        const float* const q = queries.q.data() + (std::ssize(prompt_) + behind) * width +
                               (head * shape_.group() + g) * shape_.head_dim;
        const std::vector<Bounded> weights = WeightsOf(q, keys, chunk + behind + 1, page);
        for (size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], weights[i].value);
      }
    }
    return most;
  }

  Model& model_;
  const ModelShape shape_;
  const std::vector<TokenId> prompt_;
  const RepeatPrompt words_ = {{7, 3, 11, 5}, {2, 9}, {4, 6}};
  std::unique_ptr<StepHarness> h_;
};

// Scores of what a head has behind the first tokens, the best first.
std::vector<double> Sorted(const std::vector<double>& scores, int64_t end) {
  std::vector<double> sorted(scores.begin() + Policy().sink, scores.begin() + end);
  std::sort(sorted.rbegin(), sorted.rend());
  return sorted;
}

void ExpectTheBest(const std::vector<std::vector<int64_t>>& lists,
                   const std::vector<int64_t>& budgets, const Scores& scores, int slots) {
  const auto tokens = std::ssize(scores[0]);
  const int64_t end = std::min(tokens - 1, tokens / slots * slots);
  const int64_t anyway = tokens - end + Policy().sink;
  // Reading the prompt in other chunks changes weights by less.
  constexpr double kOff = 1e-3;
  double worst_kept = 1.0, best_dropped = 0.0;
  int64_t total = 0;
  for (size_t head = 0; head < lists.size(); ++head) {
    SCOPED_TRACE("head " + std::to_string(head));
    total += budgets[head];
    std::vector<bool> kept(static_cast<size_t>(tokens), false);
    for (const int64_t at : lists[head]) kept[static_cast<size_t>(at)] = true;
    double worst = 1.0, best = 0.0;  // of this head, whose pages are filled
    for (int64_t at = 0; at < tokens; ++at) {
      const bool must = at < Policy().sink || at >= end;
      const double score = scores[head][static_cast<size_t>(at)];
      EXPECT_TRUE(!must || kept[static_cast<size_t>(at)]) << at;
      if (must) continue;
      double& bound = kept[static_cast<size_t>(at)] ? worst : best;
      bound = kept[static_cast<size_t>(at)] ? std::min(bound, score) : std::max(bound, score);
    }
    EXPECT_GE(worst * (1.0 + kOff), best);
    const std::vector<double> sorted = Sorted(scores[head], end);
    const auto count = static_cast<size_t>(budgets[head] - anyway);
    if (count > 0) worst_kept = std::min(worst_kept, sorted[count - 1]);
    if (count < sorted.size()) best_dropped = std::max(best_dropped, sorted[count]);
  }
  EXPECT_GE(worst_kept * (1.0 + kOff), best_dropped);
  EXPECT_EQ(total, std::ssize(lists) * Policy().budget);
}

class EngineKvzip : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Models, EngineKvzip, ::testing::Values("llama31", "qwen3", "neox"));

TEST_P(EngineKvzip, KeepsTheBestOfAllHeads) {
  Result<Golden> golden = LoadGolden(*Env::Default(), GetParam());
  ASSERT_TRUE(golden.ok()) << golden.status().message();
  Result<std::unique_ptr<Model>> model = Model::Load(Env::Default(), golden->folder);
  ASSERT_TRUE(model.ok()) << model.status().message();
  std::vector<HarnessConfig> cuts(3);
  cuts[0].chunk = 300;  // what repeats a chunk comes in one step
  cuts[1].chunk = 37;   // in two
  cuts[1].placement = kv::PlacementKind::kHostOnly;
  cuts[1].device_slabs = 0;
  cuts[1].poison_freed = true;
  cuts[2].chunk = 5;  // in many, the first of which may have tokens of the prompt alone
  cuts[2].page_slots = 32;
  cuts[2].segment_pages = 1;
  for (const HarnessConfig& cut : cuts) {
    SCOPED_TRACE("chunk " + std::to_string(cut.chunk));
    Zip zip(**model, cut, golden->prompt);
    ASSERT_TRUE(zip.ok());
    const std::vector<std::vector<int64_t>> lists = zip.Keep();
    ASSERT_FALSE(HasFailure());
    ExpectTheBest(lists, zip.budgets(), zip.Plain(), cut.page_slots);
    ASSERT_FALSE(HasFailure());
    // Heads keep different numbers.
    EXPECT_NE(*std::min_element(zip.budgets().begin(), zip.budgets().end()),
              *std::max_element(zip.budgets().begin(), zip.budgets().end()));
  }
}

}  // namespace
}  // namespace headway::testing
