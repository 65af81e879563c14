#include "kernels/ref/ref_selection.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/half.h"
#include "kernels/ref/ref_selection_bound.h"
#include "kernels/ref/ref_selection_keys.h"
#include "kernels/ref/ref_selection_parts.h"
#include "kernels/selection_key_math.h"
#include "kernels/selection_math.h"

namespace headway::ref {
namespace {

namespace math = selection;

CodedRow Coded(const std::vector<float>& x, float largest, float levels) {
  const math::RowScale row = math::ScaleOf(largest, levels);
  CodedRow coded{row.scale, std::vector<int32_t>(x.size(), 0)};
  if (row.scale == 0.0f) return coded;
  for (size_t i = 0; i < x.size(); ++i) coded.codes[i] = math::Nearest(x[i] * row.inverse);
  return coded;
}

float LargestOf(const std::vector<float>& x) {
  uint32_t largest = 0;
  for (const float value : x) largest = std::max(largest, math::SizeBits(value));
  return std::bit_cast<float>(largest);
}

// The two rows of a block's summary.
struct Summary {
  CodedRow first;
  CodedRow second;
};

std::vector<float> MeanOf(const std::vector<std::vector<float>>& keys) {
  std::vector<float> mean(keys.front().size(), 0.0f);
  for (size_t i = 0; i < mean.size(); ++i) {
    for (const std::vector<float>& key : keys) mean[i] += key[i];
    mean[i] *= 1.0f / static_cast<float>(keys.size());
  }
  return mean;
}

Summary MomentsOf(const std::vector<std::vector<float>>& keys) {
  const float share = 1.0f / static_cast<float>(keys.size());
  const std::vector<float> mean = MeanOf(keys);
  std::vector<float> variance(mean.size(), 0.0f);
  for (size_t i = 0; i < mean.size(); ++i) {
    for (const std::vector<float>& key : keys) {
      const float off = key[i] - mean[i];
      variance[i] += off * off;
    }
    variance[i] *= share;
  }
  return {Coded(mean, LargestOf(mean), math::kSignedLevels),
          Coded(variance, LargestOf(variance), math::kVarianceLevels)};
}

Summary BoxOf(const std::vector<std::vector<float>>& keys) {
  std::vector<float> least = keys.front();
  std::vector<float> greatest = keys.front();
  float largest = 0;  // NaN where a key holds that
  for (const std::vector<float>& key : keys) {
    largest =
        std::bit_cast<float>(std::max(math::SizeBits(largest), math::SizeBits(LargestOf(key))));
    for (size_t i = 0; i < key.size(); ++i) {
      least[i] = key[i] < least[i] ? key[i] : least[i];
      greatest[i] = greatest[i] < key[i] ? key[i] : greatest[i];
    }
  }
  return {Coded(least, largest, math::kSignedLevels),
          Coded(greatest, largest, math::kSignedLevels)};
}

Summary PairOf(const std::vector<std::vector<float>>& keys) {
  const std::vector<float> mean = MeanOf(keys);
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return math::LogitOf(Dot(mean.data(), keys[a]), 1.0f) >
           math::LogitOf(Dot(mean.data(), keys[b]), 1.0f);
  });
  const std::vector<float>& first = keys[order[0]];
  const std::vector<float>& second = keys[order[keys.size() > 1 ? 1 : 0]];
  const float largest = std::bit_cast<float>(
      std::max(math::SizeBits(LargestOf(first)), math::SizeBits(LargestOf(second))));
  return {Coded(first, largest, math::kSignedLevels), Coded(second, largest, math::kSignedLevels)};
}

Summary SummaryOf(SummaryKind kind, const std::vector<std::vector<float>>& keys) {
  return kind == SummaryKind::kBoxes   ? BoxOf(keys)
         : kind == SummaryKind::kPairs ? PairOf(keys)
                                       : MomentsOf(keys);
}

// Which way the angles of a table turn a row.
enum class Turn : uint8_t { kOn, kBack };

