#include "kernels/cpu/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/attention_testing.h"
#include "kernels/ref/ref_attention.h"

namespace headway {
namespace {

constexpr float kNoKeys = -std::numeric_limits<float>::infinity();
constexpr double kUnit = 0x1p-24;  // rounding to f32 is off by at most this, relatively

// Scratch of the size that the kernels ask for, filled with NaN before every call.
class PoisonedScratch {
 public:
  PoisonedScratch(const KernelLimits& limits, int threads)
      : bytes_(static_cast<size_t>(cpu::AttentionScratchBytes(limits, threads))),
        data_(static_cast<std::byte*>(::operator new(bytes_, std::align_val_t(64)))) {
    scratch_ = {.data = data_, .limits = limits, .threads = threads};
    std::memset(data_, 0xFF, bytes_);
  }
  ~PoisonedScratch() { ::operator delete(data_, std::align_val_t(64)); }
  PoisonedScratch(const PoisonedScratch&) = delete;
  PoisonedScratch& operator=(const PoisonedScratch&) = delete;
  const cpu::AttentionScratch& get() const { return scratch_; }

 private:
  size_t bytes_;
  std::byte* data_;
  cpu::AttentionScratch scratch_;
};

struct NamedCode {
  std::string name;
  cpu::AttentionCode code;
  bool rounds_to_bf16 = false;  // queries and weights, where it runs on tiles
};

// Every instruction set of this processor, and the code for tiles on emulated ones.
std::vector<NamedCode> AllCodes() {
  std::vector<NamedCode> codes;
  for (Isa isa : SupportedIsas()) {
    codes.push_back({IsaName(isa), cpu::AttentionCodeFor(isa), isa == Isa::kAmx});
    if (isa == Isa::kAvx512) {
      codes.push_back({"emulated amx", cpu::AttentionCodeFor(isa), true});
      codes.back().code.tiles = &cpu::AttentionEmulatedAmxOps();
      codes.back().code.few_on_tiles = &cpu::AttentionEmulatedAmxFewOps();
    }
  }
  return codes;
}

void RunOn(const NamedCode& code, int threads, const AttentionCase& c,
           std::span<const AttentionItem> items) {
  int64_t rows = 0;
  for (const AttentionItem& item : items) rows = std::max(rows, item.tokens);
  ThreadPool pool(threads);
  PoisonedScratch scratch({.rows = rows, .head_dim = c.format.head_dim, .group = c.group}, threads);
  cpu::AttendWith(code.code, pool, c.format, c.group, c.params, items, scratch.get());
}

// Whether the code takes the item on tiles: many queries, with queries and weights in bf16, or few,
// with all of the queries and weights in two parts.
enum class OnTiles { kNot, kMany, kFew };

OnTiles TilesOf(const NamedCode& code, const AttentionCase& c) {
  if (!code.rounds_to_bf16 || c.format.dtype != DType::kBF16 ||
      c.format.encoding != Encoding::kNone || c.rotary_dim != 0 || c.key_mass) {
    return OnTiles::kNot;
  }
  if (c.tokens * c.group > cpu::kFewRowsMax || c.params.softcap != 0) return OnTiles::kMany;
  const bool takes = c.tokens == 1 && c.group > cpu::kFewOffTilesMax && c.group <= 16 &&
                     c.format.head_dim % cpu::kFewChunk == 0;
  return takes ? OnTiles::kFew : OnTiles::kNot;
}

// Queries as the tiles see them.
std::vector<float> RoundedQueries(const AttentionCase& c, const std::vector<float>& q) {
  const float scale = cpu::LogitScale(c.params).q;
  std::vector<float> rounded;
  for (float value : q) rounded.push_back(ToFloat(ToBF16(value * scale)) / scale);
  return rounded;
}

double Norm(const std::vector<double>& x) {
  double sum = 0;
  for (double value : x) sum += value * value;
  return std::sqrt(sum);
}

// How far a result may be from the definition. A logit is a sum of d products of f32, then scaled
// (and capped, its keys rotated): off by at most delta = (d + 16) u |scale| |q| |k|, plus a few
// units of the cap. Softmax weights are then off by a relative 2 delta + 8u (Exp2 is within 2 ulp,
// for weight and sum), n of them are added one by one to o and to the sum (n u each), and o is a
// convex combination of values, so |o - o'| <= (2 delta + 8u + 2 n u) max |v|. The log of the sum
// is off by half of that, and rounds. Merging and the final division add a few u.
struct Tolerance {
  double o = 0;
  double lse = 0;   // absolute part
  double mass = 0;  // relative
};

Tolerance ToleranceOf(const AttentionProblem& problem, OnTiles on_tiles) {
  const AttentionCase& c = problem.spec;
  const int64_t dim = c.format.head_dim;
  double q_norm = 0;
  double k_norm = 0;
  double v_max = 1;
  for (int64_t row = 0; row < c.tokens * c.group; ++row) {
    std::vector<double> q;
    for (int64_t i = 0; i < dim; ++i) {
      q.push_back(
          problem
              .q[static_cast<size_t>(row / c.group * problem.q_stride + row % c.group * dim + i)]);
    }
    q_norm = std::max(q_norm, Norm(q));
  }
  for (int64_t key = 0; key < c.count; ++key) {
    std::vector<double> k;
    for (int64_t i = 0; i < dim; ++i) {
      k.push_back(problem.kv.KReach(key, i));
      v_max = std::max(v_max, problem.kv.VReach(key, i));
    }
    k_norm = std::max(k_norm, Norm(k));
  }
  if (c.merge) v_max = std::max(v_max, 6.0);
  const double n = static_cast<double>(c.count);
  const double delta =
      kUnit * ((static_cast<double>(dim) + 16) * std::abs(c.params.scale) * q_norm * k_norm +
               8 * c.params.softcap);
  // Weights in bf16, whose rounded values are summed, or in two parts, which are not.
  const double weight = on_tiles == OnTiles::kMany  ? 2 * (0x1p-8 + 9e-5)
                        : on_tiles == OnTiles::kFew ? 0x1p-16
                                                    : 0;
  Tolerance tolerance;
  tolerance.o = (2 * delta + weight + (24 + 2 * n) * kUnit) * v_max;
  tolerance.lse = delta + (on_tiles == OnTiles::kMany ? weight / 2 : 0) + (16 + n) * kUnit;
  tolerance.mass = 2 * delta + (24 + 2 * n + static_cast<double>(c.tokens * c.group)) * kUnit;
  return tolerance;
}

void ExpectOutputsNear(const AttentionProblem::Outputs& expected,
                       const AttentionProblem::Outputs& actual, const AttentionProblem& problem,
                       OnTiles on_tiles, const std::string& what) {
  const AttentionCase& c = problem.spec;
  const Tolerance tolerance = ToleranceOf(problem, on_tiles);
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (int64_t i = 0; i < c.group * c.format.head_dim; ++i) {
      const size_t at = static_cast<size_t>(t * problem.o_stride + i);
      ASSERT_NEAR(expected.o[at], actual.o[at], tolerance.o)
          << what << " token " << t << " i " << i;
    }
    for (int64_t h = 0; h < c.group; ++h) {
      const size_t at = static_cast<size_t>(t * problem.lse_stride + h);
      if (expected.lse[at] == kNoKeys) {
        ASSERT_EQ(kNoKeys, actual.lse[at]) << what << " token " << t << " head " << h;
      } else {
        ASSERT_NEAR(expected.lse[at], actual.lse[at],
                    tolerance.lse + 4 * kUnit * std::abs(expected.lse[at]))
            << what << " token " << t << " head " << h;
      }
    }
  }
  for (size_t key = 0; key < actual.mass.size(); ++key) {
    ASSERT_NEAR(expected.mass[key], actual.mass[key], tolerance.mass * (1 + expected.mass[key]))
        << what << " key " << key;
  }
}

// Bit for bit, also what must not have been written: the gaps between rows are still poisoned.
void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b,
                    const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_TRUE(a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) << what;
}

