#include "kernels/cpu/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/attention_testing.h"

namespace headway {
namespace {

// Bit for bit, also what must not have been written: the gaps between rows are still poisoned.
void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b,
                    const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_TRUE(a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) << what;
}

void ExpectSameBits(const AttentionOutputs& a, const AttentionOutputs& b, const std::string& what) {
  ExpectSameBits(a.o, b.o, what + " o");
  ExpectSameBits(a.lse, b.lse, what + " lse");
  ExpectSameBits(a.mass, b.mass, what + " mass");
}

void ExpectDefinition(const AttentionCase& c, uint64_t seed, Random& random) {
  AttentionProblem problem(c, random);
  const AttentionOutputs before = problem.outputs;
  for (const NamedCode& code : AllCodes()) {
    const std::string what = "seed " + std::to_string(seed) + " " + c.Name() + " " + code.name;
    problem.outputs = before;
    const AttentionOutputs expected = problem.Expected(QueriesOf(code, c, problem.q));
    const AttentionItem item = problem.Item();
    RunOn(code, 1, c, {&item, 1});
    const AttentionOutputs actual = problem.outputs;
    ASSERT_EQ("", problem.Disagreement(PrecisionOf(TilesOf(code, c)), expected, actual)) << what;
    for (int threads : {2, 3}) {
      problem.outputs = before;
      const AttentionItem again = problem.Item();
      RunOn(code, threads, c, {&again, 1});
      ExpectSameBits(actual, problem.outputs, what + " threads " + std::to_string(threads));
    }
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(CpuAttention, EqualsTheDefinitionOnRandomShapes) {
  for (uint64_t seed = 1; seed <= 500 && !HasFatalFailure(); ++seed) {
    Random random(seed);
    ExpectDefinition(RandomAttentionCase(random), seed, random);
  }
}

TEST(CpuAttention, EqualsTheDefinitionInDecode) {
  for (uint64_t seed = 1; seed <= 300 && !HasFatalFailure(); ++seed) {
    Random random(seed);
    ExpectDefinition(RandomDecodeCase(random), seed, random);
  }
}

AttentionCase PlainCase(DType dtype, int head_dim, int group, int64_t tokens, int64_t count) {
  AttentionCase c;
  c.format = {dtype, 8, head_dim};
  c.group = group;
  c.params.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  c.tokens = tokens;
  c.count = count;
  c.q_position = count - tokens;
  return c;
}

// Another item in the call, other pages, more threads: not a bit changes. Pages of 64 slots are
// read in place by tiles, or, from the fifth slot on, in part.
TEST(CpuAttention, DependsOnTheItemAlone) {
  for (const NamedCode& code : AllCodes()) {
    struct Shape {
      int64_t tokens;
      int slots, group;
    };
    for (const auto& [tokens, slots, group] :
         {Shape{1, 64, 2}, Shape{1, 8, 2}, Shape{1, 64, 12}, Shape{1, 8, 12}, Shape{3, 8, 2},
          Shape{3, 64, 4}, Shape{3, 8, 4}, Shape{7, 64, 4}, Shape{7, 8, 4}, Shape{40, 8, 2},
          Shape{200, 8, 2}}) {
      Random random(static_cast<uint64_t>(tokens));
      AttentionCase c = PlainCase(DType::kBF16, 64, group, tokens, 300);
      c.format.page_slots = slots;
      AttentionProblem alone(c, random);
      const AttentionItem item = alone.Item();
      RunOn(code, 1, c, {&item, 1});

      c.first_slot = 5;
      AttentionProblem moved(c, random);
      moved.q = alone.q;
      for (int64_t key = 0; key < c.count; ++key) {
        for (int64_t i = 0; i < c.format.head_dim; ++i) {
          moved.kv.SetK(0, key, i, alone.kv.K(0, key, i));
          moved.kv.SetV(0, key, i, alone.kv.V(0, key, i));
        }
      }
      AttentionCase of_other = PlainCase(DType::kBF16, 64, group, 77, 100);
      of_other.format = c.format;
      AttentionProblem other(of_other, random);
      const std::vector<AttentionItem> items = {other.Item(), moved.Item()};
      RunOn(code, 3, c, items);
      ExpectSameBits(alone.outputs.o, moved.outputs.o, code.name + " o");
      ExpectSameBits(alone.outputs.lse, moved.outputs.lse, code.name + " lse");
    }
  }
}

// Attention over any partition of the keys, merged, is attention over all of them.
TEST(CpuAttention, PartsMergeToTheWhole) {
  for (const NamedCode& code : AllCodes()) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      Random random(seed);
      const int64_t tokens = Pick<int64_t>(random, {1, 2, 60});
      const int group = seed % 2 == 0 ? 3 : 12;
      const AttentionCase c = PlainCase(DType::kBF16, 64, group, tokens, 1 + random.Below(400));
      AttentionProblem whole(c, random);
      const AttentionItem item = whole.Item();
      RunOn(code, 1, c, {&item, 1});
      const std::string what = "seed " + std::to_string(seed) + " " + c.Name() + " " + code.name;
      const AttentionOutputs expected = whole.outputs;

      // Ends of the parts; some parts are empty.
      std::vector<int64_t> ends = {0, c.count};
      for (int64_t i = random.Below(6); i > 0; --i) ends.push_back(random.Below(c.count + 1));
      std::sort(ends.begin(), ends.end());
      const int parts = static_cast<int>(ends.size()) - 1;
      const int64_t rows = c.tokens * c.group;
      std::vector<float> part_o(static_cast<size_t>(parts * rows * c.format.head_dim), kPoison);
      std::vector<float> part_lse(static_cast<size_t>(parts * rows), kPoison);
      std::vector<AttentionItem> items;
      AttentionOutputs merged = whole.outputs;
      for (int i = 0; i < parts; ++i) {
        const size_t at = static_cast<size_t>(i);
        AttentionItem part = item;
        part.keys.pages = whole.kv.Run(ends[at], ends[at + 1]);
        part.keys.position = c.key_position + ends[at];
        part.o = part_o.data() + i * rows * c.format.head_dim;
        part.o_stride = c.group * c.format.head_dim;
        part.lse = part_lse.data() + i * rows;
        part.lse_stride = c.group;
        items.push_back(part);
        // The same into one state, part after part.
        part.o = merged.o.data();
        part.o_stride = whole.o_stride;
        part.lse = merged.lse.data();
        part.lse_stride = whole.lse_stride;
        part.merge = i > 0;
        RunOn(code, 2, c, {&part, 1});
      }
      RunOn(code, 2, c, items);
      std::vector<float> o(static_cast<size_t>(rows * c.format.head_dim), kPoison);
      std::vector<float> lse(static_cast<size_t>(rows), kPoison);
      const MergeItem merge = {.part_o = part_o.data(),
                               .o_part_stride = rows * c.format.head_dim,
                               .part_lse = part_lse.data(),
                               .lse_part_stride = rows,
                               .parts = parts,
                               .rows = rows,
                               .o = o.data(),
                               .lse = lse.data()};
      ThreadPool pool(2);
      cpu::Merge(pool, c.format.head_dim, {&merge, 1});

      AttentionOutputs actual = expected;
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t t = row / c.group;
        const int64_t h = row % c.group;
        for (int64_t i = 0; i < c.format.head_dim; ++i) {
          actual.o[static_cast<size_t>(t * whole.o_stride + h * c.format.head_dim + i)] =
              o[static_cast<size_t>(row * c.format.head_dim + i)];
        }
        actual.lse[static_cast<size_t>(t * whole.lse_stride + h)] = lse[static_cast<size_t>(row)];
      }
      // Both sides round weights on tiles.
      const AttentionPrecision precision = PrecisionOf(TilesOf(code, c));
      ASSERT_EQ("", whole.Disagreement(precision, expected, actual)) << what << " at once";
      ASSERT_EQ("", whole.Disagreement(precision, expected, merged)) << what;
    }
  }
}

