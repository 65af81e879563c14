// What is decided on the host, before anything is launched: needs no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "kernels/cuda/key_span.h"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/prefill.h"

namespace headway::cuda {
namespace {

alignas(16) std::byte memory[64] = {};

constexpr auto kExact = PrefillPiece::By::kExact;
constexpr auto kTiles = PrefillPiece::By::kTiles;

constexpr PageFormat kFormat = {.dtype = DType::kBF16, .page_slots = 64, .head_dim = 128};

// 256 queries at the end of 256 keys, which lie side by side.
AttentionItem OwnKeys() {
  AttentionItem item;
  item.q = memory;
  item.q_stride = 512;
  item.tokens = 256;
  item.keys.pages = {.k = memory,
                     .v = memory,
                     .page_stride = static_cast<int64_t>(kFormat.bytes()),
                     .head_stride = 4096,
                     .count = 256};
  return item;
}

// The same against 256 keys before them.
AttentionItem EarlierKeys() {
  AttentionItem item = OwnKeys();
  item.q_position = 256;
  return item;
}

std::vector<PrefillPiece> Pieces(const AttentionItem& item, const AttentionParams& params = {}) {
  return PrefillPieces(kFormat, DType::kBF16, 4, params, item);
}

TEST(PrefillPiecesTest, OnePieceWhereAPlanFits) {
  EXPECT_EQ(Pieces(OwnKeys()), (std::vector<PrefillPiece>{{0, 256, true}}));
  EXPECT_EQ(Pieces(EarlierKeys()), (std::vector<PrefillPiece>{{0, 256, false}}));
  // Keys before the queries' own are taken with them.
  AttentionItem item = OwnKeys();
  item.keys.pages.count = 512;
  item.q_position = 256;
  EXPECT_EQ(Pieces(item), (std::vector<PrefillPiece>{{0, 512, true}}));
  // A plan for 384 keys may read what lies behind 300.
  item = EarlierKeys();
  item.q_position = 300;
  item.keys.pages.count = 300;
  item.keys.pages.readable = 384;
  EXPECT_EQ(Pieces(item), (std::vector<PrefillPiece>{{0, 300, false}}));
}

TEST(PrefillPiecesTest, CutsWhereAPlanWouldReadTooFar) {
  AttentionItem item = EarlierKeys();
  item.q_position = 640;
  item.keys.pages.count = 640;
  EXPECT_EQ(Pieces(item), (std::vector<PrefillPiece>{{0, 512, false}, {512, 128, false}}));
  // No plan fits 44 keys, which the tile kernel takes, unless it would take all.
  item.q_position = 300;
  item.keys.pages.count = 300;
  EXPECT_EQ(Pieces(item), (std::vector<PrefillPiece>{{0, 256, false}, {256, 44, false, kTiles}}));
  PageFormat odd = kFormat;
  odd.page_slots = 63;  // which it does not know
  item.keys.pages.page_stride = static_cast<int64_t>(odd.bytes());
  EXPECT_TRUE(PrefillPieces(odd, DType::kBF16, 4, {}, item).empty());
  item = EarlierKeys();
  item.keys.pages.count = 44;
  EXPECT_TRUE(Pieces(item).empty());
  // The diagonal is the last piece, behind what a plan for 768 keys does.
  item = OwnKeys();
  item.q_position = 640;
  item.keys.pages.count = 896;
  EXPECT_EQ(Pieces(item), (std::vector<PrefillPiece>{{0, 640, false}, {640, 256, true}}));
}

// Long runs are cut into plans of their own sizes, unless the queries are none.
TEST(PrefillPiecesTest, ManyKeysGoByPlansThatNeedNotBeTold) {
  AttentionItem item = EarlierKeys();
  item.q_position = 200'000;
  PageRun& run = item.keys.pages;
  run.readable = 200'000;
  run.count = 57'344;
  EXPECT_EQ(Pieces(item), (std::vector<PrefillPiece>{{0, 49'152, false}, {49'152, 8'192, false}}));
  run.count = 57'000;  // what is left is too little
  EXPECT_EQ(Pieces(item), (std::vector<PrefillPiece>{{0, 49'152, false}, {49'152, 7'848, false}}));
  run.count = 8'000;
  EXPECT_EQ(Pieces(item), (std::vector<PrefillPiece>{{0, 8'000, false}}));
  run.count = 49'152;
  EXPECT_EQ(Pieces(item), (std::vector<PrefillPiece>{{0, 49'152, false}}));
  run.count = 57'344;
  item.tokens = 250;
  EXPECT_EQ(Pieces(item), (std::vector<PrefillPiece>{{0, 57'344, false}}));
}

TEST(PrefillPiecesTest, AFullSlabIsOnePieceWhateverItsSize) {
  AttentionItem item = EarlierKeys();
  item.q_position = 200'000;
  PageRun& run = item.keys.pages;
  for (const int64_t keys : {16'384 + 64, 100'032, 131'072 - 128}) {
    run.count = run.readable = keys;
    EXPECT_EQ(Pieces(item), (std::vector<PrefillPiece>{{0, keys, false, kExact}}));
    run.readable = keys + 64;  // not full: sizes that come once
    const std::vector<PrefillPiece> pieces = Pieces(item);
    EXPECT_GT(pieces.size(), 1u);
    for (const PrefillPiece& piece : pieces) EXPECT_NE(piece.by, kExact);
  }
  // Others share plans.
  run.count = run.readable = 98'304;
  EXPECT_EQ(Pieces(item), (std::vector<PrefillPiece>{{0, 98'304, false}}));
  run.count = run.readable = 16'384 - 64;
  EXPECT_GT(Pieces(item).size(), 1u);
  run.count = run.readable = 100'030;
  EXPECT_GT(Pieces(item).size(), 1u);
}

TEST(PrefillPiecesTest, CoversTheKeysAndReadsNoFurther) {
  Random random(21);
  int cut = 0;
  int rests = 0;
  for (int round = 0; round < 3000; ++round) {
    AttentionItem item = OwnKeys();
    item.tokens = 1 + random.Below(500);
    item.keys.position = random.Below(100);
    PageRun& run = item.keys.pages;
    run.first_slot = random.Below(100);
    run.count = 1 + random.Below(3000);
    run.readable = random.Below(2) == 0 ? 0 : run.first_slot + run.count + random.Below(1000);
    const int64_t end = item.keys.position + run.count;
    item.q_position = random.Below(2) == 0 ? end - item.tokens : end - 1 + random.Below(5);
    if (item.q_position < 0) continue;
    const std::vector<PrefillPiece> pieces = Pieces(item);
    if (pieces.empty()) continue;
    cut += pieces.size() > 1 ? 1 : 0;
    const int64_t readable = std::max(run.readable, run.first_slot + run.count) - run.first_slot;
    int64_t begin = 0;
    ASSERT_NE(pieces.front().by, kTiles);
    for (const PrefillPiece& piece : pieces) {
      ASSERT_EQ(piece.begin, begin);
      if (piece.by == kTiles) {
        // The last of what all queries see, and less than the smallest plan.
        ASSERT_EQ(begin + piece.count, run.count);
        ASSERT_LT(piece.count, 128);
        ASSERT_GT(begin + SdpaBucket(piece.count), readable);
        ++rests;
      } else {
        ASSERT_EQ(piece.by, PrefillPiece::By::kBucket);
        ASSERT_LE(begin + SdpaBucket(piece.count), readable);
      }
      begin += piece.count;
      const bool all_seen = item.keys.position + begin - 1 <= item.q_position;
      ASSERT_EQ(piece.causal, !all_seen);
      if (piece.causal) {
        ASSERT_EQ(begin, run.count);
        ASSERT_LE(item.tokens, piece.count);
        // The last query sees the last key and no more.
        ASSERT_EQ(item.q_position + item.tokens, end);
      }
    }
    ASSERT_EQ(begin, run.count);
  }
  EXPECT_GT(cut, 100);
  EXPECT_GT(rests, 100);
}

TEST(PrefillPiecesTest, LeavesTheRest) {
  AttentionParams params;
  params.softcap = 30.0f;
  EXPECT_TRUE(Pieces(OwnKeys(), params).empty());
  params = {};
  params.window = 256;  // the last query sees just all
  EXPECT_FALSE(Pieces(OwnKeys(), params).empty());
  EXPECT_TRUE(Pieces(EarlierKeys(), params).empty());
  params.window = 255;
  EXPECT_TRUE(Pieces(OwnKeys(), params).empty());
  params.window = 512;
  EXPECT_FALSE(Pieces(EarlierKeys(), params).empty());

  AttentionItem item = OwnKeys();
  item.tokens = 64;
  item.q_position = 192;
  EXPECT_TRUE(Pieces(item).empty()) << "few tokens";
  item = OwnKeys();
  item.q_position = 100;
  EXPECT_TRUE(Pieces(item).empty()) << "the last key is not the last query's";
  item = OwnKeys();
  item.keys.pages.page_stride += 4096;
  EXPECT_TRUE(Pieces(item).empty()) << "gaps between pages";
  item = OwnKeys();
  const int32_t position = 0;
  item.keys.positions = &position;
  EXPECT_TRUE(Pieces(item).empty()) << "keys at any positions";
  item = OwnKeys();
  item.q = memory + 2;
  EXPECT_TRUE(Pieces(item).empty()) << "not on 16 bytes";
  item = OwnKeys();
  item.keys.pages.count = 0;
  EXPECT_TRUE(Pieces(item).empty()) << "no keys";
  EXPECT_TRUE(PrefillPieces(kFormat, DType::kF16, 4, {}, OwnKeys()).empty());
  PageFormat odd = kFormat;
  odd.head_dim = 68;
  EXPECT_TRUE(PrefillPieces(odd, DType::kBF16, 4, {}, OwnKeys()).empty());
}

// By the definition, key by key.
bool Sees(int64_t query, int64_t key, int64_t window) {
  return key <= query && (window == 0 || key > query - window);
}

TEST(KeySpanTest, AgreesWithTheDefinition) {
  Random random(22);
  for (int round = 0; round < 20000; ++round) {
    const auto first = static_cast<int32_t>(random.Below(40));
    const auto count = static_cast<int32_t>(random.Below(30));
    std::vector<int32_t> positions;
    int32_t next = first;
    const bool gaps = random.Below(2) == 0;
    for (int32_t i = 0; i < count; ++i) {
      positions.push_back(next);
      next += gaps ? 1 + static_cast<int32_t>(random.Below(4)) : 1;
    }
    const KeyPositions keys = {gaps ? -7 : first, count, gaps ? positions.data() : nullptr};
    const int64_t first_query = random.Below(120);
    const int64_t last_query = first_query + random.Below(20);
    const int64_t window = random.Below(3) == 0 ? 0 : 1 + random.Below(60);
    const KeySpan any = SeenByAny(keys, first_query, last_query, window);
    const KeySpan all = SeenByAll(keys, first_query, last_query, window);
    ASSERT_LE(0, any.begin);
    ASSERT_LE(any.begin, any.end);
    ASSERT_LE(any.end, count);
    for (int32_t key = 0; key < count; ++key) {
      const int32_t at = positions[static_cast<size_t>(key)];
      ASSERT_EQ(keys.At(key), at);
      bool by_any = false;
      bool by_all = true;
      for (int64_t query = first_query; query <= last_query; ++query) {
        by_any = by_any || Sees(query, at, window);
        by_all = by_all && Sees(query, at, window);
      }
      if (by_any) {
        ASSERT_TRUE(any.begin <= key && key < any.end);
      }
      ASSERT_EQ(all.begin <= key && key < all.end, by_all);
    }
    const bool some = any.begin < any.end;
    if (some) {
      ASSERT_LE(keys.At(any.end - 1), last_query);
      ASSERT_TRUE(window == 0 || keys.At(any.begin) > first_query - window);
    }
  }
}

// An item of encoded pages, of `heads` heads, and the memory for what is decoded.
struct Encoded {
  explicit Encoded(int heads) {
    format.page_slots = 5;
    format.encoding = Encoding::kInt4;
    memory_for.limits.group = 4;
    memory_for.limits.query_heads = 32;
    item.q_position = 1'000'000;
    item.heads = heads;
    item.o = &number;
    item.lse = &number;
    item.o_stride = item.result_stride = 32 * 128;
    item.lse_stride = 32;
    item.result = &number;
    item.keys.position = 100;
    item.keys.pages.first_slot = 3;
    item.keys.pages.params = memory;
    item.keys.pages.head_stride = int64_t{1} << 30;
    item.keys.pages.params_head_stride = int64_t{1} << 20;
  }
  std::vector<DecodedPiece> Pieces() const { return DecodedPieces(format, 4, item, memory_for); }

  PageFormat format = kFormat;
  PrefillResources memory_for = {memory, memory, {}, nullptr};
  float number = 0;
  AttentionItem item = OwnKeys();
};

// As many heads at a time as there is memory for, each with all keys; of more keys one head, piece
// by piece, which leave to the last what only it may do.
TEST(DecodedPiecesTest, CoverTheHeadsAndTheirKeys) {
  for (const int heads : {1, 3, 8}) {
    for (const bool merge : {false, true}) {
      for (const int64_t keys : {1, 9'000, 40'000, 300'000}) {
        Encoded encoded(heads);
        const AttentionItem& item = encoded.item;
        encoded.item.merge = merge;
        encoded.item.keys.pages.count = keys;
        int head = 0;
        int64_t begin = 0;
        for (const auto& [from, part] : encoded.Pieces()) {
          const PageRun& run = part.keys.pages;
          ASSERT_EQ(part.heads, std::min(keys == 40'000    ? 3
                                         : keys == 300'000 ? 1
                                                           : 8,
                                         heads - head));
          ASSERT_EQ(run.count, std::min(kDecodedSlots, keys - begin));
          EXPECT_EQ(run.params, nullptr);
          EXPECT_EQ(part.keys.position, 100 + begin);
          EXPECT_EQ(part.merge, merge || begin > 0);
          EXPECT_EQ(static_cast<const std::byte*>(part.q) - memory, head * 4 * 128 * 2);
          EXPECT_EQ(part.o - item.o, head * 4 * 128);
          EXPECT_EQ(part.lse - item.lse, head * 4);
          EXPECT_EQ(part.result, begin + run.count < keys
                                     ? nullptr
                                     : static_cast<void*>(reinterpret_cast<std::byte*>(item.o) +
                                                          head * 4 * 128 * 2));
          EXPECT_EQ(from.count, run.count);
          EXPECT_EQ(from.params - memory, head * item.keys.pages.params_head_stride);
          // All that may be read is there.
          EXPECT_LE((part.heads - 1) * run.head_stride + run.readable * 256, run.v - run.k);
          EXPECT_GE(run.readable, run.count);
          begin += run.count;
          if (begin < keys) continue;
          head += part.heads;
          begin = 0;
        }
        EXPECT_EQ(head, heads);
      }
    }
  }
}

TEST(DecodedPiecesTest, AreAttendedToAsPlainPagesAre) {
  Random random(22);
  int cut = 0;
  for (int round = 0; round < 3000; ++round) {
    Encoded encoded(1 + static_cast<int>(random.Below(8)));
    encoded.item.tokens = random.Below(2) == 0 ? 256 : 1 + random.Below(500);
    PageRun& run = encoded.item.keys.pages;
    run.count = 1 + random.Below(random.Below(2) == 0 ? 3000 : kDecodedSlots);
    run.first_slot = random.Below(5);
    run.readable = random.Below(3) == 0 ? 0 : run.first_slot + run.count;
    if (random.Below(2) == 0) run.readable += random.Below(kDecodedSlots);
    AttentionItem plain = encoded.item;
    plain.keys.pages.params = nullptr;
    const PageFormat format = DecodedFormat(encoded.format);
    plain.keys.pages.page_stride = static_cast<int64_t>(format.bytes());
    const std::vector<PrefillPiece> expected = PrefillPieces(format, DType::kBF16, 4, {}, plain);
    for (const DecodedPiece& piece : encoded.Pieces()) {
      ASSERT_EQ(PrefillPieces(format, DType::kBF16, 4, {}, piece.item), expected)
          << run.count << " keys, readable " << run.readable << " from " << run.first_slot;
    }
    cut += expected.size() > 1 ? 1 : 0;
  }
  EXPECT_GT(cut, 300);
}

TEST(CanNormMatVecTest, AsksForOneDtypeOnSixteenBytes) {
  alignas(16) static float numbers[8] = {};
  const MatVecNorm x = {numbers, {NormKind::kRms, numbers, nullptr, 1e-5f}};
  LinearOp op;
  op.weight = {memory, DType::kBF16, 4, 8};
  LinearOp other = op;
  const auto can = [&] { return CanNormMatVec(x, std::vector<LinearOp>{op, other}); };
  EXPECT_TRUE(can());
  other.weight.dtype = DType::kF16;
  EXPECT_FALSE(can());
  other = op;
  other.weight.data = memory + 2;
  EXPECT_FALSE(can());
  other = op;
  other.weight.in = 16;
  EXPECT_FALSE(can());
  op.weight.dtype = other.weight.dtype = DType::kF32;
  EXPECT_FALSE(can());
  op.weight.in = 12;
  other = op;
  EXPECT_FALSE(can());
}

}  // namespace
}  // namespace headway::cuda
