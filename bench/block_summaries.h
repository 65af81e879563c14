// What kinds of summaries say of blocks of keys, in plain float arithmetic: so that what is kept of
// a block, and in how many bits, can be compared without a kernel for each.
#ifndef HEADWAY_BENCH_BLOCK_SUMMARIES_H_
#define HEADWAY_BENCH_BLOCK_SUMMARIES_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"
#include "kernels/selection.h"

namespace headway::bench {

inline constexpr int kPageKeys = 64;

// What is kept of each channel of a block, and how its score is made of that.
enum class Kept : uint8_t {
  kMasses,          // all keys: log Σ exp(q·k), the truth
  kMoments,         // mean and variance: q·mean + ½ Σ q²·variance
  kDeviations,      // the same, with codes of the variance's root
  kMeans,           // mean alone: q·mean
  kMeansInPages,    // mean, and for variance that which an encoded page's parameters say
  kBoxes,           // least and greatest: Σ max(q·least, q·greatest)
  kEncodedBoxes,    // the same, as the parameters of an encoded page have them
  kEncodedMoments,  // and as moments: the middle, and the variance of normal numbers of that span
};

// A way to choose: summaries of blocks, and who shares a budget.
struct Way {
  std::string name;
  Kept kept = Kept::kMoments;
  int block = 16;  // keys
  int bits = 8;    // of a code, whose row has one scale; 0: floats as they are
  BudgetShare share = BudgetShare::kLayer;
  Encoding encoding = Encoding::kNone;  // of what parameters of pages say
};

// Bytes that a summary takes for each key and KV head: codes and scales.
double BytesPerKey(const Way& way, int head_dim);

// Keys of a KV head, and what ways keep of them. Keys are appended as their pages close.
class HeadSummaries {
 public:
  // `head_dim` is a multiple of 8.
  HeadSummaries(std::span<const Way> ways, int head_dim);

  // [count, head_dim], whole pages.
  void Append(std::span<const float> keys);
  int64_t count() const { return static_cast<int64_t>(keys_.size()) / head_dim_; }
  float Product(std::span<const float> q, int64_t index) const;  // with a key

  // The scores of all blocks of a way, but kMasses, for the query head `q`.
  std::vector<float> Scores(size_t way, std::span<const float> q, float scale) const;

 private:
  const float* RowOf(size_t way, int64_t block, int row) const;

  const std::span<const Way> ways_;
  const int head_dim_;
  std::vector<float> keys_;               // [count, head_dim]
  std::vector<std::vector<float>> rows_;  // of each way: [blocks, 2, head_dim]
};

}  // namespace headway::bench

#endif  // HEADWAY_BENCH_BLOCK_SUMMARIES_H_