void ExpectSameBits(const AttentionProblem::Outputs& a, const AttentionProblem::Outputs& b,
                    const std::string& what) {
  ExpectSameBits(a.o, b.o, what + " o");
  ExpectSameBits(a.lse, b.lse, what + " lse");
  ExpectSameBits(a.mass, b.mass, what + " mass");
}

void ExpectGapsUntouched(const AttentionProblem& problem, const std::string& what) {
  const AttentionCase& c = problem.spec;
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (int64_t i = c.group * c.format.head_dim; i < problem.o_stride; ++i) {
      ASSERT_TRUE(std::isnan(problem.o[static_cast<size_t>(t * problem.o_stride + i)])) << what;
    }
    ASSERT_TRUE(std::isnan(problem.lse[static_cast<size_t>(t * problem.lse_stride + c.group)]))
        << what;
  }
}

std::string Describe(const AttentionCase& c, uint64_t seed) {
  return "seed " + std::to_string(seed) + " " + DTypeName(c.format.dtype) + " " +
         EncodingName(c.format.encoding) + " dim " + std::to_string(c.format.head_dim) + " slots " +
         std::to_string(c.format.page_slots) + " group " + std::to_string(c.group) + " tokens " +
         std::to_string(c.tokens) + " keys " + std::to_string(c.count) + " window " +
         std::to_string(c.params.window) + " cap " + std::to_string(c.params.softcap) +
         (c.positions ? " positions" : "") + (c.rotary_dim > 0 ? " rotary" : "") +
         (c.key_mass ? " mass" : "") + (c.merge ? " merge" : "");
}

