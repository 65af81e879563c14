#include "kernels/cpu/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <string>
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

void RunOn(Isa isa, int threads, const AttentionCase& c, std::span<const AttentionItem> items) {
  int64_t rows = 0;
  for (const AttentionItem& item : items) rows = std::max(rows, item.tokens);
  ThreadPool pool(threads);
  PoisonedScratch scratch({.rows = rows, .head_dim = c.format.head_dim, .group = c.group}, threads);
  cpu::Attend(pool, isa, c.format, c.group, c.params, items, scratch.get());
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

Tolerance ToleranceOf(const AttentionProblem& problem) {
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
      k.push_back(problem.kv.K(key, i));
      v_max = std::max(v_max, std::abs(double{problem.kv.V(key, i)}));
    }
    k_norm = std::max(k_norm, Norm(k));
  }
  if (c.merge) v_max = std::max(v_max, 6.0);
  const double n = static_cast<double>(c.count);
  const double delta =
      kUnit * ((static_cast<double>(dim) + 16) * std::abs(c.params.scale) * q_norm * k_norm +
               8 * c.params.softcap);
  Tolerance tolerance;
  tolerance.o = (2 * delta + (24 + 2 * n) * kUnit) * v_max;
  tolerance.lse = delta + (16 + n) * kUnit;
  tolerance.mass = 2 * delta + (24 + 2 * n + static_cast<double>(c.tokens * c.group)) * kUnit;
  return tolerance;
}

void ExpectOutputsNear(const AttentionProblem::Outputs& expected,
                       const AttentionProblem::Outputs& actual, const AttentionProblem& problem,
                       const std::string& what) {
  const AttentionCase& c = problem.spec;
  const Tolerance tolerance = ToleranceOf(problem);
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
  for (size_t key = 0; key < expected.mass.size(); ++key) {
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
  return "seed " + std::to_string(seed) + " " + DTypeName(c.format.dtype) + " dim " +
         std::to_string(c.format.head_dim) + " slots " + std::to_string(c.format.page_slots) +
         " group " + std::to_string(c.group) + " tokens " + std::to_string(c.tokens) + " keys " +
         std::to_string(c.count) + " window " + std::to_string(c.params.window) + " cap " +
         std::to_string(c.params.softcap) + (c.positions ? " positions" : "") +
         (c.rotary_dim > 0 ? " rotary" : "") + (c.key_mass ? " mass" : "") +
         (c.merge ? " merge" : "");
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
  return c;
}

TEST(CpuAttention, EqualsTheDefinitionOnRandomShapes) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    const AttentionCase c = RandomCase(random);
    AttentionProblem problem(c, random);
    const AttentionProblem::Outputs before = problem.outputs();
    const AttentionItem item = problem.Item();
    ref::Attend(c.format, c.group, c.params, {&item, 1});
    const AttentionProblem::Outputs expected = problem.outputs();
    for (Isa isa : SupportedIsas()) {
      const std::string what = Describe(c, seed) + " " + IsaName(isa);
      problem.Reset(before);
      RunOn(isa, 1, c, {&item, 1});
      const AttentionProblem::Outputs actual = problem.outputs();
      ExpectOutputsNear(expected, actual, problem, what);
      ExpectGapsUntouched(problem, what);
      for (int threads : {2, 3}) {
        problem.Reset(before);
        RunOn(isa, threads, c, {&item, 1});
        ExpectSameBits(actual, problem.outputs(), what + " threads " + std::to_string(threads));
      }
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace headway
