// Texts that are hard on selection: one key that matters among many that do not, attention that is
// spread evenly, and lists of another subject.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "kernels/ref/ref_selection.h"

namespace headway {
namespace {

constexpr int kDim = 64, kSlots = 16;
constexpr int64_t kBlocks = 256;
constexpr float kScale = 0.125f;
constexpr PageFormat kFormat = {.dtype = DType::kF32, .page_slots = kSlots, .head_dim = kDim};

// One head of normal keys, a block a page. Logits of normal queries are normal.
struct Text {
  explicit Text(Random& random) : keys(kBlocks * kSlots * kDim), q(kDim), other(kDim) {
    for (float& x : keys) x = random.Normal();
    for (float& x : q) x = random.Normal();
    for (float& x : other) x = random.Normal();
  }
  // Adds `logit` to that of a slot of a block for `query`, and takes `hidden` of it from the
  // others'.
  void Plant(int64_t block, int64_t slot, float logit, float hidden,
             const std::vector<float>& query) {
    const float square = std::inner_product(query.begin(), query.end(), query.begin(), 0.0f);
    for (int64_t i = 0; i < kSlots; ++i) {
      const float part = i == slot ? logit : -hidden / (kSlots - 1);
      float* const key = keys.data() + (block * kSlots + i) * kDim;
      for (size_t c = 0; c < kDim; ++c) key[c] += part / (kScale * square) * query[c];
    }
  }
  // What is listed for `query`; `candidates` are made, or chosen among if `listed` says so.
  std::vector<int32_t> List(const SummaryFormat& summary, const std::vector<float>& query,
                            const SelectionBudget& budget,
                            std::vector<int32_t>* candidates = nullptr, bool listed = false) {
    const int64_t codes = kBlocks * summary.code_bytes(kDim);
    const int64_t scales = kBlocks * SummaryFormat::scale_bytes();
    std::vector<std::byte> memory(
        static_cast<size_t>(codes + scales + kBlocks * summary.sketch_bytes(kDim)));
    SummarizeItem of;
    of.keys.k = reinterpret_cast<std::byte*>(keys.data());
    of.keys.page_stride = kSlots * kDim * sizeof(float);
    of.keys.count = kBlocks * kSlots;
    of.codes = memory.data();
    of.scales = reinterpret_cast<float*>(memory.data() + codes);
    of.sketch = memory.data() + codes + scales;
    ref::Summarize(kFormat, summary, {&of, 1});
    const SegmentPlace place = {reinterpret_cast<const std::byte*>(keys.data()), memory.data(),
                                of.sketch};
    std::vector<int32_t> list(kBlocks);
    int32_t count = 0;
    SelectItem item = {.q = query.data(),
                       .keys = {.segments = {&place, 1},
                                .heads = 1,
                                .blocks = kBlocks,
                                .segment_blocks = kBlocks,
                                .page_stride = of.keys.page_stride,
                                .scales_offset = codes},
                       .budget = budget,
                       .blocks = list.data(),
                       .capacity = kBlocks,
                       .counts = &count};
    int32_t candidate_count = 0;
    if (candidates != nullptr) {
      candidate_count = static_cast<int32_t>(candidates->size());
      candidates->resize(kBlocks);
      item.candidates = {candidates->data(), kBlocks, &candidate_count};
      item.candidates_listed = listed;
    }
    ref::SelectBlocks(kFormat, summary, 1, kScale, {&item, 1});
    if (candidates != nullptr) candidates->resize(static_cast<size_t>(candidate_count));
    list.resize(static_cast<size_t>(count));
    return list;
  }

  std::vector<float> keys, q, other;
};

bool Has(const std::vector<int32_t>& list, int64_t block) {
  return std::binary_search(list.begin(), list.end(), static_cast<int32_t>(block));
}

constexpr SelectionBudget kSixteenth = {
    .far_begin = 0, .far_end = kBlocks, .far_blocks = kBlocks / 16};

// In how many of 100 texts a key is found that has most of the attention.
int Found(const SummaryFormat& summary, const SelectionBudget& budget, float logit, float hidden) {
  int found = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Random random(seed);
    Text text(random);
    const int64_t block = random.Below(kBlocks);
    text.Plant(block, random.Below(kSlots), logit, hidden, text.q);
    std::vector<int32_t> candidates;
    found += Has(text.List(summary, text.q, budget, &candidates), block) ? 1 : 0;
  }
  return found;
}

TEST(SelectionNeedleTest, OneKeyIsFoundAmongMany) {
  for (const SummaryKind kind : {SummaryKind::kMoments, SummaryKind::kBoxes}) {
    EXPECT_GE(Found({kind, kSlots}, kSixteenth, 10.0f, 0.0f), 90);
  }
}

// The means of its block are those of the others: what the key adds, the other keys lack. Boxes
// show it all the same, variances sometimes, two bits of each key twice as often (chance: 6).
TEST(SelectionNeedleTest, ABlockOfAverageScoreMayHideAKey) {
  EXPECT_GE(Found({SummaryKind::kBoxes, kSlots}, kSixteenth, 14.0f, 14.0f), 95);
  const int once = Found({SummaryKind::kMoments, kSlots}, kSixteenth, 14.0f, 14.0f);
  EXPECT_GE(once, 25);
  SelectionBudget twice = kSixteenth;
  twice.candidates = 4 * twice.far_blocks;
  EXPECT_GE(Found({SummaryKind::kMoments, kSlots, SketchKind::kTwoBits}, twice, 14.0f, 14.0f),
            2 * once);
}

// All keys have the same attention: of equals the first ones are listed, and not more than asked.
TEST(SelectionNeedleTest, EvenAttentionListsWhatItIsAskedFor) {
  Random random(1);
  Text text(random);
  const std::vector<float> zero(kDim, 0.0f);
  std::vector<int32_t> first(static_cast<size_t>(kSixteenth.far_blocks));
  std::iota(first.begin(), first.end(), 0);
  SelectionBudget half = kSixteenth;
  half.far_blocks = kBlocks - 1;
  half.top_p = 1u << (kTopPBits - 1);
  half.least_blocks = 1;
  for (const SummaryKind kind : {SummaryKind::kMoments, SummaryKind::kBoxes, SummaryKind::kPairs}) {
    EXPECT_EQ(text.List({kind, kSlots}, zero, kSixteenth), first);
    EXPECT_EQ(text.List({kind, kSlots}, zero, half).size(), size_t{kBlocks / 2});
  }
}

// Behind a sudden change of subject, candidates of the one before miss what matters now, and those
// that are listed anew have it.
TEST(SelectionNeedleTest, CandidatesOfAnotherSubjectMissTheKey) {
  SelectionBudget twice = kSixteenth;
  twice.far_blocks = 4;
  twice.candidates = 32;
  const SummaryFormat summary = {SummaryKind::kMoments, kSlots};
  int anew = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Random random(seed);
    Text text(random);
    std::vector<int32_t> candidates;
    text.List(summary, text.other, twice, &candidates);
    ASSERT_EQ(candidates.size(), 32u);
    int64_t block = random.Below(kBlocks);
    while (Has(candidates, block)) block = random.Below(kBlocks);
    text.Plant(block, random.Below(kSlots), 12.0f, 0.0f, text.q);
    EXPECT_FALSE(Has(text.List(summary, text.q, twice, &candidates, true), block));
    anew += Has(text.List(summary, text.q, twice, &candidates), block) ? 1 : 0;
  }
  EXPECT_GE(anew, 90);
}

}  // namespace
}  // namespace headway