template <typename T, size_t N>
T OneOf(Random& random, const T (&values)[N]) {
  return values[random.Below(static_cast<int64_t>(N))];
}

AttentionCase RandomCase(Random& random) {
  AttentionCase c;
  c.format.dtype = OneOf(random, {DType::kF32, DType::kF16, DType::kBF16});
  c.format.page_slots = OneOf(random, {4, 8, 24, 64});
  c.format.head_dim = OneOf(random, {4, 16, 20, 32, 64, 80, 96, 128, 256});
  c.group = OneOf(random, {1, 2, 3, 4, 7, 8});
  c.params.scale = 1.0f / std::sqrt(static_cast<float>(c.format.head_dim));
  if (random.Below(4) == 0) c.params.softcap = 2.0f;
  if (random.Below(3) == 0) c.params.window = 1 + random.Below(200);
  c.tokens = OneOf<int64_t>(random, {1, 1, 2, 5, 17, 48, 70});
  c.count = OneOf<int64_t>(random, {0, 1, 3, 64, 127, 128, 129, 300});
  c.first_slot = random.Below(3 * c.format.page_slots);
  c.key_position = random.Below(50);
  // From queries before all keys to queries after them.
  c.q_position = c.key_position + random.Below(c.count + 20) - 10;
  c.positions = random.Below(4) == 0;
  if (random.Below(4) == 0) {
    c.rotary_dim = c.format.head_dim / 2 / (1 + static_cast<int>(random.Below(2))) * 2;
    c.rotate_to = random.Below(2) == 0;
  }
  c.key_mass = random.Below(4) == 0;
  c.merge = random.Below(3) == 0;
  c.format.encoding = OneOf(random, {Encoding::kNone, Encoding::kNone, Encoding::kInt8,
                                     Encoding::kFp8E4M3, Encoding::kInt4});
  return c;
}

// Decode as it goes to tiles: blocks, tiles and pages end anywhere.
AttentionCase RandomDecodeCase(Random& random) {
  AttentionCase c;
  c.format.dtype = DType::kBF16;
  c.format.page_slots = OneOf(random, {4, 16, 24, 64});
  c.format.head_dim = 32 * static_cast<int>(1 + random.Below(8));
  c.group = static_cast<int>(1 + random.Below(16));
  c.params.scale = 1.0f / std::sqrt(static_cast<float>(c.format.head_dim));
  if (random.Below(3) == 0) c.params.window = 1 + random.Below(200);
  c.count = random.Below(300);
  c.first_slot = random.Below(3) == 0 ? 0 : random.Below(3 * c.format.page_slots);
  c.key_position = random.Below(50);
  c.q_position = c.key_position + c.count + random.Below(40) - 20;
  c.positions = random.Below(4) == 0;
  c.merge = random.Below(3) == 0;
  return c;
}