// Turns `x` by row `row` of the table.
void Rotate(const RopeTable& table, int64_t row, Turn turn, std::vector<float>& x) {
  const int64_t half = table.rotary_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    float& low = x[static_cast<size_t>(i)];
    float& high = x[static_cast<size_t>(i + half)];
    const float sin = table.sin[row * half + i];
    const math::Pair turned =
        math::Rotated({low, high}, table.cos[row * half + i], turn == Turn::kOn ? sin : -sin);
    low = turned.x;
    high = turned.y;
  }
}

// Keys of block `block` of a run's head `head`.
std::vector<std::vector<float>> KeysOf(const PageFormat& format, int block_slots,
                                       const SummarizeItem& item, int64_t head, int64_t block) {
  std::vector<std::vector<float>> keys;
  for (int64_t slot = 0; slot < block_slots; ++slot) {
    const int64_t at = item.keys.first_slot + block * block_slots + slot;
    const int64_t page = at / format.page_slots;
    KeyPlace place = {item.keys.k + head * item.keys.head_stride + page * item.keys.page_stride,
                      nullptr, at % format.page_slots};
    if (item.keys.params != nullptr) {
      place.params = item.keys.params + head * item.keys.params_head_stride +
                     page * item.keys.params_page_stride;
    }
    keys.push_back(NumbersOf(format, place));
    Rotate(item.rotated, block * block_slots + slot, Turn::kBack, keys.back());
  }
  return keys;
}

void StoreSummary(const Summary& summary, std::byte* codes, float* scales) {
  // Codes of a variance are up to 255: as bytes, unsigned; others are signed.
  for (const CodedRow* row : {&summary.first, &summary.second}) {
    for (const int32_t code : row->codes) *codes++ = static_cast<std::byte>(code & 0xFF);
    *scales++ = row->scale;
  }
}

}  // namespace

BlockPlace PlaceOf(const BlockedKeys& keys, int64_t head, int64_t block) {
  const auto segment = static_cast<size_t>(head / keys.group_heads * keys.group_segments() +
                                           block / keys.segment_blocks);
  HEADWAY_CHECK(segment < keys.segments.size());
  return {&keys.segments[segment], head % keys.group_heads, block % keys.segment_blocks};
}

const std::byte* CodesAt(const SummaryFormat& summary, int head_dim, const BlockedKeys& keys,
                         const BlockPlace& place) {
  return place.segment->summary + keys.codes_offset + place.head * keys.codes_head_stride +
         place.block * summary.code_bytes(head_dim);
}

const float* ScalesAt(const BlockedKeys& keys, const BlockPlace& place) {
  return reinterpret_cast<const float*>(place.segment->summary + keys.scales_offset) +
         place.head * keys.scales_head_stride + 2 * place.block;
}

CodedQuery QueryOf(const SelectItem& item, const Pool& pool, int64_t head, int head_dim,
                   float scale) {
  const auto dim = static_cast<size_t>(head_dim);
  std::vector<float> mean(dim, 0.0f), squares(dim, 0.0f);
  for (int64_t row = pool.begin; row < pool.end; ++row) {
    const float* q = static_cast<const float*>(item.q) + row * item.q_stride + head * head_dim;
    std::vector<float> turned(q, q + head_dim);
    Rotate(item.turn, row, Turn::kOn, turned);
    for (size_t i = 0; i < dim; ++i) {
      mean[i] += turned[i];
      squares[i] += turned[i] * turned[i];
    }
  }
  const float share = 1.0f / static_cast<float>(pool.end - pool.begin);
  for (size_t i = 0; i < dim; ++i) {
    mean[i] *= share;
    squares[i] *= share;
  }
  CodedQuery query{Coded(mean, LargestOf(mean), math::kQueryLevels),
                   Coded(squares, LargestOf(squares), math::kQueryLevels),
                   {}};
  query.factors = math::MomentFactors(query.q.scale, query.squares.scale, scale);
  return query;
}

