// What a policy adds up over ranks, by their communicator.
#ifndef HEADWAY_ENGINE_RANK_SUMS_H_
#define HEADWAY_ENGINE_RANK_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "headway/status.h"
#include "kv/policy/sharing_heads.h"
#include "parallel/communicator.h"

namespace headway {

class HostRankSums final : public kv::RankSums {
 public:
  explicit HostRankSums(Communicator& communicator) : communicator_(communicator) {}

  Status AddUp(std::span<int64_t> values) override { return Sum(values); }
  Status AddUp(std::span<double> values) override { return Sum(values); }

 private:
  template <typename T>
  Status Sum(std::span<T> values) {
    const auto ranks = static_cast<size_t>(communicator_.ranks());
    std::vector<T> all(ranks * values.size());
    if (Status s = communicator_.GatherOnHost(std::as_bytes(values),
                                              std::as_writable_bytes(std::span(all)));
        !s.ok()) {
      return s;
    }
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = all[i];
      for (size_t rank = 1; rank < ranks; ++rank) values[i] += all[rank * values.size() + i];
    }
    return OkStatus();
  }

  Communicator& communicator_;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_RANK_SUMS_H_
