// Logits of keys where they lie, and what is made of them. Products and sums of floats are rounded
// one by one: the file is compiled without contraction.
#include "kernels/cpu/selection_keys.h"

#include <algorithm>
#include <limits>
#include <span>

#include "base/check.h"
#include "kernels/cpu/hwy_targets.h"
#include "kernels/page_codec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/selection_keys.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/cpu/selection-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace headway::cpu {
namespace HWY_NAMESPACE {
namespace {

template <DType kDType>
HWY_INLINE void LoadPlain(const std::byte* row, int64_t dim, float* key) {
  const D d;
  for (int64_t i = 0; i < dim; i += kLanes) {
    const V some =
        i + kLanes <= dim ? LoadF32<kDType>(d, row, i) : LoadF32Tail<kDType>(d, row, i, dim - i);
    hn::Store(some, d, key + i);
  }
}

// A slot's key as numbers.
HWY_INLINE void LoadKey(const LogitTask& task, int64_t slot, float* key) {
  const int64_t dim = task.format.head_dim;
  if (task.format.encoding != Encoding::kNone) {
    double exact[kHeadDimMax];
    DecodeKeyRow(task.format, task.page, task.params, slot, exact);
    std::copy_n(exact, dim, key);  // rounded here
    return;
  }
  const std::byte* row =
      task.page + slot * dim * static_cast<int64_t>(DTypeBytes(task.format.dtype));
  switch (task.format.dtype) {
    case DType::kF32:
      return LoadPlain<DType::kF32>(row, dim, key);
    case DType::kF16:
      return LoadPlain<DType::kF16>(row, dim, key);
    case DType::kBF16:
      return LoadPlain<DType::kBF16>(row, dim, key);
  }
}

// Turns a key back by the angles of `position`.
HWY_INLINE void TurnBack(const KeyRotation& rotated, int64_t position, float* key) {
  const int half = rotated.rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const selection::Pair angle = selection::AngleAt(position, rotated.inv_freq[i]);
    const selection::Pair turned = selection::Rotated({key[i], key[i + half]}, angle.x, -angle.y);
    key[i] = turned.x;
    key[i + half] = turned.y;
  }
}

void Logits(const LogitTask& task) {
  const int64_t query_row = QueryRow(task.format.head_dim);
  alignas(HWY_MAX_BYTES) float key[kHeadDimMax] = {};
  for (int64_t i = 0; i < task.slots; ++i) {
    LoadKey(task, task.first_slot + i, key);
    TurnBack(task.rotated, task.position + i, key);
    for (int64_t member = 0; member < task.group; ++member) {
      const float dot = Dot(task.queries + member * query_row, key, query_row);
      task.logits[member * task.slots + i] = selection::LogitOf(dot, task.scale);
    }
  }
}

}  // namespace

extern void (*const kLogits)(const LogitTask& task);
void (*const kLogits)(const LogitTask& task) = Logits;

}  // namespace HWY_NAMESPACE
}  // namespace headway::cpu
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX2 || HWY_AVX3

