#include "engine/step/block_mass.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "kernels/items.h"

namespace headway {
namespace {

// The sum of the `count` greatest.
double SumOfBest(std::vector<double> values, int64_t count) {
  const auto end = values.begin() + std::min<ptrdiff_t>(count, std::ssize(values));
  std::partial_sort(values.begin(), end, values.end(), std::greater<>());
  double sum = 0.0;
  for (auto value = values.begin(); value != end; ++value) sum += *value;
  return sum;
}

}  // namespace

void AddRecall(LayerMasses& masses, const SelectionBudget& budget, int group,
               std::span<const std::span<const int32_t>> lists,
               std::span<SelectionRecall::Head> heads) {
  const auto is_far = [&](int64_t block) {
    return block >= budget.far_begin && block < budget.far_end;
  };
  std::vector<int64_t> listed;  // far blocks of each head
  for (const std::span<const int32_t> list : lists) {
    listed.push_back(std::count_if(list.begin(), list.end(), is_far));
  }
  const int64_t all = std::accumulate(listed.begin(), listed.end(), int64_t{0});
  struct Ranked {
    double mass;
    int head;
  };
  std::vector<Ranked> of_layer;
  for (int head = 0; head < masses.heads; ++head) {
    SelectionRecall::Head& sums = heads[static_cast<size_t>(head)];
    const int64_t own = listed[static_cast<size_t>(head)];
    std::vector<double> far;
    for (int64_t block = budget.far_begin; block < budget.far_end; ++block) {
      far.push_back(masses.at(head, block) / group);
      sums.far += far.back();
      of_layer.push_back({far.back(), head});
    }
    // Heads that share a budget would have the mean of it each.
    sums.best_of_head +=
        SumOfBest(far, budget.share == BudgetShare::kHead ? own : CeilDiv(all, masses.heads));
    for (const int32_t block : lists[static_cast<size_t>(head)]) {
      if (is_far(block)) sums.listed += masses.at(head, block) / group;
    }
    sums.listed_blocks += own;
    sums.far_blocks += budget.far_end - budget.far_begin;
  }
  std::partial_sort(of_layer.begin(), of_layer.begin() + all, of_layer.end(),
                    [](const Ranked& a, const Ranked& b) { return a.mass > b.mass; });
  for (int64_t i = 0; i < all; ++i) {
    heads[static_cast<size_t>(of_layer[static_cast<size_t>(i)].head)].best_of_layer +=
        of_layer[static_cast<size_t>(i)].mass;
  }
}

BlockMass::BlockMass(StepContext& context, const Batch& batch, Board& board,
                     SelectionRecall* recall)
    : context_(context), batch_(batch), board_(board), recall_(recall) {
  HEADWAY_CHECK(recall->heads.size() ==
                static_cast<size_t>(context.shape.layers * context.shape.kv_heads));
}

// Copies of what the compute stream fills follow it; OnLayer waits for them.
void BlockMass::CopyToHost(void* to, const void* from, int64_t bytes) {
  context_.compute.Copy(static_cast<std::byte*>(to), static_cast<const std::byte*>(from),
                        static_cast<size_t>(bytes));
}

void BlockMass::OnLists(int /*entry*/, const SelectItem& item,
                        std::span<const kv::BlockSpan> spans) {
  const int64_t slots = context_.limits.selection.summary.block_slots;
  int64_t blocks = 0;
  for (const kv::BlockSpan& span : spans) {
    gaps_ = gaps_ || span.position != blocks * slots;
    blocks += span.blocks;
  }
  budget_ = item.budget;
  blocks_ = item.keys.blocks;
  capacity_ = item.capacity;
  listed_ = true;
  const auto heads = static_cast<size_t>(context_.shape.kv_heads);
  lists_.resize(heads * static_cast<size_t>(capacity_));
  counts_.resize(heads);
  CopyToHost(lists_.data(), item.blocks, std::ssize(lists_) * int64_t{sizeof(int32_t)});
  CopyToHost(counts_.data(), item.counts, std::ssize(counts_) * int64_t{sizeof(int32_t)});
  lse_.assign(static_cast<size_t>(blocks_ * context_.shape.query_heads),
              -std::numeric_limits<float>::infinity());
}

// Each block of the range has a state of its own, of which the lse is kept.
void BlockMass::OnRange(int /*entry*/, std::span<const kv::HeadRun> heads, const KeyRun& keys) {
  const int64_t slots = context_.limits.selection.summary.block_slots;
  const int64_t first = keys.position / slots;
  if (!listed_ || gaps_ || first >= blocks_) return;
  const Board::SpareStates states = board_.StatesOfObserver();
  const int64_t end = std::min(keys.pages.count, (blocks_ - first) * slots);
  for (int64_t begin = 0; begin < end; begin += states.parts * slots) {
    AddStates(heads, keys, begin, std::min(begin + states.parts * slots, end), states);
  }
}

// Of the slots [begin, end) of the range.
void BlockMass::AddStates(std::span<const kv::HeadRun> heads, const KeyRun& keys, int64_t begin,
                          int64_t end, const Board::SpareStates& states) {
  const int64_t slots = context_.limits.selection.summary.block_slots;
  const int64_t query_heads = context_.shape.query_heads;
  board_.Flush();  // so that the items below are alone
  for (const kv::HeadRun& run : heads) {
    const int64_t head = int64_t{run.head} * context_.shape.group();
    AttentionItem item;
    item.q = context_.QueryAt(0, head);
    item.q_stride = context_.act.qkv_stride;
    item.tokens = 1;
    item.q_position = batch_[0].position;
    item.heads = run.heads;
    item.keys = KeysOf(context_.format, keys, 0, begin, end - begin);
    item.keys.pages = PagesOf(item.keys.pages, run);
    item.split = slots;
    item.o = states.o + head * context_.shape.head_dim;
    item.o_part_stride = states.o_part_stride;
    item.lse = states.lse + head;
    item.lse_part_stride = states.lse_part_stride;
    board_.Add(item);
  }
  board_.Flush();  // the states are those of these blocks alone
  const int64_t block = (keys.position + begin) / slots;
  for (const kv::HeadRun& run : heads) {
    const int64_t head = int64_t{run.head} * context_.shape.group();
    context_.compute.Copy2D(reinterpret_cast<std::byte*>(lse_.data() + block * query_heads + head),
                            static_cast<size_t>(query_heads) * sizeof(float),
                            reinterpret_cast<const std::byte*>(states.lse + head),
                            static_cast<size_t>(states.lse_part_stride) * sizeof(float),
                            static_cast<size_t>(run.heads * context_.shape.group()) * sizeof(float),
                            static_cast<size_t>(CeilDiv(end - begin, slots)));
  }
}

Status BlockMass::OnLayer(int layer) {
  if (!listed_) return OkStatus();
  listed_ = false;
  if (gaps_) {
    return Status(StatusCode::kInvalidArgument,
                  "recall is measured where all closed pages are in memory");
  }
  std::vector<float> all(static_cast<size_t>(context_.shape.query_heads));
  CopyToHost(all.data(), board_.lse(), std::ssize(all) * int64_t{sizeof(float)});
  if (Status s = context_.compute.Synchronize(); !s.ok()) return s;
  const int group = context_.shape.group();
  LayerMasses masses;
  masses.heads = context_.shape.kv_heads;
  masses.blocks = blocks_;
  masses.masses.resize(static_cast<size_t>(masses.heads * masses.blocks));
  for (int64_t block = 0; block < masses.blocks; ++block) {
    for (int head = 0; head < context_.shape.query_heads; ++head) {
      const float lse = lse_[static_cast<size_t>(block * context_.shape.query_heads + head)];
      masses.at(head / group, block) +=
          std::exp(double{lse} - double{all[static_cast<size_t>(head)]});
    }
  }
  std::vector<std::span<const int32_t>> lists;
  for (int head = 0; head < masses.heads; ++head) {
    lists.push_back(std::span<const int32_t>(lists_).subspan(
        static_cast<size_t>(head * capacity_),
        static_cast<size_t>(counts_[static_cast<size_t>(head)])));
  }
  const auto heads =
      std::span(recall_->heads)
          .subspan(static_cast<size_t>(layer * masses.heads), static_cast<size_t>(masses.heads));
  AddRecall(masses, budget_, group, lists, heads);
  return OkStatus();
}

}  // namespace headway
