#include "kernels/cpu/selection_sketch.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "base/bytes.h"
#include "kernels/cpu/selection_choice.h"
#include "kernels/cpu/selection_ops.h"
#include "kernels/cpu/selection_sketch_ops.h"

namespace headway::cpu {
namespace {

constexpr int64_t kChunk = 64;  // candidates of a head that a thread looks at at once

class Look {
 public:
  Look(ThreadPool& pool, Isa isa, const SelectionCall& call, const SelectItem& item,
       const SketchMemory& memory)
      : pool_(pool),
        sketch_ops_(SketchOpsFor(isa)),
        ops_(SelectionOpsFor(isa)),
        call_(call),
        item_(item),
        memory_(memory),
        heads_(item.keys.heads),
        query_heads_(heads_ * call.group),
        chunks_(CeilDiv(memory.stride, kChunk)) {}

  void Run() {
    largest_.assign(static_cast<size_t>(query_heads_ * chunks_),
                    -std::numeric_limits<float>::infinity());
    Over(heads_ * chunks_, [&](int64_t i) { LookAtChunk(i / chunks_, i % chunks_); });
    sums_.resize(static_cast<size_t>(query_heads_));
    Over(query_heads_, [&](int64_t row) { Weigh(row); });
    Over(heads_, [&](int64_t head) { CodeHead(head); });
    const std::vector<Cut> cuts = CutsOf(item_.budget, heads_, memory_.histograms);
    for (int64_t head = 0; head < heads_; ++head) {
      item_.counts[head] =
          ListEntries(EntriesOf(head), CodesOf(head), cuts[static_cast<size_t>(head)],
                      item_.blocks + head * item_.capacity);
    }
  }

 private:
  template <typename Fn>
  void Over(int64_t tasks, const Fn& fn) {
    pool_.Run(tasks, 1, [&](int, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) fn(i);
    });
  }
  Entries EntriesOf(int64_t head) const {
    return EntriesAmong(item_.candidates, head, item_.keys.blocks, item_.budget);
  }
  uint16_t* CodesOf(int64_t head) const { return memory_.codes + head * memory_.stride; }
  float* LargestOf(int64_t row) { return largest_.data() + row / call_.group * RowsOfHead(); }
  // [chunks, group] of each head.
  int64_t RowsOfHead() const { return chunks_ * call_.group; }

  void LookAtChunk(int64_t head, int64_t chunk) {
    const BlockedKeys& keys = item_.keys;
    const SummaryFormat& summary = call_.summary;
    const int dim = call_.format.head_dim;
    const int64_t in_group = head % keys.group_heads;
    const Entries entries = EntriesOf(head);
    const int64_t end = std::min(entries.count, (chunk + 1) * kChunk);
    for (int64_t i = chunk * kChunk; i < end; ++i) {
      const int64_t block = entries.BlockAt(i);
      const int64_t in_segment = block % keys.segment_blocks;
      const SegmentPlace& segment = SegmentOf(keys, head, block);
      const std::byte* at = segment.summary;
      const int64_t result = head * call_.group * memory_.stride + i;
      sketch_ops_.look(
          {.head_dim = dim,
           .block_slots = summary.block_slots,
           .codes = at + in_group * keys.codes_head_stride + in_segment * summary.code_bytes(dim),
           .scales = reinterpret_cast<const float*>(at + keys.scales_offset) +
                     in_group * keys.scales_head_stride + 2 * in_segment,
           .sketch = segment.sketch + in_group * keys.sketch_head_stride +
                     in_segment * summary.sketch_bytes(dim),
           .group = call_.group,
           .queries = memory_.queries + head * call_.group * 2 * QueryRow(dim),
           .factors = memory_.factors + head * call_.group,
           .tops = memory_.tops + result,
           .masses = memory_.masses + result,
           .stride = memory_.stride,
           .largest = LargestOf(head * call_.group) + chunk * call_.group});
    }
  }

  void Weigh(int64_t row) {
    const float* tops = LargestOf(row) + row % call_.group;
    float largest = tops[0];
    for (int64_t chunk = 1; chunk < chunks_; ++chunk) {
      largest = std::max(largest, tops[chunk * call_.group]);
    }
    const int64_t at = row * memory_.stride;
    sums_[static_cast<size_t>(row)] = static_cast<float>(sketch_ops_.weigh(
        memory_.tops + at, memory_.masses + at, EntriesOf(row / call_.group).count, largest));
  }

  void CodeHead(int64_t head) {
    const int64_t row = head * call_.group;
    ops_.worth({.weights = memory_.tops + row * memory_.stride,
                .weight_stride = memory_.stride,
                .sums = sums_.data() + row,
                .group = call_.group,
                .count = EntriesOf(head).count,
                .codes = CodesOf(head)});
    CountCodes(EntriesOf(head), CodesOf(head), memory_.histograms + head * selection::kWorthCodes);
  }

  ThreadPool& pool_;
  const SketchOps& sketch_ops_;
  const SelectionOps& ops_;
  const SelectionCall& call_;
  const SelectItem& item_;
  const SketchMemory& memory_;
  const int64_t heads_;
  const int64_t query_heads_;
  const int64_t chunks_;
  std::vector<float> largest_;  // [heads, chunks, group]
  std::vector<float> sums_;     // [query heads]
};

}  // namespace

void SketchLook(ThreadPool& pool, Isa isa, const SelectionCall& call, const SelectItem& item,
                const SketchMemory& memory) {
  Look(pool, isa, call, item, memory).Run();
}

}  // namespace headway::cpu
