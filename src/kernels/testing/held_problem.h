// Random states of the holders of a KV head, for tests of ScaleHeld: what they make of theirs adds
// up to what Merge makes of all.
#ifndef HEADWAY_KERNELS_TESTING_HELD_PROBLEM_H_
#define HEADWAY_KERNELS_TESTING_HELD_PROBLEM_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/random.h"
#include "kernels/attention.h"

namespace headway {

struct HeldProblem {
  static constexpr float kNoKeys = -std::numeric_limits<float>::infinity();

  explicit HeldProblem(Random& random)
      : group(1 + static_cast<int>(random.Below(4))),
        head_dim(1 + static_cast<int>(random.Below(140))),
        rows(1 + random.Below(70)),
        holders(1 + static_cast<int>(random.Below(6))),
        stride(group * head_dim + random.Below(9)),
        lse_stride(holders * group + random.Below(9)) {
    const int shift = static_cast<int>(lse_stride) - holders * group;
    lse.assign(static_cast<size_t>(rows * lse_stride), std::nanf(""));
    for (int holder = 0; holder < holders; ++holder) {
      columns.push_back(shift + (holders - 1 - holder) * group);
      std::vector<float>& states = o.emplace_back();
      for (int64_t i = 0; i < rows * stride; ++i) states.push_back(random.Normal());
      for (int64_t row = 0; row < rows; ++row) {
        for (int head = 0; head < group; ++head) {
          const bool empty = random.Below(4) == 0;
          LseOf(holder, row, head) = empty ? kNoKeys : 30.0f * random.Normal();
          // What such a state has as output is not to be read.
          if (empty) states[static_cast<size_t>(row * stride + head * head_dim)] = std::nanf("");
        }
      }
    }
  }

  float& LseOf(int holder, int64_t row, int head) {
    const int64_t column = columns[static_cast<size_t>(holder)] + head;
    return lse[static_cast<size_t>(row * lse_stride + column)];
  }

  // Without what it points to.
  ScaleHeldItem ItemOf(int holder) const {
    ScaleHeldItem item;
    item.from_stride = item.o_stride = stride;
    item.lse_stride = lse_stride;
    for (const int column : columns) item.columns[item.holders++] = column;
    item.own = holder;
    item.rows = rows;
    return item;
  }

  int group, head_dim;
  int64_t rows;
  int holders;
  int64_t stride, lse_stride;         // of rows
  std::vector<std::vector<float>> o;  // [holders][rows, stride]
  std::vector<float> lse;             // [rows, lse_stride]
  std::vector<int> columns;           // [holders]
};

}  // namespace headway

#endif  // HEADWAY_KERNELS_TESTING_HELD_PROBLEM_H_
