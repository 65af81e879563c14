// Random weights: normal numbers by table, four for each 64 random bits, some ten times as fast as
// computing them.
#ifndef HEADWAY_MODEL_WEIGHTS_NORMAL_TABLE_H_
#define HEADWAY_MODEL_WEIGHTS_NORMAL_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace headway {

class NormalTable {
 public:
  NormalTable(DType dtype, float deviation);

  // `count` numbers of the dtype that depend on the seed alone.
  void Fill(uint64_t seed, std::byte* to, int64_t count) const;

 private:
  DType dtype_;
  std::vector<std::byte> bytes_;
};

}  // namespace headway

#endif  // HEADWAY_MODEL_WEIGHTS_NORMAL_TABLE_H_