namespace {

// --- Scores

float ScoreOf(const SummaryFormat& summary, const BlockedKeys& keys, const CodedQuery& query,
              int64_t head, int64_t block) {
  const auto dim = static_cast<int64_t>(query.q.codes.size());
  const BlockPlace place = PlaceOf(keys, head, block);
  const std::byte* codes = CodesAt(summary, static_cast<int>(dim), keys, place);
  const float* scales = ScalesAt(keys, place);
  const auto* row0 = reinterpret_cast<const int8_t*>(codes);
  int32_t first = 0;
  int32_t second = 0;
  for (int64_t i = 0; i < dim; ++i) {
    const int32_t q = query.q.codes[static_cast<size_t>(i)];
    if (summary.kind == SummaryKind::kBoxes) {
      first += std::max(q * row0[i], q * row0[dim + i]);
    } else if (summary.kind == SummaryKind::kPairs) {
      first += q * row0[i] + q * row0[dim + i];
    } else {
      first += q * row0[i];
      second += query.squares.codes[static_cast<size_t>(i)] *
                reinterpret_cast<const uint8_t*>(codes)[dim + i];
    }
  }
  switch (summary.kind) {
    case SummaryKind::kBoxes:
      return math::BoxScore(query.factors, scales[0], first);
    case SummaryKind::kPairs:
      return math::PairScore(query.factors, scales[0], first);
    default:
      return math::MomentScore(query.factors, scales[0], first, scales[1], second);
  }
}

// Raises each block's share for a query head to that for one of its pooled queries.
void RaiseShares(const std::vector<float>& scores, std::vector<float>& shares) {
  float largest = -std::numeric_limits<float>::infinity();
  for (const float score : scores) largest = score > largest ? score : largest;
  uint64_t sum = 0;
  for (const float score : scores) sum += math::ShareWeight(largest, score);
  for (size_t i = 0; i < scores.size(); ++i) {
    const float share = math::ShareOf(math::ShareWeight(largest, scores[i]), sum);
    shares[i] = share > shares[i] ? share : shares[i];
  }
}

// --- Lists

// A far block that may be chosen, in the order of choice.
struct Candidate {
  uint32_t code = 0;
  size_t head = 0;
  int32_t block = 0;

