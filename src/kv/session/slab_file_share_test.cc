// A session's file that several processes write: here each is a SlabFile of one MemoryEnv.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "kv/testing/memory_env.h"
#include "kv/testing/session_model.h"
#include "kv/testing/slab_test_util.h"

namespace headway::kv {
namespace {

using ::testing::HasSubstr;

const char kPath[] = "/s";

CacheFormat FormatOf(int heads) {
  CacheFormat format;
  format.layers = 1;
  format.kv_heads = heads;
  format.group_heads = 1;
  format.segment_pages = 2;
  format.page.dtype = DType::kBF16;
  format.page.page_slots = 16;
  format.page.head_dim = 64;
  return format;
}

// Of `processes` those that have every `processes`-th head.
SlabFileShare ShareOf(int process, int processes) {
  return {process, processes,
          [=](const SavedSlab& slab) { return slab.group % processes == process; }};
}

// Processes that have some heads of a cache each, which grows and is cut by whole segments.
class Processes {
 public:
  Processes(MemoryEnv* env, const CacheFormat& format, int processes, Random* random)
      : env_(*env), format_(format), random_(*random), bytes_(SlabBuffer(env, format)) {
    members_.resize(static_cast<size_t>(processes));
    Result<std::unique_ptr<SessionClaim>> claim = SessionClaim::Take(env, kPath);
    if (!Ok(claim.status())) return;
    const bool exists = (*claim)->exists();
    Member& first = members_.front();
    Result<std::unique_ptr<SlabFile>> file =
        exists ? SlabFile::OpenSession(std::move(*claim), &first.budget, ShareOf(0, processes))
               : SlabFile::CreateSession(std::move(*claim), format, &first.budget,
                                         ShareOf(0, processes));
    if (!Ok(file.status())) return;
    first.file = std::move(*file);
    Result<SessionMark> mark(SessionMark{});
    if (processes > 1) mark = first.file->Invite();
    if (!Ok(mark.status())) return;
    for (int process = 1; process < processes; ++process) {
      Member& member = members_[static_cast<size_t>(process)];
      file = SlabFile::Join(env, kPath, *mark, format, &member.budget, ShareOf(process, processes));
      if (!Ok(file.status())) return;
      member.file = std::move(*file);
    }
    for (const SavedSlab& slab : first.file->manifest().slabs) MemberOf(slab).slabs.push_back(slab);
    segments_ = std::ssize(first.file->manifest().slabs) / format.kv_heads;
  }
  // The first ends last.
  ~Processes() {
    while (!members_.empty()) members_.pop_back();
  }

  // A segment more, or less, of every head.
  void Change() {
    if (segments_ > 0 && random_.Below(3) == 0) {
      --segments_;
      for (Member& member : members_) {
        std::erase_if(member.slabs, [&](const SavedSlab& slab) {
          if (slab.segment < segments_) return false;
          member.file->Free(slab.slot);
          return true;
        });
      }
      return;
    }
    for (int head = 0; head < format_.kv_heads; ++head) {
      SavedSlab slab{0, head, static_cast<int32_t>(segments_), format_.segment_pages, 0, {}};
      Member& member = MemberOf(slab);
      // Some use more of the file than others.
      std::vector<int64_t> beside;
      for (int64_t i = random_.Below(6); i > 0; --i) beside.push_back(*member.file->Allocate());
      const Result<int64_t> slot = member.file->Allocate();
      if (!Ok(slot.status())) return;
      for (const int64_t other : beside) member.file->Free(other);
      slab.slot = *slot;
      FillRandom(&random_, bytes_.data(), bytes_.size());
      Result<std::vector<uint64_t>> sums =
          member.file->WritePages(*slot, 1, 0, format_.segment_pages, bytes_.data());
      if (!Ok(sums.status())) return;
      slab.checksums = std::move(*sums);
      member.slabs.push_back(slab);
    }
    ++segments_;
  }
  // All of it goes.
  void Clear() {
    for (Member& member : members_) {
      for (const SavedSlab& slab : member.slabs) member.file->Free(slab.slot);
      member.slabs.clear();
    }
    segments_ = 0;
  }
  // Of the first one's commit all hear, or it is given up once they have told their part, of which
  // they hear or not.
  void Save(uint64_t number, CommitOutcome outcome) {
    const bool goes_on = outcome == CommitOutcome::kDone;
    Manifest manifest;
    manifest.format = format_;
    manifest.weights_hash = number;
    manifest.tokens.resize(static_cast<size_t>(segments_ * format_.segment_tokens()));
    for (Member& member : members_) {
      Manifest part;
      part.slabs = member.slabs;
      manifest.slabs.insert(manifest.slabs.end(), part.slabs.begin(), part.slabs.end());
      if (&member != &members_.front()) Ok(member.file->Offer(part));
    }
    if (goes_on) Ok(members_.front().file->Commit(manifest));
    EXPECT_EQ(members_.front().file->TakeOutcome(),
              goes_on ? CommitOutcome::kDone : CommitOutcome::kNotBegun);
    for (Member& member : members_) {
      if (&member == &members_.front()) continue;
      member.file->Settle(outcome);
      // What is kept of before is given back.
      const auto held = static_cast<int64_t>(member.slabs.size());
      EXPECT_TRUE(!goes_on || member.budget.used() == held * format_.slab_bytes());
    }
  }
  // Of a process's budget.
  int64_t Used(size_t process) const { return members_[process].budget.used(); }
  void End(size_t process) { members_[process].file.reset(); }

