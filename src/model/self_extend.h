// Self-Extend (Jin et al., "LLM Maybe LongLM", 2024): a model reads beyond the window that it was
// trained for, since far distances are counted in groups. A query sees keys at true distances below
// `window` as they are; keys farther back count at position p / group, for a query that counts at
// p / group + window - window / group, so that distances go on where the near ones end.
#ifndef HEADWAY_MODEL_SELF_EXTEND_H_
#define HEADWAY_MODEL_SELF_EXTEND_H_

#include <cstdint>

namespace headway {

struct SelfExtend {
  int64_t group = 1;
  int64_t window = 0;  // 0: no position is grouped

  bool on() const { return window > 0; }
  // Where the key at `position` counts for queries that are at least `window` behind it, and where
  // such a query counts for these keys.
  int64_t FarKey(int64_t position) const { return position / group; }
  int64_t FarQuery(int64_t position) const { return position / group + window - window / group; }

  bool operator==(const SelfExtend&) const = default;
};

}  // namespace headway

#endif  // HEADWAY_MODEL_SELF_EXTEND_H_
