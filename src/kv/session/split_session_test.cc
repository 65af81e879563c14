#include "kv/session/split_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "base/fault_env.h"
#include "base/random.h"
#include "kv/testing/memory_env.h"
#include "kv/testing/session_model.h"
#include "kv/testing/slab_test_util.h"

namespace headway::kv {
namespace {

using testing::HasSubstr;
using Bytes = MemoryEnv::Bytes;

constexpr char kPath[] = "/disk/session";

class SplitSessionTest : public testing::Test {
 protected:
  // A session that holds some slabs of whole prompts.
  Bytes MakeSession(Random* random, Manifest* last) {
    CacheFormat format = RandomSmallFormat(random);
    while (ModelsKept(format) || format.kv_heads < 2) format = RandomSmallFormat(random);
    format.group_heads = 2 + static_cast<int>(random->Below(format.kv_heads - 1));
    MemoryEnv env;
    Result<std::unique_ptr<SlabFile>> file = CreateSessionAt(&env, kPath, format, &budget_);
    EXPECT_TRUE(file.ok());
    SessionModel model(&env, file->get(), random);
    for (int i = 0; i < 3 || model.Describe().slabs.empty(); ++i) {
      EXPECT_TRUE(model.Change().ok());
    }
    *last = model.Describe();
    EXPECT_TRUE(model.Commit().ok());
    return env.Contents()[kPath];
  }
  Result<std::unique_ptr<SlabFile>> Split(Env* env) {
    Result<std::unique_ptr<SessionClaim>> claim = SessionClaim::Take(env, kPath);
    if (!claim.ok()) return claim.status();
    return SplitSession(std::move(*claim), &budget_);
  }

  Budget budget_{"disk", kUnlimited};
};

// Each head's pages are those that its group's slabs had.
void ExpectSplit(Env* env, SlabFile* whole, SlabFile* split) {
  const CacheFormat &format = whole->format(), &one = split->format();
  EXPECT_EQ(one.group_heads, 1);
  std::map<std::tuple<int, int, int>, const SavedSlab*> heads;
  for (const SavedSlab& slab : split->manifest().slabs) {
    heads[{slab.layer, slab.group, slab.segment}] = &slab;
  }
  const AlignedBuffer slab = SlabBuffer(env, format), head_slab = SlabBuffer(env, one);
  size_t found = 0;
  for (const SavedSlab& saved : whole->manifest().slabs) {
    const int count = format.HeadsIn(saved.layer, saved.group);
    ASSERT_TRUE(whole->ReadPages(saved.slot, count, saved.checksums, slab.data()).ok());
    for (int head = 0; head < count; ++head, ++found) {
      const SavedSlab* const own =
          heads[{saved.layer, format.HeadsBefore(saved.layer, saved.group) + head, saved.segment}];
      ASSERT_NE(own, nullptr);
      ASSERT_TRUE(split->ReadPages(own->slot, 1, own->checksums, head_slab.data()).ok());
      for (int page = 0; page < saved.pages; ++page) {
        const auto same = [&](int64_t at_one, int64_t at, size_t size) {
          return std::memcmp(head_slab.data() + at_one, slab.data() + at, size) == 0;
        };
        const size_t bytes = one.page.closed_bytes();
        EXPECT_TRUE(same(one.KOffset(0, page), format.KOffset(head, page), bytes));
        EXPECT_TRUE(same(one.VOffset(0, page), format.VOffset(head, page), bytes));
        EXPECT_TRUE(same(one.ParamOffset(page),
                         format.ParamOffset(page) + head * format.param_bytes(),
                         static_cast<size_t>(one.param_bytes())));
      }
    }
  }
  EXPECT_EQ(found, heads.size());
}

TEST_F(SplitSessionTest, EveryHeadHasItsPages) {
  Random random(3);
  for (int i = 0; i < 40; ++i) {
    Manifest last;
    const Bytes bytes = MakeSession(&random, &last);
    MemoryEnv before({{kPath, bytes}}), after({{kPath, bytes}});
    {
      Result<std::unique_ptr<SlabFile>> made = Split(&after);
      ASSERT_TRUE(made.ok()) << made.status().message();
    }
    EXPECT_EQ(budget_.used(), 0);
    Result<std::unique_ptr<SlabFile>> whole = OpenSessionAt(&before, kPath, &budget_);
    Result<std::unique_ptr<SlabFile>> split = OpenSessionAt(&after, kPath, &budget_);
    ASSERT_TRUE(whole.ok() && split.ok()) << split.status().message();
    ExpectSplit(&after, whole->get(), split->get());
    EXPECT_EQ((*split)->manifest().tokens, last.tokens);
    EXPECT_EQ((*split)->manifest().weights_hash, last.weights_hash);
    EXPECT_EQ((*split)->manifest().note, last.note);
    EXPECT_EQ(after.Contents().size(), 1u) << "a file is left behind";
    // It goes on as any other; models of some formats are of what heads keep.
    if (ModelsKept((*split)->format())) continue;
    SessionModel model(&after, split->get(), &random);
    ASSERT_TRUE(model.Load().ok());
    ASSERT_TRUE(model.Change().ok());
    ASSERT_TRUE(model.Commit().ok());
    ASSERT_TRUE(model.Verify().ok());
  }
}

// Whatever fails, the session holds what it did, in one cut or the other.
TEST_F(SplitSessionTest, AFaultLosesNothing) {
  Random random(4);
  Manifest last;
  const Bytes bytes = MakeSession(&random, &last);
  for (int64_t n = 1, faults = 1; faults > 0; ++n) {
    MemoryEnv memory({{kPath, bytes}});
    FaultEnv env(&memory);
    env.FailAt(n);
    {
      const Result<std::unique_ptr<SlabFile>> made = Split(&env);
      faults = env.faults();
      EXPECT_TRUE(made.ok() || faults > 0) << made.status().message();
    }
    EXPECT_EQ(env.LiveFiles(), 0);
    EXPECT_EQ(env.LiveAllocations(), 0);
    env.FailAt(0);
    Result<std::unique_ptr<SlabFile>> file = OpenSessionAt(&env, kPath, &budget_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ((*file)->manifest().tokens, last.tokens);
    EXPECT_TRUE(VerifySession(&env, file->get(), (*file)->manifest()).ok());
  }
}

TEST_F(SplitSessionTest, ADamagedPageIsToldOf) {
  Random random(5);
  Manifest last;
  Bytes bytes = MakeSession(&random, &last);
  const SavedSlab& slab = last.slabs[random.Below(last.slabs.size())];
  bytes[static_cast<size_t>(8192 + slab.slot * last.format.slab_bytes())] ^= std::byte{1};
  MemoryEnv env({{kPath, bytes}});
  const Status refused = Split(&env).status();
  EXPECT_EQ(refused.code(), StatusCode::kCorrupt);
  EXPECT_THAT(refused.message(), HasSubstr("/disk/session: page 0 of slot"));
  EXPECT_THAT(refused.message(), HasSubstr("delete the session"));
  EXPECT_EQ(env.Contents()[kPath], bytes);
}

}  // namespace
}  // namespace headway::kv
