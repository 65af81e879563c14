#include "kernels/cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/items.h"
#include "kernels/page_codec.h"

namespace headway::cpu {
namespace {

constexpr float kNoKeys = -std::numeric_limits<float>::infinity();

// Pieces of work a thread, so that unequal ones still end together.
constexpr int64_t kTasksPerThread = 4;

// Rows of copies and conversions handed to a thread at once; of merges, rows times parts.
constexpr int64_t kRowsGrain = 32;

// The first of `count` positions, ascending, that is above `position`.
int64_t FirstAbove(const KeyRun& keys, int64_t position) {
  const int64_t count = keys.pages.count;
  if (keys.positions == nullptr) {
    return std::clamp<int64_t>(position - keys.position + 1, 0, count);
  }
  return std::upper_bound(keys.positions, keys.positions + count, position) - keys.positions;
}

float MaxOrNan(float a, float b) { return std::isnan(a) || a > b ? a : b; }

// Whether this processor runs what is compiled for AVX-512; code for AMX tiles is, too.
bool HasAvx512() {
  static const bool has = [] {
    const std::vector<Isa> isas = SupportedIsas();
    return std::find(isas.begin(), isas.end(), Isa::kAvx512) != isas.end();
  }();
  return has;
}

// For any instruction set that this processor has, so that one size serves all of them. Those that
// it has not are not asked: their answer is compiled for them, too.
int64_t ScratchBytesPerThread(int64_t head_dim) {
  int64_t bytes = std::max(AttentionStripOpsFor(Isa::kAvx2).scratch_bytes(head_dim),
                           AttentionFewOpsFor(Isa::kAvx2).scratch_bytes(head_dim));
  if (HasAvx512()) {
    bytes = std::max({bytes, AttentionStripOpsFor(Isa::kAvx512).scratch_bytes(head_dim),
                      AttentionAmxOps().scratch_bytes(head_dim),
                      AttentionFewOpsFor(Isa::kAvx512).scratch_bytes(head_dim),
                      AttentionAmxFewOps().scratch_bytes(head_dim)});
  }
  return RoundUp(bytes, 64);
}

int64_t Rows(const AttentionItem& item, int group) { return item.tokens * group; }

// One call of Attend.
class Attention {
 public:
  Attention(const AttentionCode& code, ThreadPool& pool, const PageFormat& format, int group,
            const AttentionParams& params, const AttentionScratch& scratch)
      : code_(code),
        pool_(pool),
        format_(format),
        group_(group),
        params_(params),
        thread_bytes_(ScratchBytesPerThread(scratch.limits.head_dim)),
        scratch_(scratch) {
    HEADWAY_CHECK(pool.threads() <= scratch.threads);
    HEADWAY_CHECK(format.head_dim <= scratch.limits.head_dim);
  }

  void Run(std::span<const AttentionItem> items) {
    int64_t rows = 0;  // that go in strips
    bool all_few = true;
    for (const AttentionItem& item : items) {
      HEADWAY_CHECK(item.keys.pages.count <= std::numeric_limits<int32_t>::max());
      const bool few = IsFew(item);
      if (!few) rows += Rows(item, group_);
      all_few = all_few && few && item.tokens > 0;
    }
    if (all_few) {  // each is a task; making hundreds of those would keep the threads waiting
      const auto task = [&](int64_t i) { return TaskOf(items[static_cast<size_t>(i)]); };
      return RunTasks(static_cast<int64_t>(items.size()), task);
    }
    rows_per_task_ = CeilDiv(rows, pool_.threads() * kTasksPerThread);
    std::vector<AttentionTask> tasks;
    tasks.reserve(items.size());
    for (const AttentionItem& item : items) {
      if (item.key_mass == nullptr) AddTasks(item, nullptr, tasks);
    }
    RunTasks(tasks);
    for (const AttentionItem& item : items) {
      if (item.key_mass != nullptr) RunWithMass(item);
    }
  }

 private:
  // Which code computes an item depends on the item alone.
  bool IsFew(const AttentionItem& item) const {
    return Rows(item, group_) <= kFewRowsMax && params_.softcap == 0 &&
           item.transform.inv_freq == nullptr && item.key_mass == nullptr;
  }
  const AttentionStripOps& StripOpsFor(const AttentionItem& item) const {
    const bool on_tiles = code_.tiles != nullptr && HoldsBF16(format_, item.keys.pages) &&
                          item.transform.inv_freq == nullptr && item.key_mass == nullptr;
    return on_tiles ? *code_.tiles : *code_.strips;
  }

