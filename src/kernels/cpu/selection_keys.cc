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
  const int64_t dim = task.format->head_dim;
  if (task.format->encoding != Encoding::kNone) {
    double exact[kHeadDimMax];
    DecodeKeyRow(*task.format, task.page, task.params, slot, exact);
    std::copy_n(exact, dim, key);  // rounded here
    return;
  }
  const std::byte* row =
      task.page + slot * dim * static_cast<int64_t>(DTypeBytes(task.format->dtype));
  switch (task.format->dtype) {
    case DType::kF32:
      return LoadPlain<DType::kF32>(row, dim, key);
    case DType::kF16:
      return LoadPlain<DType::kF16>(row, dim, key);
    case DType::kBF16:
      return LoadPlain<DType::kBF16>(row, dim, key);
  }
}

using Doubles = hn::ScalableTag<double>;
using Floats = hn::Rebind<float, Doubles>;
constexpr int kDoubles = HWY_MAX_BYTES / sizeof(double);

// selection::AngleAt of a position and some frequencies, operation by operation.
struct Turn {
  hn::Vec<Floats> cos, sin;
};
HWY_INLINE Turn TurnAt(hn::Vec<Doubles> position, const float* inv_freq) {
  const Doubles d;
  const Floats f;
  const hn::RebindToUnsigned<Floats> du;
  const auto at = [&](float value) { return hn::Set(f, value); };
  const auto times = [&](hn::Vec<Floats> square, auto first, float more) {
    return hn::Add(at(more), hn::Mul(square, first));
  };
  const auto quarters = hn::Mul(hn::Mul(position, hn::PromoteTo(d, hn::LoadU(f, inv_freq))),
                                hn::Set(d, selection::kQuartersOfRadian));
  const auto whole = hn::Floor(hn::Add(quarters, hn::Set(d, 0.5)));
  const auto x =
      hn::DemoteTo(f, hn::Mul(hn::Sub(quarters, whole), hn::Set(d, selection::kRadiansOfQuarter)));
  const auto square = hn::Mul(x, x);
  const auto sin_series = times(
      square, times(square, times(square, at(1.0f / 362880), -1.0f / 5040), 1.0f / 120), -1.0f / 6);
  const auto cos_series =
      times(square, times(square, times(square, at(1.0f / 40320), -1.0f / 720), 1.0f / 24), -0.5f);
  const auto sin = hn::Add(x, hn::Mul(x, hn::Mul(square, sin_series)));
  const auto cos = times(square, cos_series, 1.0f);
  // By the quarter turns: odd ones change places, and of the four two are negative in each.
  const auto rounds = hn::Mul(hn::Floor(hn::Mul(whole, hn::Set(d, 0.25))), hn::Set(d, 4.0));
  const auto turns =
      hn::BitCast(du, hn::DemoteTo(hn::RebindToSigned<Floats>(), hn::Sub(whole, rounds)));
  const auto odd =
      hn::MaskFromVec(hn::BitCast(f, hn::Sub(hn::Zero(du), hn::And(turns, hn::Set(du, 1)))));
  const auto sign_of = [&](auto quarter) {
    return hn::BitCast(f, hn::ShiftLeft<30>(hn::And(quarter, hn::Set(du, 2))));
  };
  return {hn::Xor(hn::IfThenElse(odd, sin, cos), sign_of(hn::Add(turns, hn::Set(du, 1)))),
          hn::Xor(hn::IfThenElse(odd, cos, sin), sign_of(turns))};
}

// Turns a key back by the angles of `position`.
HWY_INLINE void TurnBack(const KeyRotation& rotated, int64_t position, float* key) {
  const Floats f;
  const int half = rotated.rotary_dim / 2;
  const auto by = hn::Set(Doubles(), static_cast<double>(position));
  int i = 0;
  for (; i + kDoubles <= half; i += kDoubles) {
    const Turn turn = TurnAt(by, rotated.inv_freq + i);
    const auto back = hn::Neg(turn.sin);
    const auto x = hn::LoadU(f, key + i), y = hn::LoadU(f, key + i + half);
    hn::StoreU(hn::Sub(hn::Mul(x, turn.cos), hn::Mul(y, back)), f, key + i);
    hn::StoreU(hn::Add(hn::Mul(y, turn.cos), hn::Mul(x, back)), f, key + i + half);
  }
  for (; i < half; ++i) {
    const selection::Pair angle = selection::AngleAt(position, rotated.inv_freq[i]);
    const selection::Pair turned = selection::Rotated({key[i], key[i + half]}, angle.x, -angle.y);
    key[i] = turned.x;
    key[i + half] = turned.y;
  }
}

// selection::LogitOf of four.
HWY_INLINE hn::Vec<F4> LogitsOf(hn::Vec<F4> dots, float scale) {
  const F4 d;
  const auto least = hn::Set(d, selection::kLeastLogit);
  const auto logits = hn::Mul(dots, hn::Set(d, scale));
  const auto ordinary = hn::And(hn::Gt(logits, least), hn::Lt(logits, hn::Neg(least)));
  return hn::IfThenElse(ordinary, logits, least);
}

