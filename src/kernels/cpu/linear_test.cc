#include "kernels/cpu/linear.h"

#include <gtest/gtest.h>

#include <string>

#include "base/random.h"
#include "base/thread_pool.h"
#include "kernels/cpu/linear_testing.h"

namespace headway {
namespace {

class LinearTest : public testing::TestWithParam<NamedLinearCode> {};

TEST_P(LinearTest, FewTokens) {
  constexpr uint64_t kSeed = 11;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Random random(kSeed);
  for (int64_t rows = 1; rows <= 13; ++rows) {
    for (int round = 0; round < 2; ++round) {
      ASSERT_EQ("", LinearDisagreement(GetParam().code, random, rows, 1 + random.Below(300)));
    }
  }
}

TEST_P(LinearTest, ManyTokens) {
  constexpr uint64_t kSeed = 12;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Random random(kSeed);
  for (int round = 0; round < 10; ++round) {
    ASSERT_EQ("", LinearDisagreement(GetParam().code, random, 13 + random.Below(100),
                                     1 + random.Below(300)));
  }
}

// More than one pass over the inputs, more than one chunk of tokens.
TEST_P(LinearTest, LongInputsAndManyChunks) {
  constexpr uint64_t kSeed = 13;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Random random(kSeed);
  for (const int64_t in : {511, 512, 513, 1025}) {
    ASSERT_EQ("", LinearDisagreement(GetParam().code, random, 1 + random.Below(60), in));
  }
  ASSERT_EQ("", LinearDisagreement(GetParam().code, random, 512 + 33, 40));
  ASSERT_EQ("", LinearDisagreement(GetParam().code, random, 1024 + 1, 33));
}

TEST_P(LinearTest, NothingToDo) {
  ThreadPool pool(2);
  cpu::Linear(pool, GetParam().code, nullptr, 0, {}, {});
  const LinearOp op = {.weight = {nullptr, DType::kBF16, 4, 4}};
  cpu::Linear(pool, GetParam().code, nullptr, 0, {&op, 1}, {});
}

INSTANTIATE_TEST_SUITE_P(Codes, LinearTest, testing::ValuesIn(AllLinearCodes()),
                         [](const auto& code) { return code.param.name; });

}  // namespace
}  // namespace headway