  const AttentionFewOps& FewOpsFor(const AttentionItem& item) const {
    const bool on_tiles = code_.few_on_tiles != nullptr && HoldsBF16(format_, item.keys.pages) &&
                          Rows(item, group_) > kFewOffTilesMax && format_.head_dim % kFewChunk == 0;
    return on_tiles ? *code_.few_on_tiles : *code_.few;
  }

  // All of an item.
  AttentionTask TaskOf(const AttentionItem& item) const {
    return {.format = &format_,
            .params = &params_,
            .item = &item,
            .group = group_,
            .rows = Rows(item, group_)};
  }

  void AddTasks(const AttentionItem& item, float* partial_lse,
                std::vector<AttentionTask>& tasks) const {
    const int64_t rows = Rows(item, group_);
    int64_t step = kFewRowsMax;
    if (!IsFew(item)) {
      const AttentionStripOps& ops = StripOpsFor(item);
      const int64_t strips = CeilDiv(rows_per_task_, ops.strip_rows);
      step = std::clamp<int64_t>(strips, 1, ops.max_strips(format_.head_dim)) * ops.strip_rows;
    }
    for (int64_t row = 0; row < rows; row += step) {
      AttentionTask task = TaskOf(item);
      task.first_row = row;
      task.rows = std::min(step, rows - row);
      task.partial_lse = partial_lse;
      tasks.push_back(task);
    }
  }

  // A thread that waits for memory takes its next task ahead, to fetch the first keys of that at
  // the end of the one before. Not the last tasks: those are for whoever is free first.
  template <typename TaskAt>
  void RunTasks(int64_t count, const TaskAt& task_at) {
    const int64_t threads = std::min<int64_t>(pool_.threads(), count);
    std::atomic<int64_t> taken = 0;
    pool_.Run(threads, 1, [&](int thread, int64_t, int64_t) {
      for (int64_t at = taken++; at < count;) {
        AttentionTask task = task_at(at);
        const bool few = IsFew(*task.item);
        const bool ahead = few && taken + threads < count;
        if (ahead) at = taken++;
        if (ahead && at < count) task.next = task_at(at).item;
        if (few) {
          FewOpsFor(*task.item).attend(task, ThreadScratch(thread));
        } else {
          StripOpsFor(*task.item).attend(task, ThreadScratch(thread));
        }
        if (!ahead) at = taken++;
      }
    });
  }

  void RunTasks(std::span<const AttentionTask> tasks) {
    RunTasks(static_cast<int64_t>(tasks.size()),
             [&](int64_t i) { return tasks[static_cast<size_t>(i)]; });
  }

  // The mass of a key needs each row's final lse: a second pass over the logits, split by keys so
  // that the sums over rows are made in one order whatever the threads.
  void RunWithMass(const AttentionItem& item) {
    const int64_t rows = Rows(item, group_);
    HEADWAY_CHECK(rows <= scratch_.limits.rows * scratch_.limits.group);
    auto* partial_lse = reinterpret_cast<float*>(scratch_.data + scratch_.threads * thread_bytes_);
    std::vector<AttentionTask> tasks;
    AddTasks(item, partial_lse, tasks);
    RunTasks(tasks);
    if (rows == 0) return;
    AttentionTask whole = tasks.front();
    whole.rows = rows;
    pool_.Run(CeilDiv(item.keys.pages.count, kKeyBlock), 1,
              [&](int thread, int64_t begin, int64_t end) {
                for (int64_t block = begin; block < end; ++block) {
                  code_.add_key_mass(whole, block, ThreadScratch(thread));
                }
              });
  }

  std::byte* ThreadScratch(int thread) const { return scratch_.data + thread * thread_bytes_; }