 private:
  struct Member {
    Budget budget{"disk", kUnlimited};
    std::unique_ptr<SlabFile> file;
    std::vector<SavedSlab> slabs;
  };

  static bool Ok(const Status& status) {
    EXPECT_TRUE(status.ok()) << status.message();
    return status.ok();
  }
  Member& MemberOf(const SavedSlab& slab) {
    return members_[static_cast<size_t>(slab.group) % members_.size()];
  }

  MemoryEnv& env_;
  const CacheFormat format_;
  Random& random_;
  AlignedBuffer bytes_;
  std::deque<Member> members_;
  int64_t segments_ = 0;
};

// The number of what a disk holds, whose slabs are checked; 0: there is nothing.
uint64_t NumberOn(const MemoryEnv::Disk& disk) {
  if (!disk.contains(kPath)) return 0;
  MemoryEnv env(disk);
  Budget budget("disk", kUnlimited);
  const Result<std::unique_ptr<SlabFile>> file = OpenSessionAt(&env, kPath, &budget);
  EXPECT_TRUE(file.ok()) << file.status().message();
  if (!file.ok()) return ~uint64_t{0};
  const Status whole = VerifySession(&env, file->get(), (*file)->manifest());
  EXPECT_TRUE(whole.ok()) << whole.message();
  return (*file)->manifest().weights_hash;
}

// Whatever the numbers of processes that follow one another, and whenever the machine stops.
TEST(SlabFileShareTest, HoldsWhatWasCommittedLastOrBefore) {
  for (uint64_t seed = 1; seed <= 6 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    MemoryEnv::Disk disk;
    uint64_t number = 0;
    for (const int processes : {2, 3, 1, 6, 2}) {
      MemoryEnv env(disk);
      {
        Processes group(&env, FormatOf(6), processes, &random);
        if (testing::Test::HasFailure()) return;
        for (int save = 0; save < 6; ++save) {
          for (int64_t i = random.Below(5); i >= 0; --i) group.Change();
          const size_t before = env.changes();
          const bool goes_on = random.Below(4) > 0;
          group.Save(number + 1, goes_on                ? CommitOutcome::kDone
                                 : random.Below(2) == 0 ? CommitOutcome::kUnknown
                                                        : CommitOutcome::kNotBegun);
          group.Change();  // what is not saved yet
          for (int crash = 0; crash < 6; ++crash) {
            const auto at =
                before +
                static_cast<size_t>(random.Below(static_cast<int64_t>(env.changes() - before) + 1));
            const uint64_t found = NumberOn(env.AfterCrash(at, &random));
            EXPECT_TRUE(found == number || (goes_on && found == number + 1)) << found;
          }
          number += goes_on ? 1 : 0;
          EXPECT_EQ(NumberOn(env.Contents()), number);  // all processes are killed
        }
      }
      disk = env.Contents();
      EXPECT_EQ(NumberOn(disk), number);
    }
  }
}

// Slots are given back, whoever had them before: a file that is saved again and again does not
// grow.
TEST(SlabFileShareTest, SlotsAreUsedAgain) {
  Random random(3);
  MemoryEnv env;
  const CacheFormat format = FormatOf(4);
  {
    Processes two(&env, format, 2, &random);
    for (int i = 0; i < 8; ++i) two.Change();
    two.Save(1, CommitOutcome::kDone);
  }
  size_t largest = 0;
  for (int round = 0; round < 40; ++round) {
    const int processes = 1 + static_cast<int>(random.Below(4));
    Processes group(&env, format, processes == 3 ? 4 : processes, &random);
    for (int i = 0; i < 6; ++i) {
      group.Change();
      group.Save(static_cast<uint64_t>(round), CommitOutcome::kDone);
    }
    largest = std::max(largest, env.Contents()[kPath].size());
  }
  const Manifest manifest = *InspectSession(&env, kPath);
  // Twice what is held, and what slots of some process are idle.
  const auto held = manifest.slabs.size() * static_cast<size_t>(format.slab_bytes());
  EXPECT_LT(env.Contents()[kPath].size(), 4 * held + (size_t{1} << 20)) << held;
  EXPECT_GE(largest, held);
}

// What a save that was given up had kept is given back, however many there are, and what an earlier
// one still keeps stays so.
TEST(SlabFileShareTest, SavesThatAreGivenUpKeepNothing) {
  Random random(7);
  MemoryEnv env;
  const CacheFormat format = FormatOf(4);
  Processes two(&env, format, 2, &random);
  two.Change();
  two.Save(1, CommitOutcome::kDone);
  two.Clear();
  const int64_t saved = two.Used(1);
  EXPECT_GT(saved, 0);
  for (int round = 0; round < 10; ++round) {
    two.Change();
    two.Save(2, CommitOutcome::kNotBegun);
    two.Clear();
    ASSERT_EQ(two.Used(1), saved) << round;
  }
  two.Change();
  two.Save(2, CommitOutcome::kUnknown);
  two.Clear();
  EXPECT_EQ(two.Used(1), 2 * saved) << "a crash may bring back either";
  two.Change();
  two.Save(3, CommitOutcome::kNotBegun);
  two.Clear();
  EXPECT_EQ(two.Used(1), 2 * saved);
  two.Save(4, CommitOutcome::kDone);
  EXPECT_EQ(two.Used(1), 0);
  EXPECT_EQ(NumberOn(env.Contents()), 4u);
}

TEST(SlabFileShareTest, ItsLockIsThatOfAllProcesses) {
  Random random(4);
  MemoryEnv env;
  const auto in_use = [&] {
    return SessionClaim::Take(&env, kPath).status().message().find("in use") != std::string::npos;
  };
  Processes two(&env, FormatOf(4), 2, &random);
  EXPECT_TRUE(in_use());
  two.Change();
  two.Save(1, CommitOutcome::kDone);
  EXPECT_TRUE(in_use());
  two.End(0);
  EXPECT_TRUE(in_use()) << "the other one may still write";
  two.End(1);
  EXPECT_FALSE(in_use());
}

// Whoever has the file by then does not lose what it has written behind the end of this one's.
TEST(SlabFileShareTest, WithoutItsLockNothingIsCut) {
  Random random(6);
  MemoryEnv::Disk disk;
  {
    MemoryEnv env;
    Processes one(&env, FormatOf(2), 1, &random);
    one.Change();
    one.Save(1, CommitOutcome::kDone);
    disk = env.Contents();
  }
  disk[kPath].resize(disk[kPath].size() + (size_t{1} << 20));
  MemoryEnv env(disk);
  Budget budget("disk", kUnlimited);
  Result<std::unique_ptr<SlabFile>> first =
      SlabFile::OpenSession(std::move(*SessionClaim::Take(&env, kPath)), &budget, ShareOf(0, 2));
  ASSERT_TRUE(first.ok());
  env.RefuseSharing();
  EXPECT_THAT((*first)->Invite().status().message(), HasSubstr("in use"));
  first->reset();
  EXPECT_EQ(env.Contents(), disk);
}

TEST(SlabFileShareTest, AnotherFileIsToldOf) {
  Random random(5);
  const CacheFormat format = FormatOf(2);
  MemoryEnv::Disk disk;
  {
    MemoryEnv env;
    Processes two(&env, format, 2, &random);
    two.Change();
    two.Save(1, CommitOutcome::kDone);
    disk = env.Contents();
  }
  MemoryEnv here(disk), there(disk);
  Budget budget("disk", kUnlimited);
  Result<std::unique_ptr<SlabFile>> first =
      SlabFile::OpenSession(std::move(*SessionClaim::Take(&here, kPath)), &budget, ShareOf(0, 2));
  ASSERT_TRUE(first.ok());
  const Result<SessionMark> mark = (*first)->Invite();
  ASSERT_TRUE(mark.ok());
  const auto join = [&](MemoryEnv* env, const SessionMark& by) {
    return SlabFile::Join(env, kPath, by, format, &budget, ShareOf(1, 2)).status();
  };
  EXPECT_TRUE(join(&here, *mark).ok());
  EXPECT_THAT(join(&there, *mark).message(), HasSubstr("/s is another file than the first"));
  MemoryEnv empty;
  EXPECT_THAT(join(&empty, *mark).message(), HasSubstr("cannot open /s: No such file"));
  SessionMark later = *mark;
  ++later.generation;
  EXPECT_THAT(join(&here, later).message(), HasSubstr("in another state than the first"));
}

}  // namespace
}  // namespace headway::kv
