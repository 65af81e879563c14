// A decode that attends to salient tokens, beside a plain reading of HGCA's algorithms 1 and 2:
// masses in double precision from the keys in the cache and the queries of each step. What was
// chosen is told by its bytes.
#ifndef HEADWAY_TESTS_SUPPORT_SALIENCE_DECODE_H_
#define HEADWAY_TESTS_SUPPORT_SALIENCE_DECODE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/cache_reading.h"
#include "support/grid.h"
#include "support/plain_eviction.h"
#include "support/step_harness.h"

namespace headway::testing {

// Tokens of a head from one on.
inline Cached Behind(const Cached& all, int64_t first) {
  Cached rest = all;
  const auto bytes = static_cast<ptrdiff_t>(first) * static_cast<ptrdiff_t>(all.row_bytes);
  rest.k.erase(rest.k.begin(), rest.k.begin() + bytes);
  rest.v.erase(rest.v.begin(), rest.v.begin() + bytes);
  return rest;
}

// One KV head of a sequence.
struct PlainHead {
  std::vector<Bounded> masses;   // [tokens], in even shares
  std::vector<int64_t> salient;  // before the window, ascending
};

// A decode under a configuration, step by step beside the plain reading. Of encoded caches the keys
// are what their codes stand for, and steps that are weighed close no page: what they read is told
// afterwards.
class SalienceDecode {
 public:
  SalienceDecode(Model& model, const HarnessConfig& config, std::span<const TokenId> tokens)
      : model_(model),
        shape_(model.shape()),
        policy_(config.salience),
        page_slots_(config.page_slots),
        tokens_(tokens),
        rope_(RopeOf(model, std::ssize(tokens))) {
    Result<std::unique_ptr<StepHarness>> made =
        StepHarness::Create(model, config, 2, std::ssize(tokens));
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (made.ok()) h_ = std::move(*made);
    heads_.resize(static_cast<size_t>(shape_.layers * shape_.kv_heads));
  }
  bool ok() const { return h_ != nullptr; }

  // Reads the prompt and chooses.
  void Prompt(int64_t length) {
    if (sequence_ < 0) sequence_ = *h_->NewSequence();
    const int64_t there = h_->store().Length(sequence_);
    const auto rest =
        tokens_.subspan(static_cast<size_t>(there), static_cast<size_t>(length - there));
    ASSERT_TRUE(h_->Append(sequence_, rest, rope_).ok());
    ASSERT_TRUE(h_->salience().Choose(sequence_, h_->executor().observed()).ok());
    length_ = length;
    before_ = kv::TokensBefore(policy_, length, page_slots_);
    ForEachHead([&](int layer, int head, PlainHead& plain) {
      plain.salient.clear();
      const Cached keys = ReadHead(*h_, h_->store(), sequence_, layer, head);
      const Queries queries = ReadQueries(*h_, shape_, layer);
      const auto rows = static_cast<int64_t>(queries.q.size()) / Width();
      ASSERT_EQ(rows, std::min(policy_.queries, length));
      plain.masses.assign(static_cast<size_t>(length), {});
      Add(queries, rows, Behind(keys, before_), head, before_, &plain.masses);
      std::vector<Bounded> all(static_cast<size_t>(length));
      Add(queries, rows, keys, head, 0, &all);
      std::copy_n(all.begin(), before_, plain.masses.begin());
      Check(layer, head, 0, kv::MostSalient(policy_, before_), keys, &plain);
    });
  }

  // One token more; its logits are added to rows.
  void Step() {
    Lists& lists = lists_.emplace_back();
    for (int layer = 0; layer < shape_.layers; ++layer) {
      const int64_t window = WindowOf(layer);
      lists.emplace_back();
      for (int head = 0; head < shape_.kv_heads; ++head) {
        std::vector<int64_t> keys = HeadOf(layer, head).salient;
        int64_t first = before_;
        if (window > 0) first = std::max<int64_t>(0, length_ + 1 - window);
        for (int64_t key = first; key <= length_; ++key) keys.push_back(key);
        lists.back().push_back(std::move(keys));
      }
    }
    const StepInput input{sequence_, tokens_.subspan(static_cast<size_t>(length_), 1), &rope_,
                          LogitsMode::kAll};
    Result<std::vector<LogitRows>> step = h_->Step({&input, 1});
    ASSERT_TRUE(step.ok()) << step.status().message();
    rows_.push_back((*step)[0][0]);
    if (after_step) after_step(lists);
    ++length_;
    const int64_t before = kv::TokensBefore(policy_, length_, page_slots_);
    ForEachHead([&](int layer, int head, PlainHead& plain) {
      const Cached keys = ReadHead(*h_, h_->store(), sequence_, layer, head);
      // What leaves the window, by the masses behind the step before.
      const int64_t first = std::exchange(before_, before);
      Check(layer, head, first, kv::MostSalient(policy_, before) - std::ssize(plain.salient), keys,
            &plain);
      before_ = first;
      Queries queries = ReadQueries(*h_, shape_, layer);
      queries.q.erase(queries.q.begin(), queries.q.end() - Width());  // but the last
      queries.position = length_ - 1;
      std::vector<Bounded> masses(static_cast<size_t>(length_));
      Add(queries, 1, Behind(keys, before_), head, before_, &masses);
      plain.masses.resize(static_cast<size_t>(length_));
      const bool weighed = (length_ - 1 - layer) % policy_.every == 0;  // layers take turns
      for (size_t i = static_cast<size_t>(before_); weighed && i < masses.size(); ++i) {
        Bounded& there = plain.masses[i];
        there.value = (1 - policy_.alpha) * there.value + policy_.alpha * masses[i].value;
        there.error = (1 - policy_.alpha) * there.error + policy_.alpha * masses[i].error +
                      4 * kUnit * there.value;
      }
    });
    before_ = before;
  }