  const AttentionCode& code_;
  ThreadPool& pool_;
  const PageFormat& format_;
  int group_;
  const AttentionParams& params_;
  int64_t thread_bytes_;
  const AttentionScratch& scratch_;
  int64_t rows_per_task_ = 0;
};

void MergeRow(const MergeItem& item, int head_dim, int64_t row) {
  float max = kNoKeys;
  for (int part = 0; part < item.AllParts(); ++part) {
    max = MaxOrNan(max, item.PartLse(part)[row]);
  }
  float* o = static_cast<float*>(item.o) + row * head_dim;
  float sum = 0;
  // The first part is written, not added: `o` may hold anything, or be that part.
  bool first = true;
  for (int part = 0; part < item.AllParts(); ++part) {
    const float lse = item.PartLse(part)[row];
    if (lse == kNoKeys) continue;
    const float weight = std::exp(lse - max);
    const float* from = item.PartO(part) + row * head_dim;
    if (first) {
      for (int i = 0; i < head_dim; ++i) o[i] = from[i] * weight;
    } else {
      for (int i = 0; i < head_dim; ++i) o[i] += from[i] * weight;
    }
    sum += weight;
    first = false;
  }
  if (first) {
    std::fill_n(o, head_dim, 0.0f);
  } else {
    const float inverse = 1.0f / sum;
    for (int i = 0; i < head_dim; ++i) o[i] *= inverse;
  }
  if (item.lse != nullptr) item.lse[row] = first ? kNoKeys : max + std::log(sum);
}

}  // namespace

float LogSumOf(float max, float sum) {
  if (sum == 0.0f) return kNoKeys;
  return static_cast<float>(max * kLn2 + std::log(static_cast<double>(sum)));
}

VisibleKeys KeysSeenBy(const AttentionParams& params, const AttentionItem& item, int64_t token) {
  const int64_t position = item.q_position + token;
  const int64_t end = FirstAbove(item.keys, position);
  const int64_t begin = params.window > 0 ? FirstAbove(item.keys, position - params.window) : 0;
  return {static_cast<int32_t>(begin), static_cast<int32_t>(end)};
}

void StoreState(const AttentionTask& task, int64_t row, const float* o, float lse) {
  const AttentionItem& item = *task.item;
  const int64_t token = row / task.group;
  const int64_t head = row % task.group;
  const int64_t head_dim = task.format->head_dim;
  float* to = item.o + token * item.o_stride + head * head_dim;
  float& to_lse = item.lse[token * item.lse_stride + head];
  if (task.partial_lse != nullptr) task.partial_lse[row] = lse;
  if (!item.merge || to_lse == kNoKeys) {
    std::copy_n(o, head_dim, to);
    to_lse = lse;
    return;
  }
  if (lse == kNoKeys) return;
  const float max = MaxOrNan(to_lse, lse);
  const float weight = std::exp(to_lse - max);
  const float other = std::exp(lse - max);
  const float inverse = 1.0f / (weight + other);
  for (int64_t i = 0; i < head_dim; ++i) to[i] = (to[i] * weight + o[i] * other) * inverse;
  to_lse = max + std::log(weight + other);
}

std::byte* ScratchOfThread(const AttentionScratch& scratch, int thread) {
  HEADWAY_CHECK(thread < scratch.threads);
  return scratch.data + thread * ScratchBytesPerThread(scratch.limits.head_dim);
}

int64_t AttentionScratchBytes(const KernelLimits& limits, int threads) {
  return threads * ScratchBytesPerThread(limits.head_dim) +
         RoundUp(limits.rows * limits.group * int64_t{sizeof(float)}, 64);
}

AttentionCode AttentionCodeFor(Isa isa) {
  return {.strips = &AttentionStripOpsFor(isa),
          .tiles = isa == Isa::kAmx ? &AttentionAmxOps() : nullptr,
          .few = &AttentionFewOpsFor(isa),
          .few_on_tiles = isa == Isa::kAmx ? &AttentionAmxFewOps() : nullptr,
          .add_key_mass = AddKeyMassFor(isa)};
}

void AttendWith(const AttentionCode& code, ThreadPool& pool, const AttentionCall& call,
                const AttentionScratch& scratch) {
  Attention attention(code, pool, call.format, call.group, call.params, scratch);
  // Taking hundreds of states apart takes longer than waking the threads that wait for it: who can
  // do it ahead of time gives them one by one.
  const auto single = [](const AttentionItem& item) { return item.heads == 1 && item.split == 0; };
  if (std::all_of(call.items.begin(), call.items.end(), single)) {
    attention.Run(call.items);
  } else {
    attention.Run(SingleStates(call.format, call.group, call.items));
  }
}

void Attend(ThreadPool& pool, Isa isa, const AttentionCall& call, const AttentionScratch& scratch) {
  AttendWith(AttentionCodeFor(isa), pool, call, scratch);
}

void Merge(ThreadPool& pool, int head_dim, std::span<const MergeItem> items) {
  std::vector<int64_t> first_rows;  // of each item, in one row of all rows
  int64_t rows = 0;
  int64_t parts = 0;
  for (const MergeItem& item : items) {
    first_rows.push_back(rows);
    rows += item.rows;
    parts += item.rows * item.AllParts();
  }
  const int64_t grain =
      std::clamp<int64_t>(kRowsGrain * rows / std::max<int64_t>(parts, 1), 1, kRowsGrain);
  pool.Run(rows, grain, [&](int, int64_t begin, int64_t end) {
    size_t index = static_cast<size_t>(
        std::upper_bound(first_rows.begin(), first_rows.end(), begin) - first_rows.begin() - 1);
    for (int64_t row = begin; row < end; ++row) {
      while (row - first_rows[index] >= items[index].rows) ++index;
      MergeRow(items[index], head_dim, row - first_rows[index]);
    }
  });
}

void ScaleHeld(ThreadPool& pool, int head_dim, int group, std::span<const ScaleHeldItem> items) {
  const auto scale_row = [&](const ScaleHeldItem& item, int64_t row, int head) {
    const float* const lse = item.lse + row * item.lse_stride + head;
    const auto lse_of = [&](int holder) { return lse[item.columns[holder]]; };
    float* const to = static_cast<float*>(item.o) + row * item.o_stride + head * head_dim;
    const float* const from =
        item.from == nullptr ? to : item.from + row * item.from_stride + head * head_dim;
    const float own = lse_of(item.own);
    if (own == kNoKeys) {
      std::fill_n(to, head_dim, 0.0f);
      return;
    }
    float max = kNoKeys;
    for (int i = 0; i < item.holders; ++i) max = MaxOrNan(lse_of(i), max);
    float sum = 0.0f;
    for (int i = 0; i < item.holders; ++i) sum += std::exp(lse_of(i) - max);
    const float scale = std::exp(own - max) / sum;
    for (int i = 0; i < head_dim; ++i) to[i] = from[i] * scale;
  };
  for (const ScaleHeldItem& item : items) {
    pool.Run(item.rows, kRowsGrain, [&](int, int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int head = 0; head < group; ++head) scale_row(item, row, head);
      }
    });
  }
}