void ExpectDefinition(const AttentionCase& c, uint64_t seed, bool bf16_queries, Random& random) {
  AttentionProblem problem(c, random);
  if (bf16_queries) {
    for (float& value : problem.q) value = ToFloat(ToBF16(value));
  }
  const AttentionProblem::Outputs before = problem.outputs();
  const std::vector<float> q = problem.q;
  for (const NamedCode& code : AllCodes()) {
    const std::string what = Describe(c, seed) + " " + code.name;
    const OnTiles on_tiles = TilesOf(code, c);
    problem.Reset(before);
    problem.q = on_tiles == OnTiles::kMany ? RoundedQueries(c, q) : q;
    AttentionItem item = problem.Item();
    ref::Attend(c.format, c.group, c.params, {&item, 1});
    const AttentionProblem::Outputs expected = problem.outputs();

    problem.q = q;
    item = problem.Item();
    problem.Reset(before);
    RunOn(code, 1, c, {&item, 1});
    const AttentionProblem::Outputs actual = problem.outputs();
    ExpectOutputsNear(expected, actual, problem, on_tiles, what);
    ExpectGapsUntouched(problem, what);
    for (int threads : {2, 3}) {
      problem.Reset(before);
      RunOn(code, threads, c, {&item, 1});
      ExpectSameBits(actual, problem.outputs(), what + " threads " + std::to_string(threads));
    }
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(CpuAttention, EqualsTheDefinitionOnRandomShapes) {
  for (uint64_t seed = 1; seed <= 500 && !HasFatalFailure(); ++seed) {
    Random random(seed);
    const AttentionCase c = RandomCase(random);
    ExpectDefinition(c, seed, false, random);
  }
}

TEST(CpuAttention, EqualsTheDefinitionInDecode) {
  for (uint64_t seed = 1; seed <= 300 && !HasFatalFailure(); ++seed) {
    Random random(seed);
    const AttentionCase c = RandomDecodeCase(random);
    ExpectDefinition(c, seed, random.Below(2) == 0, random);
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
          Shape{40, 8, 2}, Shape{200, 8, 2}}) {
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
          moved.kv.SetK(key, i, alone.kv.K(key, i));
          moved.kv.SetV(key, i, alone.kv.V(key, i));
        }
      }
      AttentionCase of_other = PlainCase(DType::kBF16, 64, group, 77, 100);
      of_other.format = c.format;
      AttentionProblem other(of_other, random);
      const std::vector<AttentionItem> items = {other.Item(), moved.Item()};
      RunOn(code, 3, c, items);
      ExpectSameBits(alone.o, moved.o, code.name + " o");
      ExpectSameBits(alone.lse, moved.lse, code.name + " lse");
    }
  }
}

// Attention over any partition of the keys, merged, is attention over all of them.
TEST(CpuAttention, PartsMergeToTheWhole) {
  for (const NamedCode& code : AllCodes()) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      Random random(seed);
      const int64_t tokens = OneOf<int64_t>(random, {1, 2, 60});
      const int group = seed % 2 == 0 ? 3 : 12;
      const AttentionCase c = PlainCase(DType::kBF16, 64, group, tokens, 1 + random.Below(400));
      AttentionProblem whole(c, random);
      const AttentionItem item = whole.Item();
      RunOn(code, 1, c, {&item, 1});
      const std::string what = Describe(c, seed) + " " + code.name;
      const AttentionProblem::Outputs expected = whole.outputs();

      // Ends of the parts; some parts are empty.
      std::vector<int64_t> ends = {0, c.count};
      for (int64_t i = random.Below(6); i > 0; --i) ends.push_back(random.Below(c.count + 1));
      std::sort(ends.begin(), ends.end());
      const int parts = static_cast<int>(ends.size()) - 1;
      const int64_t rows = c.tokens * c.group;
      std::vector<float> part_o(static_cast<size_t>(parts * rows * c.format.head_dim), kPoison);
      std::vector<float> part_lse(static_cast<size_t>(parts * rows), kPoison);
      std::vector<AttentionItem> items;
      std::vector<float> merged_o = whole.o;
      std::vector<float> merged_lse = whole.lse;
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
        part.o = merged_o.data();
        part.o_stride = whole.o_stride;
        part.lse = merged_lse.data();
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

      AttentionProblem::Outputs actual = expected;
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
      const OnTiles on_tiles = TilesOf(code, c);
      ExpectOutputsNear(expected, actual, whole, on_tiles, what + " merged at once");
      ExpectOutputsNear(expected, {merged_o, merged_lse, {}}, whole, on_tiles, what + " merged");
      if (HasFatalFailure()) return;
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
      problem.kv.SetK(c.count - 1, 3, kPoison);
      const AttentionItem item = problem.Item();
      RunOn(code, 1, c, {&item, 1});
      for (int64_t t = 0; t < tokens; ++t) {
        const bool last = t == tokens - 1;
        const std::string what = code.name + " token " + std::to_string(t);
        EXPECT_EQ(last, std::isnan(problem.lse[static_cast<size_t>(t * problem.lse_stride)]))
            << what;
        EXPECT_EQ(last, std::isnan(problem.o[static_cast<size_t>(t * problem.o_stride + 5)]))
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
                     double{problem.kv.K(key, i)};
          }
          if (logit > best) best_key = key;
          best = std::max(best, logit);
        }
        EXPECT_NEAR(best * c.params.scale, problem.lse[static_cast<size_t>(t * problem.lse_stride)],
                    best * c.params.scale * 0x1p-8)
            << code.name;
        EXPECT_NEAR(problem.kv.V(best_key, 9),
                    problem.o[static_cast<size_t>(t * problem.o_stride + 9)], 1e-4)
            << code.name << " token " << t;
      }
    }
  }
}

