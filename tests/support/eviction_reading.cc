#include "support/eviction_reading.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "base/half.h"
#include "support/forwarding_kernels.h"
#include "support/grid.h"

namespace headway::testing {

using kv::EvictionPolicy;

namespace {

// Notes the queries of one sequence as they are before or behind their rotation, layer by layer.
class NotingKernels : public ForwardingKernels {
 public:
  NotingKernels(std::unique_ptr<Kernels> kernels, DType activation, bool rotated,
                std::vector<Queries>* noted)
      : ForwardingKernels(std::move(kernels)),
        activation_(activation),
        rotated_(rotated),
        noted_(*noted) {}

  void RopeStoreKv(Stream& stream, const PageFormat& format,
                   std::span<const RopeStoreItem> items) override {
    if (rotated_) ForwardingKernels::RopeStoreKv(stream, format, items);
    EXPECT_TRUE(stream.Synchronize().ok());
    Queries& queries = noted_[layer_++ % noted_.size()];
    for (int64_t token = 0; token < items[0].kv.to.count; ++token) {
      for (const RopeStoreItem& item : items) {
        const auto count = static_cast<size_t>(item.query_heads * format.head_dim);
        const size_t element = DTypeBytes(activation_);
        std::vector<std::byte> row(count * element);
        stream.Copy(row.data(),
                    static_cast<const std::byte*>(item.q) +
                        token * item.q_stride * static_cast<int64_t>(element),
                    row.size());
        EXPECT_TRUE(stream.Synchronize().ok());
        for (size_t i = 0; i < count; ++i) {
          queries.q.push_back(LoadAsFloat(row.data(), static_cast<int64_t>(i), activation_));
        }
      }
    }
    if (!rotated_) ForwardingKernels::RopeStoreKv(stream, format, items);
  }