  bool operator<(const Candidate& other) const {
    if (code != other.code) return code > other.code;
    if (head != other.head) return head < other.head;
    return block < other.block;
  }
};

// How many of the candidates, which are in the order of choice, are taken by `heads` heads.
int64_t CountOf(const SelectionBudget& budget, const std::vector<Candidate>& candidates,
                int64_t heads) {
  const int64_t most = std::min(budget.far_blocks * heads, std::ssize(candidates));
  if (!budget.takes_top_p()) return most;
  uint64_t all = 0;
  for (const Candidate& candidate : candidates) all += math::CodeWorth(candidate.code);
  const uint64_t wanted = math::WorthWanted(all, budget.top_p, kTopPBits);
  int64_t count = 0;
  for (uint64_t taken = 0; taken < wanted; ++count) {
    taken += math::CodeWorth(candidates[static_cast<size_t>(count)].code);
  }
  return std::min(std::max(count, budget.least_blocks * heads), most);
}

// Adds the best of the candidates to the lists of their heads, which share a budget.
void Choose(const SelectionBudget& budget, std::vector<Candidate>& candidates, int64_t heads,
            Lists& lists) {
  std::sort(candidates.begin(), candidates.end());
  const auto end = static_cast<size_t>(CountOf(budget, candidates, heads));
  for (size_t i = 0; i < end; ++i) lists[candidates[i].head].push_back(candidates[i].block);
}

// Of each head's blocks those that are near, and the best of the far ones.
Lists ListBest(const SelectionBudget& budget, const Lists& blocks, const Codes& codes) {
  Lists lists(blocks.size());
  std::vector<Candidate> candidates;
  for (size_t head = 0; head < blocks.size(); ++head) {
    for (size_t i = 0; i < blocks[head].size(); ++i) {
      const int32_t block = blocks[head][i];
      if (block < budget.far_begin || block >= budget.far_end) {
        lists[head].push_back(block);
      } else {
        candidates.push_back({codes[head][i], head, block});
      }
    }
    if (budget.share == BudgetShare::kHead) {
      Choose(budget, candidates, 1, lists);
      candidates.clear();
    }
  }
  Choose(budget, candidates, std::ssize(blocks), lists);
  for (std::vector<int32_t>& list : lists) std::sort(list.begin(), list.end());
  return lists;
}

KeyScoring OfKeys(const SelectCall& call, const SelectItem& item, int64_t row_block = 0) {
  return {call.format, call.summary.block_slots, call.group, call.scale, item, row_block};
}

// A block of rows, as many of which are scored as one query.
struct PooledBlock {
  int64_t index = 0;
  int64_t pool_rows = kPoolRows;
};

// The worth of some blocks of a KV head, or all of them, to a block of rows.
std::vector<float> WorthOf(const SelectCall& call, const SelectItem& item, const PooledBlock& rows,
                           int64_t head, const std::vector<int32_t>& blocks) {
  const int64_t begin = rows.index * kSelectRows;
  const int64_t end = std::min(item.rows, begin + kSelectRows);
  std::vector<float> worth(blocks.size(), 0.0f);
  for (int64_t q_head = head * call.group; q_head < (head + 1) * call.group; ++q_head) {
    std::vector<float> shares(worth.size(), 0.0f);
    if (!call.summary.kept()) RaiseShares(MassScores(OfKeys(call, item), q_head), shares);
    for (int64_t row = begin; call.summary.kept() && row < end; row += rows.pool_rows) {
      const Pool pool = {row, std::min(end, row + rows.pool_rows)};
      const CodedQuery query = QueryOf(item, pool, q_head, call.format.head_dim, call.scale);
      std::vector<float> scores;
      for (const int32_t block : blocks) {
        scores.push_back(ScoreOf(call.summary, item.keys, query, head, block));
      }
      RaiseShares(scores, shares);
    }
    for (size_t i = 0; i < worth.size(); ++i) worth[i] += shares[i];
  }
  return worth;
}

std::vector<uint32_t> CodesOf(const std::vector<float>& worths) {
  std::vector<uint32_t> codes;
  for (const float worth : worths) codes.push_back(math::WorthCode(worth));
  return codes;
}

Lists AllBlocks(const BlockedKeys& keys) {
  std::vector<int32_t> all(static_cast<size_t>(keys.blocks));
  std::iota(all.begin(), all.end(), 0);
  return Lists(static_cast<size_t>(keys.heads), all);
}

// Codes of all blocks.
Codes FirstLook(const SelectCall& call, const SelectItem& item, const PooledBlock& rows,
                const Lists& all) {
  Codes codes;
  for (int64_t head = 0; head < item.keys.heads; ++head) {
    codes.push_back(call.summary.kind == SummaryKind::kStages
                        ? StageCodes(OfKeys(call, item, rows.index), head)
                        : CodesOf(WorthOf(call, item, rows, head, all[static_cast<size_t>(head)])));
  }
  return codes;
}

// Codes of candidates.
Codes SecondLook(const SelectCall& call, const SelectItem& item, int64_t row_block,
                 const Lists& candidates) {
  Worths worths;
  if (item.looks_at_sketches(call.summary)) {
    worths = SketchWorths(call, item, candidates);
  } else {
    for (int64_t head = 0; head < item.keys.heads; ++head) {
      worths.push_back(
          WorthOf(call, item, {row_block}, head, candidates[static_cast<size_t>(head)]));
    }
  }
  Codes codes;
  for (const std::vector<float>& worth : worths) codes.push_back(CodesOf(worth));
  return codes;
}

// Each head's list to, or from, memory.
void StoreLists(const Lists& lists, int32_t* blocks, int64_t capacity, int32_t* counts) {
  for (const std::vector<int32_t>& list : lists) {
    std::copy(list.begin(), list.end(), blocks);
    blocks += capacity;
    *counts++ = static_cast<int32_t>(list.size());
  }
}
Lists LoadLists(const CandidateLists& from, int heads) {
  Lists lists(static_cast<size_t>(heads));
  for (int head = 0; head < heads; ++head) {
    const int32_t* list = from.blocks + head * from.capacity;
    for (int32_t i = 0; i < from.counts[head] * from.run; ++i) {
      lists[static_cast<size_t>(head)].push_back(list[i / from.run] * from.run + i % from.run);
    }
  }
  return lists;
}

// What the second of two looks chooses among. A prefill lists it for itself.
Lists CandidatesOf(const SelectCall& call, const SelectItem& item, int64_t row_block) {
  const BlockedKeys& keys = item.keys;
  HEADWAY_CHECK(call.summary.kept());
  const SelectionBudget budget = item.OfCandidates().OfRows(row_block, keys.blocks);
  const Lists all = AllBlocks(keys);
  if (item.rows > 1) {
    return ListBest(budget, all, FirstLook(call, item, {row_block, kSearchRows}, all));
  }
  if (!item.candidates_listed) {
    HEADWAY_CHECK(item.candidates.run == 1 &&
                  item.candidates.capacity >= budget.Capacity(keys.blocks, keys.heads));
    StoreLists(ListBest(budget, all, FirstLook(call, item, {row_block}, all)),
               item.candidates.blocks, item.candidates.capacity, item.candidates.counts);
  }
  return LoadLists(item.candidates, keys.heads);
}

void SelectOf(const SelectCall& call, const SelectItem& item, int64_t row_block) {
  const BlockedKeys& keys = item.keys;
  const bool twice = item.looks_twice();
  const Lists lists = twice ? CandidatesOf(call, item, row_block) : AllBlocks(keys);
  const Codes codes =
      twice ? SecondLook(call, item, row_block, lists) : FirstLook(call, item, {row_block}, lists);
  const int64_t at = row_block * keys.heads;
  StoreLists(item.budget.is_bounded()
                 ? ListBounded(OfKeys(call, item), codes)
                 : ListBest(item.budget.OfRows(row_block, keys.blocks), lists, codes),
             item.blocks + at * item.capacity, item.capacity, item.counts + at);
}

}  // namespace