void StoreKv(ThreadPool& pool, Isa isa, const PageFormat& format,
             std::span<const StoreKvItem> items) {
  const StoreRowFunction store = StoreRowFor(isa);
  for (const StoreKvItem& item : items) {
    pool.Run(item.to.count * item.heads, kRowsGrain, [&](int, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t head = i / item.to.count;
        const int64_t row = i % item.to.count;
        const int64_t to = SlotOffset(format, item.to, head, row);
        const int64_t from = row * item.kv_stride + head * format.head_dim;
        store(static_cast<const float*>(item.k) + from, format.head_dim, format.dtype,
              item.to.k + to);
        store(static_cast<const float*>(item.v) + from, format.head_dim, format.dtype,
              item.to.v + to);
      }
    });
  }
}

void TurnKeys(ThreadPool& pool, Isa isa, const PageFormat& format, const TurnKeysItem& item) {
  const Elementwise& rows = ElementwiseFor(isa);
  const StoreRowFunction store = StoreRowFor(isa);
  const int half = item.table.rotary_dim / 2;
  pool.Run(item.heads * item.from.count, kRowsGrain, [&](int, int64_t begin, int64_t end) {
    std::vector<float> key(static_cast<size_t>(format.head_dim));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / item.from.count;
      const int64_t row = i % item.from.count;
      const int64_t at = SlotOffset(format, item.from, head, row);
      rows.to_f32(item.from.k + at, format.dtype, format.head_dim, key.data());
      rows.rope(item.table.cos + row * half, item.table.sin + row * half, half, 1, format.head_dim,
                key.data());
      store(key.data(), format.head_dim, format.dtype, item.to + at);
    }
  });
}

void EncodePages(ThreadPool& pool, Isa isa, const PageFormat& format,
                 std::span<const EncodePagesItem> items) {
  const EncodeHalfFunction lossless =
      format.encoding == Encoding::kLossless ? LosslessEncoderFor(isa) : nullptr;
  for (const EncodePagesItem& item : items) {
    const int64_t pages = item.from.count / format.page_slots;
    pool.Run(item.heads * pages, 1, [&](int, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        EncodePageOf(format, item, i / pages, i % pages, lossless);
    });
  }
}

}  // namespace headway::cpu
