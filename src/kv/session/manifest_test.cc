#include "kv/session/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/env.h"
#include "base/random.h"
#include "kv/session/session_claim.h"
#include "kv/testing/memory_env.h"
#include "kv/testing/session_model.h"
#include "kv/testing/slab_test_util.h"

namespace headway::kv {
namespace {

using testing::HasSubstr;

constexpr int64_t kSlots = 1000;

// Some pages of each head are of kept tokens, as many of all heads: the others are longer by as
// many tokens as were let go of.
SavedKept RandomKept(Random* random, Manifest* manifest) {
  const CacheFormat& format = manifest->format;
  const int slots = format.page.page_slots;
  const int64_t pages = std::ssize(manifest->tokens) / slots;
  const int64_t kept_pages = random->Below(pages + 1), left_out = random->Below(5);
  const int64_t open = random->Below(slots);
  SavedKept kept;
  kept.policy = "some (budget 7)";
  kept.from = (kept_pages + left_out) * slots + random->Below(slots);
  for (int64_t i = 0; i < left_out * slots + open; ++i) manifest->tokens.push_back(3);
  for (int table = 0; table < format.layers * format.kv_heads; ++table) {
    std::vector<int32_t>& positions = kept.positions.emplace_back();
    int64_t left = kept_pages * slots;
    const int64_t all = (kept_pages + left_out) * slots;
    for (int64_t i = 0; left > 0; ++i) {
      if (random->Below(all - i) >= left) continue;
      positions.push_back(static_cast<int32_t>(i));
      --left;
    }
  }
  kept.open.resize(static_cast<size_t>(OpenPageBytes(format, std::ssize(manifest->tokens))));
  FillRandom(random, kept.open.data(), kept.open.size());
  return kept;
}

// A manifest with all segments, in a random order, in random slots.
Manifest RandomManifest(Random* random) {
  Manifest manifest;
  manifest.format = RandomFormat(random);
  manifest.weights_hash = random->Next();
  manifest.keys_rotated = random->Below(2) == 0;
  manifest.approximate = random->Below(2) == 0;
  const CacheFormat& format = manifest.format;
  const int64_t closed = random->Below(12);
  for (int64_t i = 0; i < closed * format.page.page_slots; ++i) {
    manifest.tokens.push_back(static_cast<TokenId>(random->Below(100000)));
  }
  int64_t slot = random->Below(10);
  for (int layer = 0; layer < format.layers; ++layer) {
    for (int group = 0; group < format.head_groups(layer); ++group) {
      for (int64_t done = 0; done < closed; done += format.segment_pages) {
        SavedSlab slab;
        slab.layer = layer;
        slab.group = group;
        slab.segment = static_cast<int32_t>(done / format.segment_pages);
        slab.pages = static_cast<int32_t>(std::min<int64_t>(format.segment_pages, closed - done));
        slab.slot = slot;
        slot += 1 + random->Below(2);
        for (int page = 0; page < slab.pages; ++page) slab.checksums.push_back(random->Next());
        manifest.slabs.push_back(std::move(slab));
      }
    }
  }
  if (ModelsKept(format)) manifest.kept = RandomKept(random, &manifest);
  manifest.note.assign(static_cast<size_t>(random->Below(100)), '\xff');
  manifest.model_config.assign(static_cast<size_t>(random->Below(100)), '\n');
  for (size_t i = manifest.slabs.size(); i > 1; --i) {
    std::swap(manifest.slabs[i - 1],
              manifest.slabs[static_cast<size_t>(random->Below(static_cast<int64_t>(i)))]);
  }
  return manifest;
}

// Two layers, the second with a window of 24 tokens; two groups; 10 pages of 8 tokens in segments
// of 3.
Manifest PlainManifest() {
  Manifest manifest;
  CacheFormat& format = manifest.format;
  format.layers = 2;
  format.kv_heads = 3;
  format.group_heads = 2;
  format.segment_pages = 3;
  format.page.page_slots = 8;
  format.page.head_dim = 16;
  format.window = {0, 24};
  manifest.tokens.assign(80, 5);
  manifest.note = "a note";
  int64_t slot = 0;
  for (int layer = 0; layer < 2; ++layer) {
    for (int group = 0; group < 2; ++group) {
      for (int segment = 0; segment < 4; ++segment) {
        const int pages = segment < 3 ? 3 : 1;
        manifest.slabs.push_back({layer, group, segment, pages, slot++,
                                  std::vector<uint64_t>(static_cast<size_t>(pages), 1)});
      }
    }
  }
  return manifest;
}

TEST(ManifestTest, ComesBackFromItsBytes) {
  Random random(11);
  int kept = 0;
  for (int round = 0; round < 200; ++round) {
    const Manifest manifest = RandomManifest(&random);
    const std::vector<std::byte> bytes = EncodeManifest(manifest);
    const Result<Manifest> decoded = DecodeManifest(bytes, kSlots);
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    EXPECT_EQ(decoded->weights_hash, manifest.weights_hash);
    EXPECT_EQ(decoded->keys_rotated, manifest.keys_rotated);
    EXPECT_EQ(decoded->approximate, manifest.approximate);
    EXPECT_EQ(decoded->format.slab_bytes(), manifest.format.slab_bytes());
    EXPECT_EQ(decoded->format.window, manifest.format.window);
    EXPECT_EQ(decoded->tokens, manifest.tokens);
    EXPECT_EQ(decoded->note, manifest.note);
    ASSERT_EQ(decoded->kept.has_value(), manifest.kept.has_value());
    if (manifest.kept.has_value()) {
      ++kept;
      EXPECT_EQ(decoded->kept->policy, manifest.kept->policy);
      EXPECT_EQ(decoded->kept->from, manifest.kept->from);
      EXPECT_EQ(decoded->kept->positions, manifest.kept->positions);
      EXPECT_EQ(decoded->kept->open, manifest.kept->open);
    }
    ASSERT_EQ(decoded->slabs.size(), manifest.slabs.size());
    for (size_t i = 0; i < manifest.slabs.size(); ++i) {
      EXPECT_EQ(decoded->slabs[i].slot, manifest.slabs[i].slot);
      EXPECT_EQ(decoded->slabs[i].checksums, manifest.slabs[i].checksums);
    }
    EXPECT_EQ(EncodeManifest(*decoded), bytes);
  }
  EXPECT_GT(kept, 10);
}

TEST(ManifestTest, RefusesWhatIsCutShortOrLongerAndSurvivesFlips) {
  Random random(12);
  for (int round = 0; round < 30; ++round) {
    const std::vector<std::byte> bytes = EncodeManifest(RandomManifest(&random));
    for (size_t size = 0; size < bytes.size(); size += 1 + static_cast<size_t>(random.Below(9))) {
      // A copy of that size, so that a sanitizer sees a read past it.
      const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<int64_t>(size));
      EXPECT_EQ(DecodeManifest(cut, kSlots).status().code(), StatusCode::kCorrupt);
    }
    std::vector<std::byte> longer = bytes;
    longer.push_back(std::byte{0});
    EXPECT_EQ(DecodeManifest(longer, kSlots).status().code(), StatusCode::kCorrupt);
    for (int flip = 0; flip < 200; ++flip) {
      std::vector<std::byte> flipped = bytes;
      const auto at = static_cast<size_t>(random.Below(static_cast<int64_t>(bytes.size())));
      flipped[at] ^= static_cast<std::byte>(1 << random.Below(8));
      const Result<Manifest> decoded = DecodeManifest(flipped, kSlots);
      if (decoded.ok()) {
        EXPECT_EQ(EncodeManifest(*decoded), flipped);
      }
    }
  }
}

// A change to the plain manifest, and what the refusal says of it.
struct Lie {
  std::function<void(Manifest*)> tell;
  std::string answer;
};

std::vector<Lie> Lies() {
  return {
      {[](Manifest* m) { m->format.layers = 0; }, "layers is 0"},
      {[](Manifest* m) { m->format.layers = std::numeric_limits<int>::max(); }, "layers is"},
      {[](Manifest* m) {
         m->format.layers = 1;
         m->format.window.pop_back();
       },
       "no layer 1"},
      {[](Manifest* m) {
         m->format.layers = 3;
         m->format.window.push_back(0);
       },
       "layer 2, head group 0 lacks segment 3"},
      {[](Manifest* m) { m->format.kv_heads = -1; }, "kv_heads is -1"},
      {[](Manifest* m) { m->format.kv_heads = 5; }, "lacks segment"},
      {[](Manifest* m) { m->format.group_heads = 0; }, "group_heads is 0"},
      {[](Manifest* m) { m->format.segment_pages = 0; }, "segment_pages is 0"},
      {[](Manifest* m) { m->format.segment_pages = 4; }, "segment"},
      {[](Manifest* m) { m->format.page.page_slots = 0; }, "page_slots is 0"},
      {[](Manifest* m) { m->format.page.page_slots = 7; }, "whole pages"},
      {[](Manifest* m) { m->format.page.head_dim = -8; }, "head_dim is -8"},
      {[](Manifest* m) { m->format.window = {1}; }, "1 windows"},
      {[](Manifest* m) { m->format.window[0] = -1; }, "window is -1"},
      {[](Manifest* m) {
         m->format.group_heads = kMaxHeads;
         m->format.segment_pages = kMaxSegmentPages;
         m->format.page.page_slots = kMaxPageSlots;
         m->format.page.head_dim = kMaxHeadDim;
       },
       "larger than"},
      {[](Manifest* m) { m->tokens.pop_back(); }, "whole pages"},
      {[](Manifest* m) { m->tokens.resize(72); }, "segment"},
      {[](Manifest* m) { m->tokens.resize(88); }, "pages, not 2"},
      {[](Manifest* m) { m->tokens[7] = -2; }, "no token -2"},
      {[](Manifest* m) { m->slabs[3].slot = 16; }, "slot 16 is not one of 16"},
      {[](Manifest* m) { m->slabs[3].slot = -1; }, "slot -1"},
      {[](Manifest* m) { m->slabs[3].slot = 9; }, "slot 9 is used twice"},
      {[](Manifest* m) { m->slabs[3].layer = 2; }, "no layer 2"},
      {[](Manifest* m) { m->slabs[3].layer = -1; }, "no layer -1"},
      {[](Manifest* m) { m->slabs[3].group = 2; }, "head group 2"},
      {[](Manifest* m) { m->slabs[3].segment = -1; }, "segment -1"},
      {[](Manifest* m) { m->slabs[3].segment = 4; }, "segment"},
      {[](Manifest* m) { m->slabs[3].segment = 2; }, "segment 2 where"},
      {[](Manifest* m) { m->slabs[2].pages = 2; }, "3 checksums for 2 pages"},
      {[](Manifest* m) {
         m->slabs[2].pages = 2;
         m->slabs[2].checksums.pop_back();
       },
       "2 pages, not 3"},
      {[](Manifest* m) {
         m->slabs[3].pages = 2;
         m->slabs[3].checksums.push_back(1);
       },
       "2 pages, not 1"},
      {[](Manifest* m) { m->slabs.erase(m->slabs.begin()); }, "lacks segment 0"},
      {[](Manifest* m) { m->slabs.erase(m->slabs.begin() + 1); }, "segment"},
      {[](Manifest* m) { m->slabs.erase(m->slabs.begin() + 3); }, "segment"},
      {[](Manifest* m) {
         m->slabs.push_back(m->slabs[3]);
         m->slabs.back().slot = 16;
       },
       ""},
      {[](Manifest* m) { m->slabs.clear(); }, "lacks segment 3"},
      {[](Manifest* m) { m->tokens.clear(); }, "segment"},
  };
}

TEST(ManifestTest, RefusesLies) {
  ASSERT_TRUE(CheckManifest(PlainManifest(), 16).ok())
      << CheckManifest(PlainManifest(), 16).message();
  const std::vector<Lie> lies = Lies();
  for (size_t i = 0; i < lies.size(); ++i) {
    SCOPED_TRACE(i);
    Manifest manifest = PlainManifest();
    lies[i].tell(&manifest);
    const Status status = CheckManifest(manifest, 16);
    EXPECT_EQ(status.code(), StatusCode::kCorrupt);
    EXPECT_THAT(status.message(), HasSubstr(lies[i].answer));
    const Status decoded = DecodeManifest(EncodeManifest(manifest), 16).status();
    EXPECT_EQ(decoded.code(), StatusCode::kCorrupt);
  }
}

// One layer of two heads, and 46 tokens in pages of 8: of 27, the first head keeps 16, the other
// none; the pages behind have 16 each, and 6 are in open pages.
Manifest KeptManifest() {
  Manifest manifest;
  manifest.format.layers = 1;
  manifest.format.kv_heads = 2;
  manifest.format.segment_pages = 3;
  manifest.format.page.page_slots = 8;
  manifest.format.page.head_dim = 16;
  manifest.tokens.assign(46, 5);
  manifest.slabs = {{0, 0, 0, 3, 0, {1, 1, 1}}, {0, 0, 1, 1, 1, {1}}, {0, 1, 0, 2, 2, {1, 1}}};
  SavedKept& kept = manifest.kept.emplace();
  kept.policy = "snapkv";
  kept.from = 27;
  kept.positions = {{0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 20, 21, 22, 23}, {}};
  kept.open.resize(2 * 2 * 6 * 32);
  return manifest;
}

TEST(ManifestTest, RefusesLiesAboutWhatIsKept) {
  ASSERT_TRUE(CheckManifest(KeptManifest(), 4).ok()) << CheckManifest(KeptManifest(), 4).message();
  const std::vector<Lie> lies = {
      {[](Manifest* m) { m->kept.reset(); }, "do not fill whole pages"},
      {[](Manifest* m) { m->kept->policy.clear(); }, "in words"},
      {[](Manifest* m) { m->kept->policy = "two\nlines"; }, "in words"},
      {[](Manifest* m) { m->kept->policy.assign(5000, 'x'); }, "in words"},
      {[](Manifest* m) { m->kept->from = -1; }, "kept of -1, and there are 46"},
      {[](Manifest* m) { m->kept->from = 48; }, "kept of 48, and there are 46"},
      {[](Manifest* m) { m->kept->from = 23; }, "position 20 follows"},
      {[](Manifest* m) { m->kept->from = 32; }, "segment"},
      {[](Manifest* m) { m->kept->from = std::numeric_limits<int64_t>::min(); }, "tokens are kept"},
      {[](Manifest* m) { m->kept->positions.pop_back(); }, "of 1 heads, not of 2"},
      {[](Manifest* m) { m->kept->positions[0].pop_back(); }, "whole pages"},
      {[](Manifest* m) { m->kept->positions[0][0] = -1; }, "position -1"},
      {[](Manifest* m) { m->kept->positions[0][15] = 24; }, "position 24"},
      {[](Manifest* m) { m->kept->positions[0][3] = 2; }, "position 2 follows 2"},
      {[](Manifest* m) {
         m->kept->positions[1].assign(m->kept->positions[0].begin(),
                                      m->kept->positions[0].begin() + 8);
       },
       "segment"},
      {[](Manifest* m) { m->kept->open.pop_back(); }, "open pages take 767 bytes, not 768"},
      {[](Manifest* m) { m->tokens.pop_back(); }, "open pages"},
      {[](Manifest* m) { m->format.window = {24}; }, "windows"},
      {[](Manifest* m) { m->format.group_heads = 2; }, "in groups"},
      {[](Manifest* m) { m->slabs.pop_back(); }, "lacks segment 0"},
      {[](Manifest* m) { m->slabs[1].slot = 4; }, "slot 4 is not one of 4"},
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    SCOPED_TRACE(i);
    Manifest manifest = KeptManifest();
    lies[i].tell(&manifest);
    const Status status = CheckManifest(manifest, 4);
    EXPECT_EQ(status.code(), StatusCode::kCorrupt);
    EXPECT_THAT(status.message(), HasSubstr(lies[i].answer));
    EXPECT_EQ(DecodeManifest(EncodeManifest(manifest), 4).status().code(), StatusCode::kCorrupt);
  }
}

// Of 80 tokens with a window of 24, a query at 87 (the last that the open page can have held) sees
// 64 to 87: segment 2 (tokens 48 to 71) is needed, 0 and 1 are not.
TEST(ManifestTest, OnlyAWindowExcusesMissingSegments) {
  const auto without = [](int layer, int segments) {
    Manifest manifest = PlainManifest();
    std::erase_if(manifest.slabs, [&](const SavedSlab& slab) {
      return slab.layer == layer && slab.segment < segments;
    });
    return CheckManifest(manifest, 16);
  };
  EXPECT_TRUE(without(1, 1).ok());
  EXPECT_TRUE(without(1, 2).ok());
  EXPECT_THAT(without(1, 3).message(), HasSubstr("layer 1, head group 0 lacks segment 2"));
  EXPECT_THAT(without(0, 1).message(), HasSubstr("layer 0, head group 0 lacks segment 0"));
}

// The fuzzer starts from what it can read (kv_session_seeds makes them again).
TEST(Manifest, SeedsOfTheFuzzerAreOfThisFormat) {
  Env* const env = Env::Default();
  const std::string folder = std::string(HEADWAY_SOURCE_DIR) + "/fuzz/corpus/session/";
  int manifests = 0;
  const Result<std::vector<std::string>> names = env->List(folder);
  ASSERT_TRUE(names.ok()) << names.status().message();
  for (const std::string& name : *names) {
    SCOPED_TRACE(name);
    const Result<std::string> seed = env->ReadFile(folder + name, size_t{1} << 20);
    ASSERT_TRUE(seed.ok()) << seed.status().message();
    const std::span<const std::byte> bytes = std::as_bytes(std::span(*seed)).subspan(1);
    if (name.starts_with("manifest") || name.starts_with("around")) {
      const Result<Manifest> manifest = DecodeManifest(bytes, kSlots);
      EXPECT_TRUE(manifest.ok()) << manifest.status().message();
      ++manifests;
    } else {
      MemoryEnv memory({{"/session", MemoryEnv::Bytes(bytes.begin(), bytes.end())}});
      const Result<Manifest> manifest = InspectSession(&memory, "/session");
      EXPECT_TRUE(manifest.ok()) << manifest.status().message();
    }
  }
  EXPECT_GT(manifests, 0);
}

// What is said of the heads of each rank, whatever heads these are, is together what was said.
TEST(SavedKept, IsCutByHeadsAndJoined) {
  Random random(11);
  for (int round = 0; round < 100; ++round) {
    Manifest manifest = RandomManifest(&random);
    const SavedKept whole = RandomKept(&random, &manifest);
    const int all = manifest.format.kv_heads;
    std::vector<LayerHeads> ranks(1 + static_cast<size_t>(random.Below(3)));
    for (int layer = 0; layer < manifest.format.layers; ++layer) {
      for (LayerHeads& heads : ranks) heads.emplace_back();
      for (int head = 0; head < all; ++head) {
        const auto rank = static_cast<size_t>(random.Below(std::ssize(ranks)));
        ranks[rank].back().push_back(head);
      }
    }
    std::vector<SavedKept> parts;
    for (const LayerHeads& heads : ranks) parts.push_back(PartOfKept(whole, all, heads));
    const SavedKept joined = JoinKept(parts, all, ranks);
    EXPECT_EQ(joined.policy, whole.policy);
    EXPECT_EQ(joined.from, whole.from);
    EXPECT_EQ(joined.positions, whole.positions);
    EXPECT_EQ(joined.open, whole.open);
  }
}

}  // namespace
}  // namespace headway::kv