  const std::vector<Lists>& lists() const { return lists_; }
  const LogitRows& rows() const { return rows_; }
  int64_t chosen() const {
    int64_t sum = 0;
    for (const PlainHead& head : heads_) sum += std::ssize(head.salient);
    return sum;
  }
  int64_t before() const { return before_; }
  size_t length() const { return static_cast<size_t>(length_); }
  // Of choices that were open: those of all that bounds decide.
  int64_t decided = 0, open = 0;
  // Hears behind a step what each head attended to.
  std::function<void(const Lists& lists)> after_step;
  StepHarness& harness() { return *h_; }
  kv::SequenceId sequence() const { return sequence_; }

 private:
  static constexpr double kUnit = 0x1p-24;

  int64_t Width() const { return int64_t{shape_.query_heads} * shape_.head_dim; }
  int64_t WindowOf(int layer) const {
    const std::vector<int64_t>& windows = model_.config().windows;
    return windows.empty() ? 0 : windows[static_cast<size_t>(layer)];
  }
  PlainHead& HeadOf(int layer, int head) {
    return heads_[static_cast<size_t>(layer * shape_.kv_heads + head)];
  }
  template <typename Visit>
  void ForEachHead(const Visit& visit) {
    for (int layer = 0; layer < shape_.layers; ++layer) {
      for (int head = 0; WindowOf(layer) == 0 && head < shape_.kv_heads; ++head) {
        SCOPED_TRACE("layer " + std::to_string(layer) + " head " + std::to_string(head) +
                     " length " + std::to_string(length_));
        visit(layer, head, HeadOf(layer, head));
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }

  // The mean weights of the queries over `keys`, which begin at `first`, in even shares.
  void Add(const Queries& queries, int64_t rows, const Cached& keys, int head, int64_t first,
           std::vector<Bounded>* masses) const {
    const int group = shape_.group();
    const double share = static_cast<double>(keys.tokens()) / static_cast<double>(rows * group);
    const PageFormat& page = h_->store().format().page;
    for (int64_t row = 0; row < rows; ++row) {
      for (int g = 0; g < group; ++g) {
        const float* const q =
            queries.q.data() + row * Width() + (int64_t{head} * group + g) * shape_.head_dim;
        const std::vector<Bounded> weights =
            WeightsOf(q, keys, queries.position + row + 1 - first, page);
        for (size_t i = 0; i < weights.size(); ++i) {
          Bounded& mass = (*masses)[static_cast<size_t>(first) + i];
          mass.value += share * weights[i].value;
          mass.error += share * (weights[i].error + 4 * kUnit * weights[i].value);
        }
      }
    }
    for (Bounded& mass : *masses) {
      mass.error += static_cast<double>(rows * group + 4) * kUnit * mass.value;
    }
  }

  // What the engine has of a head: what it had, and of the tokens [first, before_) those that their
  // masses say, `most` of them.
  void Check(int layer, int head, int64_t first, int64_t most, const Cached& keys,
             PlainHead* plain) {
    Salience::Chosen* const chosen = h_->salience().Find(sequence_, length_);
    ASSERT_NE(chosen, nullptr);
    ASSERT_EQ(chosen->before, before_);
    const KeyRun run = h_->salience().KeysOf(*chosen, layer, head);
    std::vector<int64_t> list =
        PositionsOf(ReadRuns(*h_, h_->store().format().page, {&run, 1}), keys);
    ASSERT_EQ(std::ssize(list), run.pages.count);
    const auto had = std::ssize(plain->salient);
    ASSERT_GE(std::ssize(list), had);
    ASSERT_TRUE(std::equal(plain->salient.begin(), plain->salient.end(), list.begin()));
    const std::vector<int64_t> fresh(list.begin() + had, list.end());
    ASSERT_LE(std::ssize(fresh), most);
    const bool full = std::ssize(fresh) == most;
    double least = 1e30;  // of those that are chosen
    for (const int64_t key : fresh) {
      const Bounded& mass = plain->masses[static_cast<size_t>(key)];
      ASSERT_GE(key, first);
      ASSERT_LT(key, before_);
      EXPECT_GT(mass.high(), policy_.beta);
      least = std::min(least, mass.high());
    }
    for (int64_t key = first; key < before_; ++key) {
      ++open;
      const Bounded& mass = plain->masses[static_cast<size_t>(key)];
      const bool in = std::binary_search(fresh.begin(), fresh.end(), key);
      const bool above = mass.low() > policy_.beta;
      if (!in) {
        EXPECT_FALSE(above && (!full || mass.low() > least)) << "left out " << key;
      }
      decided += in ? (above ? 1 : 0) : (mass.high() <= policy_.beta || full ? 1 : 0);
    }
    plain->salient = std::move(list);
  }

  Model& model_;
  const ModelShape shape_;
  const kv::SaliencePolicy policy_;
  const int page_slots_;
  const std::span<const TokenId> tokens_;
  const RopeFrequencies rope_;
  std::unique_ptr<StepHarness> h_;
  kv::SequenceId sequence_ = -1;
  int64_t length_ = 0;
  int64_t before_ = 0;
  std::vector<PlainHead> heads_;  // [layers, kv_heads]
  std::vector<Lists> lists_;      // of each step
  LogitRows rows_;                // the same
};

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_SALIENCE_DECODE_H_