 private:
  const DType activation_;
  const bool rotated_;
  std::vector<Queries>& noted_;
  size_t layer_ = 0;
};

}  // namespace

Reading::Reading(Model& model, const Model& plain, const HarnessConfig& config, int64_t length)
    : plain_(plain), shape_(model.shape()), policy_(config.eviction), rope_(RopeOf(model, length)) {
  HarnessConfig noting = config;
  if (policy_.scores() && !policy_.observes()) {
    noted_.resize(static_cast<size_t>(shape_.layers));
    noting.wrap_kernels = [this](std::unique_ptr<Kernels> kernels) {
      const DType activation = kernels->ActivationDType(shape_.dtype);
      return std::make_unique<NotingKernels>(std::move(kernels), activation, policy_.adds_up(),
                                             &noted_);
    };
  }
  Result<std::unique_ptr<StepHarness>> made = StepHarness::Create(model, noting, 2, length);
  EXPECT_TRUE(made.ok()) << made.status().message();
  if (made.ok()) h_ = std::move(*made);
}

Queries Reading::QueriesOf(int layer) {
  if (policy_.observes()) return ReadQueries(*h_, shape_, layer);
  return std::move(noted_[static_cast<size_t>(layer)]);
}

kv::SequenceId Reading::Evict(const std::vector<TokenId>& tokens, Prompt* prompt) {
  prompt->tokens = tokens;
  for (Queries& queries : noted_) queries = {};
  const kv::SequenceId sequence = *h_->NewSequence();
  EXPECT_TRUE(h_->Append(sequence, tokens, rope_).ok());
  // Before anything here waits for the prompt's pages. The prompt stays as it is.
  const Result<kv::SequenceId> kept = h_->evictor().Evict(sequence);
  EXPECT_TRUE(kept.ok()) << kept.status().message();
  for (int layer = 0; layer < shape_.layers; ++layer) {
    prompt->heads.emplace_back();
    for (int head = 0; head < shape_.kv_heads; ++head) {
      prompt->heads.back().push_back(ReadHead(*h_, h_->store(), sequence, layer, head));
    }
    if (policy_.scores()) prompt->queries.push_back(QueriesOf(layer));
  }
  h_->store().Drop(sequence);
  return kept.ok() ? *kept : -1;
}

Lists Reading::Check(kv::SequenceId kept, const Prompt& prompt) {
  Lists lists;
  for (int layer = 0; layer < shape_.layers; ++layer) {
    lists.emplace_back();
    for (int head = 0; head < shape_.kv_heads; ++head) {
      const Cached& all = prompt.heads[static_cast<size_t>(layer)][static_cast<size_t>(head)];
      lists.back().push_back(PositionsOf(ReadHead(*h_, h_->kept_store(), kept, layer, head), all));
    }
    CheckLayer(layer, prompt, lists.back());
  }
  return lists;
}

void Reading::CheckLayer(int layer, const Prompt& prompt,
                         const std::vector<std::vector<int64_t>>& lists) {
  const PageFormat& page = h_->store().format().page;
  const auto tokens = std::ssize(prompt.tokens);
  const auto heads = lists.size();
  std::vector<EvictionParts> parts_of;
  for (size_t head = 0; head < heads; ++head) {
    const int at = layer * shape_.kv_heads + static_cast<int>(head);
    const int64_t budget = PlainHeadBudget(policy_, shape_.kv_heads, at, tokens);
    parts_of.emplace_back(policy_, tokens, budget, page.page_slots);
  }
  const int64_t budget = PlainLayerBudget(policy_, layer, tokens);
  std::vector<std::vector<Bounded>> scores;
  PlainLayer plain = {.policy = policy_,
                      .shape = shape_,
                      .page = page,
                      .rope = rope_,
                      .projection = plain_.OutputProjection(layer, nullptr),
                      .heads = prompt.heads[static_cast<size_t>(layer)]};
  if (policy_.scores()) {
    plain.queries = &prompt.queries[static_cast<size_t>(layer)];
    const int64_t width = int64_t{shape_.query_heads} * shape_.head_dim;
    const int64_t rows = std::ssize(plain.queries->q) / width;
    ASSERT_EQ(rows, policy_.observes() ? policy_.window : tokens);
    ASSERT_EQ(plain.queries->position, tokens - rows);
    scores = PlainScores(plain, parts_of[0].free);
  }
  const int64_t sink = policy_.scores() ? 0 : std::min(policy_.sink, parts_of[0].candidates);
  std::vector<std::pair<int64_t, int64_t>> counts;
  for (const EvictionParts& parts : parts_of) {
    counts.emplace_back(std::max(parts.free, sink), std::max(parts.free, sink));
  }
  if (policy_.uneven()) {
    const EvictionParts& parts = parts_of[0];
    const bool safe = policy_.method != kv::EvictionMethod::kDefensive;
    const auto share = static_cast<int64_t>(policy_.safeguard * static_cast<double>(budget));
    const int64_t anyway = tokens - parts.candidates;
    counts =
        SharedCounts(scores, parts, safe ? std::clamp<int64_t>(share - anyway, 0, parts.free) : 0);
  }
  for (size_t head = 0; head < heads; ++head) {
    SCOPED_TRACE("layer " + std::to_string(layer) + " head " + std::to_string(head));
    const std::vector<int64_t>& list = lists[head];
    const EvictionParts& parts = parts_of[head];
    const int64_t chosen = std::ssize(list) - (tokens - parts.candidates);
    ASSERT_GE(chosen, parts.Filled(counts[head].first, page.page_slots));
    ASSERT_LE(chosen, parts.Filled(counts[head].second, page.page_slots));
    // The window and the tail, whole; a stream has the tokens before, too.
    const int64_t anyway = tokens - parts.candidates + (policy_.scores() ? 0 : chosen - sink);
    for (int64_t i = 0; i < anyway; ++i) ASSERT_EQ(list[list.size() - 1 - i], tokens - 1 - i);
    for (int64_t i = 0; i < sink; ++i) ASSERT_EQ(list[static_cast<size_t>(i)], i);
    if (!policy_.scores() || chosen == parts.candidates) continue;
    bool sure = false;
    const std::vector<int64_t> best(list.begin(), list.begin() + chosen);
    if (policy_.critical()) {
      // Half of the list, in which there is what is kept anyway.
      const int64_t first =
          std::max<int64_t>(0, std::ssize(list) / 2 - (tokens - parts.candidates));
      const std::vector<Bounded> last = PlainLastScores(plain, head, scores[head]);
      EXPECT_TRUE(AreCriticalBest(best, scores[head], last, {parts.candidates, first}, &sure));
    } else {
      EXPECT_TRUE(AreBest(best, scores[head], parts.candidates, &sure));
    }
    ++choices;
    decided += sure ? 1 : 0;
  }
}

}  // namespace headway::testing