// ---- Merge, sinks and storing ----

TEST(CpuAttention, MergeEqualsTheDefinition) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Random random(seed);
    const int head_dim = OneOf(random, {5, 64, 80});
    std::vector<std::vector<float>> part_o;
    std::vector<std::vector<float>> part_lse;
    std::vector<std::vector<float>> extra_o;
    std::vector<std::vector<float>> extra_lse;
    std::vector<std::vector<float>> o;
    std::vector<std::vector<float>> lse;
    std::vector<MergeItem> items;
    for (int64_t item = 0; item < 4; ++item) {
      const int parts = static_cast<int>(random.Below(5));
      const int64_t rows = random.Below(70);
      part_o.emplace_back(static_cast<size_t>(parts * rows * head_dim));
      part_lse.emplace_back(static_cast<size_t>(parts * rows));
      for (float& value : part_o.back()) value = random.Normal();
      for (float& value : part_lse.back()) {
        value = random.Below(3) == 0 ? kNoKeys : 5 * random.Normal();
      }
      extra_o.emplace_back(static_cast<size_t>(rows * head_dim), kPoison);
      extra_lse.emplace_back(static_cast<size_t>(rows), kNoKeys);
      for (int64_t row = 0; row < rows; ++row) {
        if (random.Below(3) == 0) continue;  // what is there without a key is not read
        extra_lse.back()[static_cast<size_t>(row)] = 5 * random.Normal();
        for (int64_t i = 0; i < head_dim; ++i) {
          extra_o.back()[static_cast<size_t>(row * head_dim + i)] = random.Normal();
        }
      }
      const bool extra = item % 2 == 1;
      o.emplace_back(static_cast<size_t>(rows * head_dim), kPoison);
      lse.emplace_back(static_cast<size_t>(rows), kPoison);
      items.push_back({.part_o = part_o.back().data(),
                       .o_part_stride = rows * head_dim,
                       .part_lse = part_lse.back().data(),
                       .lse_part_stride = rows,
                       .parts = parts,
                       .extra_o = extra ? extra_o.back().data() : nullptr,
                       .extra_lse = extra ? extra_lse.back().data() : nullptr,
                       .rows = rows,
                       .o = o.back().data(),
                       .lse = item == 2 ? nullptr : lse.back().data()});
    }
    ref::Merge(head_dim, items);
    const auto expected_o = o;
    const auto expected_lse = lse;
    for (auto& values : o) std::fill(values.begin(), values.end(), kPoison);
    for (auto& values : lse) std::fill(values.begin(), values.end(), kPoison);
    ThreadPool pool(2);
    cpu::Merge(pool, head_dim, items);
    for (size_t i = 0; i < items.size(); ++i) {
      for (size_t j = 0; j < o[i].size(); ++j) {
        ASSERT_NEAR(expected_o[i][j], o[i][j], 1e-5) << "seed " << seed << " item " << i;
      }
      for (size_t j = 0; i != 2 && j < lse[i].size(); ++j) {
        if (expected_lse[i][j] == kNoKeys) {
          ASSERT_EQ(kNoKeys, lse[i][j]) << "seed " << seed << " item " << i;
        } else {
          ASSERT_NEAR(expected_lse[i][j], lse[i][j], 1e-5) << "seed " << seed << " item " << i;
        }
      }
    }
  }
}