void Summarize(const PageFormat& format, const SummaryFormat& summary,
               std::span<const SummarizeItem> items) {
  HEADWAY_CHECK(SelectionFits(format, summary, 1) && summary.kept());
  for (const SummarizeItem& item : items) {
    HEADWAY_CHECK(item.keys.first_slot % summary.block_slots == 0 &&
                  item.keys.count % summary.block_slots == 0);
    for (int64_t head = 0; head < item.heads; ++head) {
      for (int64_t block = 0; block < item.keys.count / summary.block_slots; ++block) {
        const auto keys = KeysOf(format, summary.block_slots, item, head, block);
        std::byte* codes = item.codes + head * item.codes_head_stride +
                           block * summary.code_bytes(format.head_dim);
        float* scales = item.scales + head * item.scales_head_stride + 2 * block;
        StoreSummary(SummaryOf(summary.kind, keys), codes, scales);
        if (!summary.sketched()) continue;
        MakeSketch(summary, keys, codes, scales,
                   item.sketch + head * item.sketch_head_stride +
                       block * summary.sketch_bytes(format.head_dim));
      }
    }
  }
}

void SelectBlocks(const PageFormat& format, const SummaryFormat& summary, int group, float scale,
                  std::span<const SelectItem> items) {
  HEADWAY_CHECK(SelectionFits(format, summary, group));
  for (const SelectItem& item : items) {
    const SelectionBudget& budget = item.budget;
    HEADWAY_CHECK(TakesRows(summary.kind) || (item.rows == 1 && item.turn.rotary_dim == 0));
    HEADWAY_CHECK(summary.kind == SummaryKind::kStages || item.rotated.rotary_dim == 0);
    HEADWAY_CHECK(item.rows == 1 || item.first_stage == 0);
    HEADWAY_CHECK(0 <= budget.far_begin && budget.far_begin <= budget.far_end &&
                  budget.far_end <= item.keys.blocks);
    HEADWAY_CHECK(budget.far_step == 0 ||
                  (budget.far_step > 0 && budget.far_step <= kSelectRows && summary.kept()));
    HEADWAY_CHECK(budget.top_p == 0 ||
                  (summary.kind != SummaryKind::kStages && budget.least_blocks > 0));
    HEADWAY_CHECK(item.TakesBound(summary));
    HEADWAY_CHECK(item.capacity >= budget.Capacity(item.keys.blocks, item.keys.heads));
    for (int64_t block = 0; block < item.row_blocks(); ++block) {
      SelectOf({format, summary, group, scale}, item, block);
    }
    CountListed(item);
  }
}

}  // namespace headway::ref