TEST(CpuAttention, NanAndInfinityComeOut) {
  for (const NamedCode& code : AllCodes()) {
    for (int64_t tokens : {1, 40}) {
      Random random(7);
      const AttentionCase c = PlainCase(DType::kBF16, 64, 1, tokens, 40 + tokens);
      AttentionProblem problem(c, random);
      // The last token's key: only its own query sees it.
      problem.kv.SetK(0, c.count - 1, 3, kPoison);
      const AttentionItem item = problem.Item();
      RunOn(code, 1, c, {&item, 1});
      for (int64_t t = 0; t < tokens; ++t) {
        const bool last = t == tokens - 1;
        const std::string what = code.name + " token " + std::to_string(t);
        EXPECT_EQ(last,
                  std::isnan(problem.outputs.lse[static_cast<size_t>(t * problem.lse_stride)]))
            << what;
        EXPECT_EQ(last,
                  std::isnan(problem.outputs.o[static_cast<size_t>(t * problem.o_stride + 5)]))
            << what;
      }
    }
  }
}

TEST(CpuAttention, LargeLogitsDoNotOverflow) {
  for (const NamedCode& code : AllCodes()) {
    for (int64_t tokens : {1, 40}) {
      Random random(8);
      AttentionCase c = PlainCase(DType::kBF16, 64, 1, tokens, 200);
      c.q_position = c.count;
      c.params.scale = 1e4f;
      AttentionProblem problem(c, random);
      const AttentionItem item = problem.Item();
      RunOn(code, 1, c, {&item, 1});
      for (int64_t t = 0; t < tokens; ++t) {
        // One key takes all: the output is its value, to bf16 with the rounding of weights.
        double best = -std::numeric_limits<double>::infinity();
        int64_t best_key = 0;
        for (int64_t key = 0; key < c.count; ++key) {
          double logit = 0;
          for (int64_t i = 0; i < 64; ++i) {
            logit += problem.q[static_cast<size_t>(t * problem.q_stride + i)] *
                     double{problem.kv.K(0, key, i)};
          }
          if (logit > best) best_key = key;
          best = std::max(best, logit);
        }
        EXPECT_NEAR(best * c.params.scale,
                    problem.outputs.lse[static_cast<size_t>(t * problem.lse_stride)],
                    best * c.params.scale * 0x1p-8)
            << code.name;
        EXPECT_NEAR(problem.kv.V(0, best_key, 9),
                    problem.outputs.o[static_cast<size_t>(t * problem.o_stride + 9)], 1e-4)
            << code.name << " token " << t;
      }
    }
  }
}

}  // namespace
}  // namespace headway
