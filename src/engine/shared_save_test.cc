#include "engine/shared_save.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <utility>
#include <vector>

namespace headway {
namespace {

using ::testing::HasSubstr;

// Of two layers of two heads, each rank with one of them.
const std::vector<kv::LayerHeads> kHeads = {{{0}, {1}}, {{1}, {0}}};

kv::Manifest PartOf(int32_t first) {
  kv::Manifest part;
  part.format.layers = 2;
  part.format.kv_heads = 2;
  part.kept.emplace();
  part.kept->positions = {{first}, {first + 1}};
  part.kept->open.resize(8);
  return part;
}

Result<kv::Manifest> Joined(std::vector<kv::Manifest> parts,
                            const std::vector<kv::LayerHeads>& heads = kHeads) {
  SharedSave save;
  save.SetRanks(2);
  for (const int rank : {0, 1}) {
    save.Write(rank, [&] { return std::move(parts[static_cast<size_t>(rank)]); });
  }
  return save.Join(heads);
}

TEST(SharedSaveTest, JoinsWhatRanksKeep) {
  const Result<kv::Manifest> all = Joined({PartOf(10), PartOf(20)});
  ASSERT_TRUE(all.ok()) << all.status().message();
  EXPECT_EQ(all->kept->positions, (std::vector<std::vector<int32_t>>{{10}, {20}, {21}, {11}}));
  EXPECT_EQ(all->kept->open.size(), 16u);
}

// What another process tells is looked at before it is joined.
TEST(SharedSaveTest, RefusesPartsThatDoNotFit) {
  kv::Manifest without = PartOf(0);
  without.kept.reset();
  for (const bool first : {false, true}) {
    EXPECT_THAT(
        Joined({first ? without : PartOf(0), first ? PartOf(0) : without}).status().message(),
        HasSubstr("some ranks alone"));
  }
  kv::Manifest few = PartOf(0), open = PartOf(0);
  few.kept->positions.pop_back();
  open.kept->open.resize(9);
  for (const kv::Manifest& part : {few, open}) {
    EXPECT_THAT(Joined({PartOf(0), part}).status().message(), HasSubstr("does not make up"));
  }
  const std::vector<kv::LayerHeads> wrong[] = {
      {{{0}, {1}}, {{1}, {2}}}, {{{0}, {1}}, {{1}, {-1}}}, {{{0}, {1}}, {{1, 0}}}, {{{0}, {1}}}};
  for (const std::vector<kv::LayerHeads>& heads : wrong) {
    EXPECT_THAT(Joined({PartOf(0), PartOf(0)}, heads).status().message(),
                HasSubstr("does not make up"));
  }
}

// The others wait for each rank where all have written.
TEST(SharedSaveTest, WhatAWriteThrowsIsItsError) {
  SharedSave save;
  save.SetRanks(2);
  save.Write(0, [] { return kv::Manifest(); });
  save.Write(1, []() -> Result<kv::Manifest> { throw std::bad_alloc(); });
  EXPECT_THAT(save.Join(kHeads).status().message(), HasSubstr("no more memory"));
}

}  // namespace
}  // namespace headway
