// What attention.cc splits over threads and the files for each instruction set compute: the pieces
// of Attend that one thread does. Internal to the attention files.
//
// Words of these files: a row is one query of one query head (row = token * group + head of the
// item), a strip is as many rows as the inner loops take at once, a block is kKeyBlock consecutive
// keys of an item, counted from its first. Strips and blocks depend on the item alone, and a
// strip's arithmetic on nothing outside it: so no split over threads changes a bit.
#ifndef HEADWAY_KERNELS_CPU_ATTENTION_OPS_H_
#define HEADWAY_KERNELS_CPU_ATTENTION_OPS_H_

#include <xmmintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/isa.h"
#include "kernels/elementwise.h"
#include "kernels/page_codec.h"

namespace headway::cpu {

inline constexpr int64_t kKeyBlock = 128;

// log2(e) and ln(2): exponentials are taken to base 2 inside.
inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr double kLn2 = 0.693147180559945309;

// Rows [first_row, first_row + rows) of an item, first_row at the start of a strip.
struct AttentionTask {
  const PageFormat* format = nullptr;
  const AttentionParams* params = nullptr;
  const AttentionItem* item = nullptr;
  int group = 1;
  int64_t first_row = 0;
  int64_t rows = 0;
  float* partial_lse = nullptr;  // [rows of the item], or null: the item's own lse, before merging
  const AttentionItem* next = nullptr;  // of the same thread's next task, if that is known
};

// The keys that a query sees, [begin, end) of the item: key positions ascend, so they are adjacent.
struct VisibleKeys {
  int32_t begin = 0;
  int32_t end = 0;
};
VisibleKeys KeysSeenBy(const AttentionParams& params, const AttentionItem& item, int64_t token);

// Writes or merges one row's partial state into the item's output. `o` [head_dim] is normalised.
void StoreState(const AttentionTask& task, int64_t row, const float* o, float lse);

// The query of a row [head_dim].
inline const float* QueryOf(const AttentionTask& task, int64_t row) {
  return static_cast<const float*>(task.item->q) + row / task.group * task.item->q_stride +
         row % task.group * task.format->head_dim;
}

// How the logits leave the product of queries and keys, and what is still to do to them. The
// softmax works on logits * log2(e).
struct LogitScale {
  explicit LogitScale(const AttentionParams& params)
      : q(params.softcap == 0 ? params.scale * kLog2E : params.scale), softcap(params.softcap) {}
  float q;        // the queries are multiplied by this
  float softcap;  // then logits become softcap * tanh(logit / softcap) * log2(e), if not 0
};

// The natural logarithm of a sum of 2^(logit - max); -inf where the sum is over no key.
float LogSumOf(float max, float sum);

// The keys that the rows of a strip see, given those of each row: rows are in the order of their
// positions, so that the first row sees the earliest keys and the last the latest.
struct StripKeys {
  StripKeys(const int32_t* row_begin, const int32_t* row_end, int64_t rows)
      : begin(row_begin[0]),
        common_begin(row_begin[rows - 1]),
        common_end(row_end[0]),
        end(row_end[rows - 1]) {}
  int64_t begin, common_begin, common_end, end;  // of any row, of all rows
};

// Makes results below 2^-126 zero, and takes such operands as zero, while it lives: processors are
// two orders of magnitude slower on them, and softmax makes many.
class FlushDenormals {
 public:
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }
  ~FlushDenormals() { _mm_setcsr(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned before_;
};

// Whether a run's pages are to be expanded before they are read as bf16.
inline bool IsLossless(const PageFormat& format, const PageRun& run) {
  return run.params != nullptr && format.encoding == Encoding::kLossless;
}
// Whether a run's numbers are bf16.
inline bool HoldsBF16(const PageFormat& format, const PageRun& run) {
  return format.dtype == DType::kBF16 && (run.params == nullptr || IsLossless(format, run));
}

// Whether those of closed pages are.
inline bool HoldsBF16(const PageFormat& format) {
  return format.dtype == DType::kBF16 &&
         (format.encoding == Encoding::kNone || format.encoding == Encoding::kLossless);
}

// Bytes of a row of K or V of a run's pages.
inline int64_t RowBytes(const PageFormat& format, const PageRun& run) {
  const Encoding encoding = run.params == nullptr ? Encoding::kNone : format.encoding;
  return EncodedBytes(encoding, format.dtype, format.head_dim);
}

// Walks over the rows of K or V of consecutive keys, from one that is there.
class RowCursor {
 public:
  // From key `key` of the run on; `pages` is its k or v.
  RowCursor(const PageFormat& format, const PageRun& run, const std::byte* pages, int64_t key)
      : page_stride_(run.page_stride),
        page_(pages + (run.first_slot + key) / format.page_slots * run.page_stride),
        last_page_(pages + (run.first_slot + run.count - 1) / format.page_slots * run.page_stride),
        slot_(static_cast<int>((run.first_slot + key) % format.page_slots)),
        page_slots_(format.page_slots),
        row_bytes_(RowBytes(format, run)),
        row_(page_ + slot_ * row_bytes_) {}

  const std::byte* row() const { return row_; }
  int64_t row_bytes() const { return row_bytes_; }
  // Rows from this one on that lie next to each other.
  int64_t adjacent() const { return page_slots_ - slot_; }
  const std::byte* page() const { return page_; }
  bool on_last_page() const { return page_ == last_page_; }

  // To the row `count` <= adjacent() keys on, which must be there.
  void Advance(int64_t count = 1) {
    row_ += count * row_bytes_;
    slot_ += static_cast<int>(count);
    if (slot_ == page_slots_) {
      slot_ = 0;
      page_ += page_stride_;
      row_ = page_;
    }
  }

 private:
  int64_t page_stride_;
  const std::byte* page_;
  const std::byte* last_page_;
  int slot_;
  int page_slots_;
  int64_t row_bytes_;
  const std::byte* row_;
};

// Keys of one page, and how they are rotated on before they are attended to: one row of angles, or
// a rotary_dim of 0.
struct RunOfPage {
  PageRun pages;
  RopeTable turn = {};
};

// Keys that lie in runs of one page each, given one after the other.
class PageRuns {
 public:
  virtual ~PageRuns() = default;
  // Angles that it gives hold until the next call but one.
  virtual bool Next(RunOfPage* run) = 0;
};

// Their keys as blocks.
class BlocksOfRuns {
 public:
  explicit BlocksOfRuns(PageRuns& runs) : runs_(runs), more_(runs.Next(&run_)) {}

  // The next block, of `most` keys or those that are left; returns their number. Each piece goes to
  // load(run, first key of the run, keys, where they are in the block).
  template <typename Load>
  int64_t Next(int64_t most, const Load& load) {
    int64_t count = 0;
    while (more_ && count < most) {
      const int64_t keys = std::min(most - count, run_.pages.count - first_);
      load(run_, first_, keys, count);
      count += keys;
      first_ += keys;
      if (first_ < run_.pages.count) continue;
      more_ = runs_.Next(&run_);
      first_ = 0;
    }
    return count;
  }

 private:
  PageRuns& runs_;
  RunOfPage run_;
  int64_t first_ = 0;  // key of the run
  bool more_;
};

// Any number of queries, in strips.
struct AttentionStripOps {
  int64_t strip_rows;
  int64_t (*max_strips)(int64_t head_dim);     // of one task
  int64_t (*scratch_bytes)(int64_t head_dim);  // of one thread
  void (*attend)(const AttentionTask& task, std::byte* scratch);
  // Every row sees all keys of the runs; the item's own keys are not read. Null on emulated tiles.
  void (*attend_runs)(const AttentionTask& task, PageRuns& runs, std::byte* scratch);
};
const AttentionStripOps& AttentionStripOpsFor(Isa isa);

// Adds the mass of the keys of one block of kKeyBlock. The task is the whole item, partial_lse
// filled; `scratch` is as large as for AttentionStripOpsFor(isa).
using AddKeyMassFunction = void (*)(const AttentionTask& task, int64_t block, std::byte* scratch);
AddKeyMassFunction AddKeyMassFor(Isa isa);

// On AMX tiles: bf16 pages, without key transform or key mass; Q and the softmax's weights are
// rounded to bf16. Emulated, the same code runs on a plain loop in place of the tiles: for tests.
const AttentionStripOps& AttentionAmxOps();
const AttentionStripOps& AttentionEmulatedAmxOps();

// Few queries: the task is a whole item of at most kFewRowsMax rows, without softcap, key transform
// or key mass.
inline constexpr int64_t kFewRowsMax = 32;
struct AttentionFewOps {
  int64_t (*scratch_bytes)(int64_t head_dim);  // of one thread
  void (*attend)(const AttentionTask& task, std::byte* scratch);
  // One token that sees all keys of the runs, of which there is at least one; the item's own keys
  // are not read. Null on tiles.
  void (*attend_runs)(const AttentionTask& task, PageRuns& runs, std::byte* scratch);
};
const AttentionFewOps& AttentionFewOpsFor(Isa isa);

// The same on AMX tiles: bf16 pages, head_dim a multiple of kFewChunk. Weights are rounded to 2^-16
// of themselves. And emulated, as above.
inline constexpr int kFewChunk = 32;
// Up to so many rows vectors keep up with memory, and reach more of it than tiles.
inline constexpr int kFewOffTilesMax = 8;
const AttentionFewOps& AttentionAmxFewOps();
const AttentionFewOps& AttentionEmulatedAmxFewOps();

// A thread's share of the scratch, enough for any task within the limits.
std::byte* ScratchOfThread(const AttentionScratch& scratch, int thread);

// The code of an instruction set, and Attend with it.
struct AttentionCode {
  const AttentionStripOps* strips;
  const AttentionStripOps* tiles;  // for the items that it can do; or null
  const AttentionFewOps* few;
  const AttentionFewOps* few_on_tiles;  // for the items that it can do; or null
  AddKeyMassFunction add_key_mass;
};
AttentionCode AttentionCodeFor(Isa isa);
void AttendWith(const AttentionCode& code, ThreadPool& pool, const AttentionCall& call,
                const AttentionScratch& scratch);

// to[i] = from[i] rounded to nearest even, `count` elements without alignment.
using StoreRowFunction = void (*)(const float* from, int64_t count, DType dtype, std::byte* to);
StoreRowFunction StoreRowFor(Isa isa);

// lossless::EncodeHalf with an instruction set.
EncodeHalfFunction LosslessEncoderFor(Isa isa);

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_ATTENTION_OPS_H_