float Logits(const LogitTask& task) {
  const F4 d4;
  const int64_t query_row = QueryRow(task.format->head_dim);
  alignas(HWY_MAX_BYTES) float key[kHeadDimMax] = {};
  auto best = hn::Set(d4, selection::kLeastLogit);
  for (int64_t i = 0; i < task.slots; ++i) {
    LoadKey(task, task.first_slot + i, key);
    TurnBack(task.rotated, task.position + i, key);
    int64_t member = 0;
    for (; member + 4 <= task.group; member += 4) {
      const auto logits =
          LogitsOf(Dots(task.queries + member * query_row, key, query_row), task.scale);
      alignas(16) float four[4];
      hn::Store(logits, d4, four);
      for (int j = 0; j < 4; ++j) task.logits[(member + j) * task.slots + i] = four[j];
      best = hn::Max(best, logits);
    }
    for (; member < task.group; ++member) {
      const float dot = Dot(task.queries + member * query_row, key, query_row);
      const float logit = selection::LogitOf(dot, task.scale);
      task.logits[member * task.slots + i] = logit;
      best = hn::Max(best, hn::Set(d4, logit));
    }
  }
  return hn::GetLane(hn::MaxOfLanes(d4, best));
}

}  // namespace

extern float (*const kLogits)(const LogitTask& task);
float (*const kLogits)(const LogitTask& task) = Logits;

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
  return {.format = &format_,
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

LogitTask KeyScores::Fetch(int64_t head, int64_t key, int64_t back) const {
  LogitTask task = TaskOf(head, key, 1, nullptr);
  task.rotated = rotated_;
  task.position = SegmentOf(keys_, head, key / block_slots_).position +
                  key % (keys_.segment_blocks * block_slots_) + back;
  constexpr int64_t kLine = 64;
  const int64_t bytes = format_.closed_bytes() / format_.page_slots;
  const std::byte* const row = task.page + task.first_slot * bytes;
  for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(row + at);
  return task;
}

float KeyScores::ScoreOf(LogitTask* key) const {
  float logits[kSelectRows];  // at least the largest group of SelectionFits
  key->logits = logits;
  return logits_(*key);
}

void KeyScores::FetchNext(int64_t head, Descent* descent) const {
  const auto back = [&](bool is_first) {
    return selection::PositionsBack(rotated_.positions, descent->chunks_left, is_first);
  };
  const selection::KeyRange& keys = descent->keys;
  if (keys.count() == 1) {
    descent->next[1] = Fetch(head, keys.begin, back(false));
    return;
  }
  descent->next[0] = Fetch(head, keys.First().Middle(), back(true));
  descent->next[1] = Fetch(head, keys.Second().Middle(), back(false));
}

void KeyScores::Descend(int64_t head, Descent* descent) const {
  selection::KeyRange& keys = descent->keys;
  const float second = ScoreOf(&descent->next[1]);
  descent->score = second;
  if (keys.count() > 1) {
    const float first = ScoreOf(&descent->next[0]);
    keys = second > first ? keys.Second() : keys.First();
    descent->score = std::max(first, second);
  }
  descent->ended = keys.count() == 1;
  if (!descent->ended) FetchNext(head, descent);
}

// Some chunks go down side by side: the keys of one come from memory while others' are multiplied.
void KeyScores::ScoreChunks(int64_t head, int64_t chunks_left, std::span<Chunk> chunks) const {
  constexpr size_t kTogether = 8;
  for (size_t begin = 0; begin < chunks.size(); begin += kTogether) {
    const std::span<Chunk> some = chunks.subspan(begin, std::min(kTogether, chunks.size() - begin));
    Descent descents[kTogether];
    for (size_t i = 0; i < some.size(); ++i) {
      descents[i].keys = {some[i].begin * block_slots_, some[i].end * block_slots_};
      descents[i].chunks_left = chunks_left--;
      FetchNext(head, &descents[i]);
    }
    for (bool all_ended = false; !all_ended;) {
      all_ended = true;
      for (size_t i = 0; i < some.size(); ++i) {
        if (descents[i].ended) continue;
        Descend(head, &descents[i]);
        all_ended = all_ended && descents[i].ended;
      }
    }
    for (size_t i = 0; i < some.size(); ++i) {
      some[i].order = selection::OrderOf(descents[i].score);
    }
  }
}

std::vector<KeyScores::Chunk> KeyScores::CutChunks(int64_t head, int64_t blocks,
                                                   const std::vector<Chunk>& survivors) const {
  std::vector<Chunk> chunks;
  for (const Chunk& survivor : survivors) {
    for (int64_t begin = survivor.begin; begin < survivor.end; begin += blocks) {
      chunks.push_back({begin, std::min(survivor.end, begin + blocks)});
    }
  }
  ScoreChunks(head, std::ssize(chunks), chunks);
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
