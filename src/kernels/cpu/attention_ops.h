// What attention.cc splits over threads and the files for each instruction set compute: the pieces
// of Attend that one thread does. Internal to the attention files.
//
// Words of these files: a row is one query of one query head (row = token * group + head of the
// item), a strip is as many rows as the inner loops take at once, a block is kKeyBlock consecutive
// keys of an item, counted from its first. Strips and blocks depend on the item alone, and a
// strip's arithmetic on nothing outside it: so no split over threads changes a bit.
#ifndef HEADWAY_KERNELS_CPU_ATTENTION_OPS_H_
#define HEADWAY_KERNELS_CPU_ATTENTION_OPS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/kernels.h"

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
};

// The keys that a query sees, [begin, end) of the item: key positions ascend, so they are adjacent.
struct VisibleKeys {
  int32_t begin = 0;
  int32_t end = 0;
};
VisibleKeys KeysSeenBy(const AttentionParams& params, const AttentionItem& item, int64_t token);

// Writes or merges one row's partial state into the item's output. `o` [head_dim] is normalised.
void StoreState(const AttentionTask& task, int64_t row, const float* o, float lse);

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

// Any number of queries, in strips.
struct AttentionStripOps {
  int64_t strip_rows;
  int64_t (*max_strips)(int64_t head_dim);     // of one task
  int64_t (*scratch_bytes)(int64_t head_dim);  // of one thread
  void (*attend)(const AttentionTask& task, std::byte* scratch);
  // The mass of the keys of one block: the task is the whole item, with partial_lse filled.
  void (*add_key_mass)(const AttentionTask& task, int64_t block, std::byte* scratch);
};
const AttentionStripOps& AttentionStripOpsFor(Isa isa);

// Few queries: the task is a whole item of at most kFewRowsMax rows, without softcap, key transform
// or key mass.
inline constexpr int64_t kFewRowsMax = 32;
struct AttentionFewOps {
  int64_t (*scratch_bytes)(int64_t head_dim);  // of one thread
  void (*attend)(const AttentionTask& task, std::byte* scratch);
};
const AttentionFewOps& AttentionFewOpsFor(Isa isa);

// to[i] = from[i] rounded to nearest even, `count` elements without alignment.
using StoreRowFunction = void (*)(const float* from, int64_t count, DType dtype, std::byte* to);
StoreRowFunction StoreRowFor(Isa isa);

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_ATTENTION_OPS_H_