TEST(CpuAttention, SinksEqualTheDefinition) {
  Random random(3);
  const int64_t tokens = 50;
  const int heads = 3;
  const int head_dim = 20;
  std::vector<float> sinks = {1.5f, -2.0f, kNoKeys};
  std::vector<float> o(static_cast<size_t>(tokens * heads * head_dim));
  std::vector<float> lse(static_cast<size_t>(tokens * heads));
  for (float& value : o) value = random.Normal();
  for (float& value : lse) value = random.Below(4) == 0 ? kNoKeys : 3 * random.Normal();
  std::vector<float> expected_o = o;
  std::vector<float> expected_lse = lse;
  ref::AddSinks(sinks.data(), tokens, heads, head_dim, expected_o.data(), expected_lse.data());
  ThreadPool pool(2);
  cpu::AddSinks(pool, sinks.data(), tokens, heads, head_dim, o.data(), lse.data());
  for (size_t i = 0; i < lse.size(); ++i) {
    if (expected_lse[i] == kNoKeys) {
      EXPECT_EQ(kNoKeys, lse[i]);
      continue;
    }
    EXPECT_NEAR(expected_lse[i], lse[i], 1e-5);
    for (size_t j = 0; j < static_cast<size_t>(head_dim); ++j) {
      const size_t at = i * static_cast<size_t>(head_dim) + j;
      EXPECT_NEAR(expected_o[at], o[at], 1e-5);
    }
  }
}

// Pages written by the definition and by every instruction set have the same bytes, NaN, infinities
// and denormals included, and nothing is written but the slots.
TEST(CpuAttention, StoresTheSameBytesAsTheDefinition) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int head_dim : {1, 16, 37, 80}) {
      Random random(static_cast<uint64_t>(head_dim));
      const PageFormat format = {dtype, 4, head_dim};
      const int64_t count = 61;
      const int64_t stride = head_dim + 2;
      std::vector<float> k(static_cast<size_t>(count * stride));
      std::vector<float> v(k.size());
      for (size_t i = 0; i < k.size(); ++i) {
        // Any bits at all, and numbers near rounding boundaries.
        k[i] = std::bit_cast<float>(static_cast<uint32_t>(random.Next()));
        v[i] = random.Normal() * std::ldexp(1.0f, static_cast<int>(random.Below(60)) - 30);
      }
      PagedKv expected(format, 3, count, random);
      ref::StoreKv(format,
                   std::vector<StoreKvItem>{{k.data(), v.data(), stride, 1, expected.Run()}});
      for (Isa isa : SupportedIsas()) {
        PagedKv actual(format, 3, count, random);
        ThreadPool pool(2);
        cpu::StoreKv(pool, isa, format,
                     std::vector<StoreKvItem>{{k.data(), v.data(), stride, 1, actual.Run()}});
        const PageRun run = expected.Run();
        for (int64_t page = 0; page < CeilDiv(run.first_slot + count, 4); ++page) {
          const PageRun to = actual.Run();
          ASSERT_EQ(0, std::memcmp(run.k + page * run.page_stride, to.k + page * to.page_stride,
                                   format.bytes()))
              << DTypeName(dtype) << " " << head_dim << " " << IsaName(isa) << " page " << page;
          ASSERT_EQ(0, std::memcmp(run.v + page * run.page_stride, to.v + page * to.page_stride,
                                   format.bytes()))
              << DTypeName(dtype) << " " << head_dim << " " << IsaName(isa) << " page " << page;
        }
      }
    }
  }
}

}  // namespace
}  // namespace headway
