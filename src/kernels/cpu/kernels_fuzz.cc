// Runs every implementation of this processor (AVX2, AVX-512, AMX or its emulation, as far as it
// has them) on one random problem after the other, compares each with the definition, and stops at
// the first disagreement beyond the derived tolerance:
//
//   kernels_fuzz [--seed N] [--problems N] [--seconds N]
//
// A problem depends on its seed alone: `kernels_fuzz --seed N --problems 1` repeats what was
// reported. Without --seconds it ends after the problems (1000 unless told), with it after the
// time. The test suite runs a short fixed range; a long run is `kernels_fuzz --seed $RANDOM000000
// --seconds 3600`.
#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "base/thread_pool.h"
#include "kernels/cpu/attention_testing.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/linear_testing.h"
#include "kernels/cpu/selection_testing.h"
#include "kernels/ref/ref_attention.h"

namespace headway {
namespace {

constexpr float kNoKeys = -std::numeric_limits<float>::infinity();

// Wider than the cases of the tests: more keys, longer groups, keys of any size.
AttentionCase RandomWideCase(Random& random) {
  AttentionCase c = RandomAttentionCase(random);
  c.format.page_slots = static_cast<int>(1 + random.Below(80));
  const int64_t whole = c.format.encoding == Encoding::kLossless ? 8 : 2;
  c.format.head_dim = static_cast<int>(RoundUp(2 * (1 + random.Below(160)), whole));
  c.rotary_dim = std::min(c.rotary_dim, c.format.head_dim / 2 * 2);
  c.params.scale = 1.0f / std::sqrt(static_cast<float>(c.format.head_dim));
  c.group = static_cast<int>(1 + random.Below(40));
  c.tokens = 1 + random.Below(random.Below(2) == 0 ? 3 : 60);
  c.count = random.Below(random.Below(4) == 0 ? 1500 : 400);
  c.first_slot = random.Below(3 * c.format.page_slots);
  c.q_position = c.key_position + random.Below(2 * c.count + 20) - 10;
  c.key_size = Pick(random, {0.1f, 1.0f, 4.0f});
  return c;
}

AttentionCase DrawCase(Random& random) {
  switch (random.Below(3)) {
    case 0:
      return RandomAttentionCase(random);
    case 1:
      return RandomDecodeCase(random);
    default:
      return RandomWideCase(random);
  }
}

std::string SameBits(const AttentionOutputs& a, const AttentionOutputs& b) {
  const auto same = [](const std::vector<float>& x, const std::vector<float>& y) {
    return x.size() == y.size() && std::equal(x.begin(), x.end(), y.begin(), [](float p, float q) {
             return std::bit_cast<uint32_t>(p) == std::bit_cast<uint32_t>(q);
           });
  };
  return same(a.o, b.o) && same(a.lse, b.lse) && same(a.mass, b.mass) ? "" : "bits differ";
}

// The states of a problem's parts, merged: by the definition and by the CPU's kernel.
std::string MergeDisagreement(AttentionProblem& problem, const AttentionOutputs& states) {
  const int64_t head_dim = problem.spec.format.head_dim;
  const int64_t rows = problem.query_heads();
  const AttentionOutputs* from = &states;
  for (int64_t token = 0; token < problem.spec.tokens; ++token) {
    std::vector<float> o(static_cast<size_t>(rows * head_dim), kPoison);
    std::vector<float> lse(static_cast<size_t>(rows), kPoison);
    MergeItem item = {.part_o = from->o.data() + problem.OAt(0, token, 0),
                      .o_part_stride = problem.o_part_stride,
                      .part_lse = from->lse.data() + problem.LseAt(0, token, 0),
                      .lse_part_stride = problem.lse_part_stride,
                      .parts = static_cast<int>(problem.parts()),
                      .rows = rows,
                      .o = o.data(),
                      .lse = lse.data()};
    ref::Merge(static_cast<int>(head_dim), {&item, 1});
    const std::vector<float> want_o = o, want_lse = lse;
    std::fill(o.begin(), o.end(), kPoison);
    std::fill(lse.begin(), lse.end(), kPoison);
    ThreadPool pool(2);
    cpu::Merge(pool, static_cast<int>(head_dim), {&item, 1});
    // A weight is off by a few u and by the rounding of the logarithms, which are no more than 200
    // apart where it is not 0; as many are added as there are parts. Codes may reach 16.
    const double error = (256.0 + 4.0 * item.parts) * kUnit;
    for (size_t i = 0; i < o.size(); ++i) {
      if (!(std::abs(want_o[i] - o[i]) <= 16 * error)) return "merged o";
    }
    for (size_t i = 0; i < lse.size(); ++i) {
      const bool none = want_lse[i] == kNoKeys;
      if (none ? lse[i] != kNoKeys
               : !(std::abs(want_lse[i] - lse[i]) <= error * (1 + std::abs(want_lse[i])))) {
        return "merged lse";
      }
    }
  }
  return "";
}

// One call of one to three items that share format, group and parameters.
std::string AttentionDisagreement(Random& random) {
  const AttentionCase first = DrawCase(random);
  std::vector<std::unique_ptr<AttentionProblem>> problems;
  std::vector<AttentionOutputs> before;
  for (int64_t i = 1 + random.Below(3); i > 0; --i) {
    AttentionCase c = first;
    if (!problems.empty()) {
      c.tokens = 1 + random.Below(first.tokens);
      c.count = random.Below(first.count + 1);
      c.first_slot = random.Below(3 * c.format.page_slots);
      c.q_position = c.key_position + random.Below(c.count + 20) - 10;
    }
    problems.push_back(std::make_unique<AttentionProblem>(c, random));
    before.push_back(problems.back()->outputs);
  }
  for (const NamedCode& code : AllCodes()) {
    std::vector<AttentionOutputs> alone;
    for (const int threads : {1, 3}) {
      std::vector<AttentionItem> items;
      for (size_t i = 0; i < problems.size(); ++i) {
        problems[i]->outputs = before[i];
        items.push_back(problems[i]->Item());
      }
      RunOn(code, threads, first, items);
      for (size_t i = 0; i < problems.size(); ++i) {
        AttentionProblem& problem = *problems[i];
        const AttentionOutputs actual = problem.outputs;
        std::string wrong;
        if (threads == 1) {
          problem.outputs = before[i];
          const AttentionOutputs expected =
              problem.Expected(QueriesOf(code, problem.spec, problem.q));
          wrong = problem.Disagreement(PrecisionOf(TilesOf(code, problem.spec)), expected, actual);
          if (wrong.empty()) wrong = MergeDisagreement(problem, actual);
          alone.push_back(actual);
        } else {
          wrong = SameBits(alone[i], actual);
        }
        if (!wrong.empty()) {
          return code.name + ", " + std::to_string(threads) + " threads, item " +
                 std::to_string(i) + ": " + problem.spec.Name() + ": " + wrong;
        }
      }
    }
  }
  return "";
}

std::string ProductDisagreement(Random& random) {
  const int64_t rows = 1 + random.Below(random.Below(2) == 0 ? 16 : 140);
  const int64_t in = 1 + random.Below(700);
  const uint64_t seed = random.Next();
  for (const NamedLinearCode& code : AllLinearCodes()) {
    Random same(seed);
    const std::string wrong = LinearDisagreement(code.code, same, rows, in);
    if (!wrong.empty()) return code.name + ": " + wrong;
  }
  return "";
}

// All instruction sets make the same summaries and lists as the definition, and states within its
// tolerance; more threads, and other places of the pages, do not change a bit.
std::string SelectionOnAllIsas(Random& random) {
  const auto draw = Pick(random, {RandomSelectionCase, RandomMovedCase, RandomOtherCase,
                                  RandomPrefillCase, RandomBoundedCase});
  const SelectionCase c = draw(random);
  const uint64_t seed = random.Next();
  for (const std::string& isa : CpuIsas()) {
    Random same(seed);
    const std::string wrong = SelectionDisagreement(c, isa, same);
    if (!wrong.empty()) return isa + ": " + c.Name() + ": " + wrong;
  }
  return "";
}

bool TakeNumber(std::string_view text, uint64_t* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

int Main(const std::vector<std::string_view>& args) {
  uint64_t seed = 1, problems = 1000, seconds = 0;
  for (size_t i = 0; i < args.size(); i += 2) {
    uint64_t* option = args[i] == "--seed"       ? &seed
                       : args[i] == "--problems" ? &problems
                       : args[i] == "--seconds"  ? &seconds
                                                 : nullptr;
    if (option == nullptr || i + 1 == args.size() || !TakeNumber(args[i + 1], option)) {
      std::fprintf(stderr, "usage: kernels_fuzz [--seed N] [--problems N] [--seconds N]\n");
      return 2;
    }
  }
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + std::chrono::seconds(seconds);
  uint64_t done = 0;
  while (seconds > 0 ? Clock::now() < end : done < problems) {
    Random random(seed + done);
    const int64_t kind = random.Below(5);
    const std::string wrong = kind == 0   ? ProductDisagreement(random)
                              : kind == 1 ? SelectionOnAllIsas(random)
                                          : AttentionDisagreement(random);
    if (!wrong.empty()) {
      std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(seed + done),
                   wrong.c_str());
      return 1;
    }
    ++done;
  }
  std::printf("%llu problems, no disagreement\n", static_cast<unsigned long long>(done));
  return 0;
}

}  // namespace
}  // namespace headway

int main(int argc, char** argv) { return headway::Main({argv + 1, argv + argc}); }