#if HWY_ONCE
namespace headway::cpu {
namespace {

// The best chunks, in their order.
template <class Chunk>
void Keep(int64_t kept, std::vector<Chunk>& chunks) {
  if (kept < std::ssize(chunks)) {
    const auto end = chunks.begin() + kept;
    std::nth_element(chunks.begin(), end, chunks.end(), [](const Chunk& a, const Chunk& b) {
      return a.order != b.order ? a.order > b.order : a.begin < b.begin;
    });
    chunks.erase(end, chunks.end());
  }
  std::sort(chunks.begin(), chunks.end(),
            [](const Chunk& a, const Chunk& b) { return a.begin < b.begin; });
}

}  // namespace

KeyScores::KeyScores(Isa isa, const PageFormat& format, int block_slots, const SelectItem& item)
    : logits_(isa == Isa::kAvx2 ? N_AVX2::kLogits : N_AVX3::kLogits),
      ops_(SelectionOpsFor(isa)),
      format_(format),
      block_slots_(block_slots),
      keys_(item.keys),
      rotated_(item.rotated) {}

LogitTask KeyScores::TaskOf(int64_t head, int64_t key, int64_t count, float* logits) const {
  const int64_t block = key / block_slots_;
  const std::byte* slab = SegmentOf(keys_, head, block).slab;
  const int64_t slot = block % keys_.segment_blocks * block_slots_ + key % block_slots_;
  const int64_t page = slot / format_.page_slots;
  const int64_t in_group = head % keys_.group_heads;
  return {.format = format_,
          .page = slab + in_group * keys_.head_stride + page * keys_.page_stride,
          .params = slab + keys_.params_offset + in_group * keys_.params_head_stride +
                    page * keys_.params_page_stride,
          .first_slot = slot % format_.page_slots,
          .slots = count,
          .group = group_,
          .queries = queries_ + head * group_ * QueryRow(format_.head_dim),
          .scale = scale_,
          .logits = logits};
}

void KeyScores::Masses(int64_t head, int64_t begin, int64_t end, float* scores, int64_t stride,
                       float* largest) const {
  std::vector<float> logits(static_cast<size_t>(group_ * block_slots_));
  for (int64_t block = begin; block < end; ++block) {
    logits_(TaskOf(head, block * block_slots_, block_slots_, logits.data()));
    for (int member = 0; member < group_; ++member) {
      float* row = logits.data() + member * block_slots_;
      const float top = *std::max_element(row, row + block_slots_);
      const float score = selection::MassScore(top, ops_.weigh(row, block_slots_, top));
      scores[member * stride + block - begin] = score;
      largest[member] = std::max(largest[member], score);
    }
  }
}

float KeyScores::KeyScore(int64_t head, int64_t key, int64_t back) const {
  float logits[kSelectRows];  // at least the largest group of SelectionFits
  LogitTask task = TaskOf(head, key, 1, logits);
  task.rotated = rotated_;
  task.position = SegmentOf(keys_, head, key / block_slots_).position +
                  key % (keys_.segment_blocks * block_slots_) + back;
  logits_(task);
  return *std::max_element(logits, logits + group_);
}

float KeyScores::ChunkScore(int64_t head, selection::KeyRange keys, int64_t chunks_left) const {
  const int64_t first_back = selection::PositionsBack(rotated_.positions, chunks_left, true);
  const int64_t second_back = selection::PositionsBack(rotated_.positions, chunks_left, false);
  if (keys.count() == 1) return KeyScore(head, keys.begin, second_back);
  float best = selection::kLeastLogit;
  while (keys.count() > 1) {
    const float first = KeyScore(head, keys.First().Middle(), first_back);
    const float second = KeyScore(head, keys.Second().Middle(), second_back);
    keys = second > first ? keys.Second() : keys.First();
    best = std::max(first, second);
  }
  return best;
}

std::vector<KeyScores::Chunk> KeyScores::CutChunks(int64_t head, int64_t blocks,
                                                   const std::vector<Chunk>& survivors) const {
  std::vector<Chunk> chunks;
  for (const Chunk& survivor : survivors) {
    for (int64_t begin = survivor.begin; begin < survivor.end; begin += blocks) {
      chunks.push_back({begin, std::min(survivor.end, begin + blocks)});
    }
  }
  int64_t left = std::ssize(chunks);
  for (Chunk& chunk : chunks) {
    const selection::KeyRange keys = {chunk.begin * block_slots_, chunk.end * block_slots_};
    chunk.order = selection::OrderOf(ChunkScore(head, keys, left--));
  }
  return chunks;
}

std::vector<KeyScores::Chunk> KeyScores::Survivors(int64_t head, const SelectItem& item) const {
  const SelectionBudget& budget = item.budget;
  std::vector<Chunk> chunks = {{budget.far_begin, budget.far_end}};
  for (size_t i = 0; i < budget.stages.size(); ++i) {
    const ChunkStage& stage = budget.stages[i];
    const CandidateLists& lists = item.survivors[i];
    if (stage.blocks == 0) continue;
    HEADWAY_CHECK(item.rows > 1 || lists.capacity >= budget.Survivors(stage));
    int32_t* list = lists.blocks + head * lists.capacity;
    if (static_cast<int>(i) < item.first_stage) {
      chunks.clear();
      for (const int64_t begin : std::span(list, static_cast<size_t>(lists.counts[head]))) {
        chunks.push_back({begin, std::min(budget.far_end, begin + stage.blocks)});
      }
      continue;
    }
    chunks = CutChunks(head, stage.blocks, chunks);
    Keep(stage.kept, chunks);
    if (item.rows > 1) continue;
    lists.counts[head] = static_cast<int32_t>(chunks.size());
    for (const Chunk& chunk : chunks) *list++ = static_cast<int32_t>(chunk.begin);
  }
  return chunks;
}

void KeyScores::Stages(int64_t head, const SelectItem& item, uint16_t* codes) const {
  const SelectionBudget& budget = item.budget;
  std::vector<Chunk> chunks;
  if (budget.chooses()) chunks = CutChunks(head, 1, Survivors(head, item));
  Keep(budget.far_blocks, chunks);
  std::fill_n(codes, keys_.blocks, uint16_t{0});
  for (const Chunk& chunk : chunks) codes[chunk.begin] = 1;
  int64_t missing = budget.far_blocks - std::ssize(chunks);
  for (int64_t block = budget.far_begin; missing > 0; ++block) {
    if (codes[block] != 0) continue;
    codes[block] = 1;
    --missing;
  }
}

}  // namespace headway::cpu
#endif  // HWY_ONCE
