// Attention over lossless pages: the bits of attention over the same numbers in plain ones.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/half.h"
#include "base/random.h"
#include "kernels/cpu/attention_testing.h"
#include "kernels/lossless_codec.h"

namespace headway {
namespace {

void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b,
                    const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_TRUE(a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) << what;
}

// The case over plain pages and over lossless ones. Both problems begin with the same numbers.
void ExpectPlainBits(const AttentionCase& c, uint64_t seed) {
  AttentionCase lossless = c;
  lossless.format.encoding = Encoding::kLossless;
  lossless.layout.alignment = 2;
  Random for_plain(seed), for_lossless(seed);
  AttentionProblem a(c, for_plain);
  AttentionProblem b(lossless, for_lossless);
  b.q = a.q;
  b.positions = a.positions;
  b.rotate_to = a.rotate_to;
  const AttentionOutputs before = a.outputs;
  for (const NamedCode& code : AllCodes()) {
    const std::string what = "seed " + std::to_string(seed) + " " + c.Name() + " " + code.name;
    a.outputs = b.outputs = before;
    const AttentionItem plain = a.Item();
    const AttentionItem coded = b.Item();
    ASSERT_NE(coded.keys.pages.params, nullptr);
    RunOn(code, 1, c, {&plain, 1});
    RunOn(code, 2, lossless, {&coded, 1});
    ExpectSameBits(a.outputs.o, b.outputs.o, what + " o");
    ExpectSameBits(a.outputs.lse, b.outputs.lse, what + " lse");
    ExpectSameBits(a.outputs.mass, b.outputs.mass, what + " mass");
  }
}

TEST(CpuLosslessAttention, EqualsPlainBitForBitOnRandomShapes) {
  for (uint64_t seed = 1; seed <= 400 && !HasFatalFailure(); ++seed) {
    Random random(seed);
    AttentionCase c = RandomAttentionCase(random);
    c.format.dtype = DType::kBF16;
    c.format.encoding = Encoding::kNone;
    c.format.head_dim = static_cast<int>(RoundUp(c.format.head_dim, 8));
    c.tiny_numbers = true;
    ExpectPlainBits(c, seed);
  }
}

TEST(CpuLosslessAttention, EqualsPlainBitForBitInDecode) {
  for (uint64_t seed = 1; seed <= 400 && !HasFatalFailure(); ++seed) {
    Random random(seed);
    AttentionCase c = RandomDecodeCase(random);
    c.tiny_numbers = true;
    ExpectPlainBits(c, seed);
  }
}

// A half that does not fit shows in all that attends to it.
TEST(CpuLosslessAttention, WhatDoesNotFitIsNaN) {
  for (const bool of_keys : {true, false}) {
    for (const int64_t tokens : {1, 40}) {
      AttentionCase c;
      c.format = {DType::kBF16, 64, 64, Encoding::kLossless};
      c.group = tokens == 1 ? 12 : 2;
      c.params.scale = 0.125f;
      c.tokens = tokens;
      c.count = 200;
      c.q_position = 200;
      Random random(3);
      AttentionProblem problem(c, random);
      problem.kv.MakeUnfit(0, 1, of_keys);
      for (const NamedCode& code : AllCodes()) {
        const AttentionItem item = problem.Item();
        RunOn(code, 1, c, {&item, 1});
        for (int64_t i = 0; i < c.format.head_dim; ++i) {
          const size_t at = problem.OAt(0, 0, 0) + static_cast<size_t>(i);
          EXPECT_TRUE(std::isnan(problem.outputs.o[at])) << code.name << " " << i;
        }
      }
    }
  }
}

// Numbers that are like each other within a row, one of so many of any bits.
std::vector<uint16_t> RandomPage(const PageFormat& format, Random& random) {
  std::vector<uint16_t> bits(static_cast<size_t>(format.page_slots * format.head_dim));
  const int64_t rare = int64_t{1} << random.Below(20);
  for (size_t i = 0; i < bits.size(); ++i) {
    const auto size = static_cast<float>(i) / static_cast<float>(format.head_dim) - 32.0f;
    bits[i] = random.Below(rare) == 0 ? static_cast<uint16_t>(random.Next())
                                      : ToBF16(std::exp2(std::floor(size)) * random.Normal()).bits;
  }
  return bits;
}

// Also of halves that do not fit, and that hold NaN.
TEST(CpuLosslessCodes, AreThoseOfTheDefinition) {
  Random random(21);
  int unfit = 0;
  for (int round = 0; round < 600; ++round) {
    const PageFormat format = {DType::kBF16, static_cast<int>(1 + random.Below(64)),
                               static_cast<int>(8 * (1 + random.Below(32))), Encoding::kLossless};
    const std::vector<uint16_t> bits = RandomPage(format, random);
    const auto* page = reinterpret_cast<const std::byte*>(bits.data());
    std::vector<std::byte> codes(format.closed_bytes() + 1, std::byte{0xA5});
    std::vector<std::byte> params(static_cast<size_t>(KeyParamBytes(format)) + 1, std::byte{0xA5});
    std::vector<std::byte> want_codes = codes, want_params = params;
    const bool fits = lossless::EncodeHalf(format, page, want_codes.data(), want_params.data());
    unfit += fits ? 0 : 1;
    for (const Isa isa : SupportedIsas()) {
      ASSERT_EQ(fits, cpu::LosslessEncoderFor(isa)(format, page, codes.data(), params.data()));
      ASSERT_TRUE(codes == want_codes && params == want_params)
          << IsaName(isa) << " round " << round << " dim " << format.head_dim;
    }
  }
  EXPECT_GT(unfit, 100);
  EXPECT_LT(unfit, 500);
}

}  // namespace
}  // namespace headway
