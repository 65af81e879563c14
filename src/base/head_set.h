// HeadSet: the KV heads that a rank holds.
#ifndef HEADWAY_BASE_HEAD_SET_H_
#define HEADWAY_BASE_HEAD_SET_H_

#include <cstddef>
#include <numeric>
#include <vector>

namespace headway {

struct HeadSet {
  std::vector<int> heads;  // by their index in the model, ascending

  static HeadSet All(int kv_heads) {
    HeadSet set;
    set.heads.resize(static_cast<size_t>(kv_heads));
    std::iota(set.heads.begin(), set.heads.end(), 0);
    return set;
  }
  int size() const { return static_cast<int>(heads.size()); }
};

}  // namespace headway

#endif  // HEADWAY_BASE_HEAD_SET_H_
