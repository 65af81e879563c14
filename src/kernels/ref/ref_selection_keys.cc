#include "kernels/ref/ref_selection_keys.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "base/half.h"
#include "kernels/page_codec.h"
#include "kernels/ref/ref_selection.h"
#include "kernels/selection_key_math.h"

namespace headway::ref {

std::vector<float> NumbersOf(const PageFormat& format, const KeyPlace& place) {
  std::vector<float> row;
  if (place.params != nullptr) {
    std::vector<double> exact(static_cast<size_t>(format.head_dim));
    DecodeKeyRow(format, place.page, place.params, place.slot, exact.data());
    for (const double value : exact) row.push_back(static_cast<float>(value));
    return row;
  }
  for (int64_t i = 0; i < format.head_dim; ++i) {
    row.push_back(LoadAsFloat(place.page, place.slot * format.head_dim + i, format.dtype));
  }
  return row;
}

namespace {

namespace math = selection;

// Key `key` of a head, counted from its first block.
std::vector<float> LoadKey(const KeyScoring& scoring, int64_t head, int64_t key) {
  const PageFormat& format = scoring.format;
  const BlockedKeys& keys = scoring.item.keys;
  const BlockPlace place = PlaceOf(keys, head, key / scoring.block_slots);
  const int64_t slot = place.block * scoring.block_slots + key % scoring.block_slots;
  const int64_t page = slot / format.page_slots;
  KeyPlace at = {place.segment->slab + place.head * keys.head_stride + page * keys.page_stride,
                 nullptr, slot % format.page_slots};
  if (format.encoding != Encoding::kNone) {
    at.params = place.segment->slab + keys.params_offset + place.head * keys.params_head_stride +
                page * keys.params_page_stride;
  }
  return NumbersOf(format, at);
}

// Query head `q_head` of a row.
std::vector<float> LoadQuery(const KeyScoring& scoring, int64_t row, int64_t q_head) {
  const SelectItem& item = scoring.item;
  const float* q = static_cast<const float*>(item.q) + row * item.q_stride +
                   q_head * int64_t{scoring.format.head_dim};
  return {q, q + scoring.format.head_dim};
}

float LogitOf(const KeyScoring& scoring, int64_t q_head, const std::vector<float>& key) {
  return math::LogitOf(Dot(LoadQuery(scoring, 0, q_head).data(), key), scoring.scale);
}

// --- Stages

void Turn(float cos, float sin, size_t channel, size_t half, std::vector<float>& row) {
  const math::Pair turned = math::Rotated({row[channel], row[channel + half]}, cos, sin);
  row[channel] = turned.x;
  row[channel + half] = turned.y;
}

// A key without its rotation, and turned back by so many positions more.
std::vector<float> LoadUnrotated(const KeyScoring& scoring, int64_t head, int64_t key,
                                 int64_t back) {
  const KeyRotation& rotated = scoring.item.rotated;
  std::vector<float> row = LoadKey(scoring, head, key);
  if (rotated.rotary_dim == 0) return row;
  const BlockedKeys& keys = scoring.item.keys;
  const SegmentPlace& segment = *PlaceOf(keys, head, key / scoring.block_slots).segment;
  const int64_t in_segment = key % (keys.segment_blocks * scoring.block_slots);
  const auto half = static_cast<size_t>(rotated.rotary_dim / 2);
  for (size_t i = 0; i < half; ++i) {
    const math::Pair angle =
        math::AngleAt(segment.position + in_segment + back, rotated.inv_freq[i]);
    Turn(angle.x, -angle.y, i, half, row);
  }
  return row;
}

// A query as keys without their rotation have it.
std::vector<float> LoadTurned(const KeyScoring& scoring, int64_t row, int64_t q_head) {
  const RopeTable& turn = scoring.item.turn;
  std::vector<float> q = LoadQuery(scoring, row, q_head);
  const auto half = static_cast<size_t>(turn.rotary_dim / 2);
  const size_t at = static_cast<size_t>(row) * half;
  for (size_t i = 0; i < half; ++i) Turn(turn.cos[at + i], turn.sin[at + i], i, half, q);
  return q;
}

// The queries of a block of rows for a KV head.
struct StageScoring {
  const KeyScoring& keys;
  int64_t head;
  std::vector<std::vector<float>> queries;
};
StageScoring OfHead(const KeyScoring& scoring, int64_t head) {
  StageScoring of = {scoring, head, {}};
  const int64_t begin = scoring.row_block * kSelectRows;
  const int64_t end = std::min(scoring.item.rows, begin + kSelectRows);
  for (int64_t row = begin; row < end; row += StageRowStep(scoring.group)) {
    for (int64_t member = 0; member < scoring.group; ++member) {
      of.queries.push_back(LoadTurned(scoring, row, head * scoring.group + member));
    }
  }
  return of;
}

// The largest logit of a key for all of them.
float KeyScore(const StageScoring& scoring, int64_t key, int64_t chunks_left, bool is_first) {
  const int64_t back =
      math::PositionsBack(scoring.keys.item.rotated.positions, chunks_left, is_first);
  const std::vector<float> numbers = LoadUnrotated(scoring.keys, scoring.head, key, back);
  float best = math::kLeastLogit;
  for (const std::vector<float>& q : scoring.queries) {
    best = std::max(best, math::LogitOf(Dot(q.data(), numbers), scoring.keys.scale));
  }
  return best;
}

float ChunkScore(const StageScoring& scoring, math::KeyRange keys, int64_t chunks_left) {
  if (keys.count() == 1) return KeyScore(scoring, keys.begin, chunks_left, false);
  float best = math::kLeastLogit;
  while (keys.count() > 1) {
    const float first = KeyScore(scoring, keys.First().Middle(), chunks_left, true);
    const float second = KeyScore(scoring, keys.Second().Middle(), chunks_left, false);
    keys = second > first ? keys.Second() : keys.First();
    best = std::max(first, second);
  }
  return best;
}

// Blocks [begin, end).
struct Chunk {
  int64_t begin = 0;
  int64_t end = 0;
  uint32_t order = 0;  // OrderOf its score
};

// The chunks of up to `blocks` blocks in those that survived, with their scores.
std::vector<Chunk> CutChunks(const StageScoring& scoring, int64_t blocks,
                             const std::vector<Chunk>& survivors) {
  const int64_t slots = scoring.keys.block_slots;
  std::vector<Chunk> chunks;
  for (const Chunk& survivor : survivors) {
    for (int64_t begin = survivor.begin; begin < survivor.end; begin += blocks) {
      chunks.push_back({begin, std::min(survivor.end, begin + blocks)});
    }
  }
  int64_t left = std::ssize(chunks);
  for (Chunk& chunk : chunks) {
    const math::KeyRange keys = {chunk.begin * slots, chunk.end * slots};
    chunk.order = math::OrderOf(ChunkScore(scoring, keys, left--));
  }
  return chunks;
}

// The best ones, in their order.
void Keep(int64_t kept, std::vector<Chunk>& chunks) {
  std::stable_sort(chunks.begin(), chunks.end(),
                   [](const Chunk& a, const Chunk& b) { return a.order > b.order; });
  chunks.resize(static_cast<size_t>(std::min<int64_t>(kept, std::ssize(chunks))));
  std::sort(chunks.begin(), chunks.end(),
            [](const Chunk& a, const Chunk& b) { return a.begin < b.begin; });
}

// The chunks of `blocks` blocks that survived a stage in an earlier call.
std::vector<Chunk> LoadChunks(const KeyScoring& scoring, int64_t head, int64_t blocks,
                              const CandidateLists& from) {
  std::vector<Chunk> chunks;
  for (int32_t i = 0; i < from.counts[head]; ++i) {
    const int64_t begin = from.blocks[head * from.capacity + i];
    chunks.push_back({begin, std::min(scoring.item.budget.far_end, begin + blocks)});
  }
  return chunks;
}
void StoreChunks(const std::vector<Chunk>& chunks, int64_t head, const CandidateLists& to) {
  HEADWAY_CHECK(to.capacity >= std::ssize(chunks));
  to.counts[head] = static_cast<int32_t>(chunks.size());
  int32_t* list = to.blocks + head * to.capacity;
  for (const Chunk& chunk : chunks) *list++ = static_cast<int32_t>(chunk.begin);
}

}  // namespace

float Dot(const float* row, const std::vector<float>& key) {
  float lanes[math::kDotLanes] = {};
  for (size_t i = 0; i < key.size(); ++i) lanes[i % math::kDotLanes] += row[i] * key[i];
  return math::SumOfLanes(lanes);
}

std::vector<float> MassScores(const KeyScoring& scoring, int64_t q_head) {
  const int64_t slots = scoring.block_slots;
  std::vector<float> scores;
  for (int64_t block = 0; block < scoring.item.keys.blocks; ++block) {
    std::vector<float> logits;
    for (int64_t key = block * slots; key < (block + 1) * slots; ++key) {
      logits.push_back(LogitOf(scoring, q_head, LoadKey(scoring, q_head / scoring.group, key)));
    }
    const float largest = *std::max_element(logits.begin(), logits.end());
    uint64_t sum = 0;
    for (const float logit : logits) sum += math::ShareWeight(largest, logit);
    scores.push_back(math::MassScore(largest, sum));
  }
  return scores;
}

std::vector<uint32_t> StageCodes(const KeyScoring& scoring, int64_t head) {
  const SelectionBudget& budget = scoring.item.budget;
  HEADWAY_CHECK(budget.share == BudgetShare::kHead);
  std::vector<uint32_t> codes(static_cast<size_t>(scoring.item.keys.blocks), 0);
  if (!budget.chooses()) return codes;
  const StageScoring of_head = OfHead(scoring, head);
  std::vector<Chunk> chunks = {{budget.far_begin, budget.far_end}};
  int64_t before = 0;
  for (size_t i = 0; i < budget.stages.size(); ++i) {
    const ChunkStage& stage = budget.stages[i];
    const CandidateLists& survivors = scoring.item.survivors[i];
    if (stage.blocks == 0) continue;
    HEADWAY_CHECK(stage.blocks > 1 && before % stage.blocks == 0 && before != stage.blocks);
    HEADWAY_CHECK(stage.kept * stage.blocks >= budget.far_blocks);
    before = stage.blocks;
    if (static_cast<int>(i) < scoring.item.first_stage) {
      chunks = LoadChunks(scoring, head, stage.blocks, survivors);
      continue;
    }
    chunks = CutChunks(of_head, stage.blocks, chunks);
    Keep(stage.kept, chunks);
    if (scoring.item.rows == 1) StoreChunks(chunks, head, survivors);
  }
  for (const Chunk& chunk : CutChunks(of_head, 1, chunks)) {
    codes[static_cast<size_t>(chunk.begin)] = chunk.order;
  }
  return codes;
}

}  // namespace headway::ref
