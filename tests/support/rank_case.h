// What tests of ranks in one process share: golden models and placements of their heads.
#ifndef HEADWAY_TESTS_SUPPORT_RANK_CASE_H_
#define HEADWAY_TESTS_SUPPORT_RANK_CASE_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/head_set.h"
#include "base/random.h"
#include "model/weights/open_weights.h"
#include "parallel/local/local_group.h"
#include "support/golden.h"
#include "support/rank_gpus.h"
#include "support/step_harness.h"

namespace headway::testing {

using Placement = std::vector<std::vector<HeadSet>>;  // [ranks][layers]

// Each head of each layer at some rank, so that some have more than others and some have none.
inline Placement RandomPlacement(const ModelShape& shape, int ranks, uint64_t seed) {
  Random random(seed);
  Placement placement(static_cast<size_t>(ranks),
                      std::vector<HeadSet>(static_cast<size_t>(shape.layers)));
  for (size_t layer = 0; layer < static_cast<size_t>(shape.layers); ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      placement[static_cast<size_t>(random.Below(ranks))][layer].heads.push_back(head);
    }
  }
  return placement;
}

// The same, and some heads are held by several ranks, which have random shares of them.
inline Placement SharedPlacement(const ModelShape& shape, int ranks, uint64_t seed) {
  Random random(seed);
  Placement placement(static_cast<size_t>(ranks),
                      std::vector<HeadSet>(static_cast<size_t>(shape.layers)));
  for (size_t layer = 0; layer < static_cast<size_t>(shape.layers); ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      std::vector<int> holders = {static_cast<int>(random.Below(ranks))};
      for (int rank = 0; rank < ranks; ++rank) {
        if (rank != holders[0] && random.Below(2) == 0) holders.push_back(rank);
      }
      double left = 1.0;
      for (size_t i = 0; i < holders.size(); ++i) {
        HeadSet& set = placement[static_cast<size_t>(holders[i])][layer];
        const double share = i + 1 == holders.size() ? left : left * random.Uniform();
        set.heads.push_back(head);
        set.shares.push_back(share);
        left -= share;
      }
    }
  }
  return placement;
}

struct Case {
  Golden golden;
  ModelConfig config;

  explicit Case(const std::string& name) {
    Result<Golden> read = LoadGolden(*Env::Default(), name);
    EXPECT_TRUE(read.ok()) << read.status().message();
    golden = std::move(*read);
    config = *ReadModelConfig(*Env::Default(), golden.folder);
    const std::unique_ptr<WeightSource> source = *OpenWeights(*Env::Default(), golden.folder);
    config.shape.dtype = *CacheDType(config, *source);
  }
  int64_t length() const { return std::ssize(golden.prompt) + std::ssize(golden.tokens); }
};

inline std::unique_ptr<RankGroup> NewGroup(int ranks) {
  Result<std::unique_ptr<RankGroup>> group = NewLocalGroup(ranks, GpusOfRanks(ranks));
  EXPECT_TRUE(group.ok()) << group.status().message();
  return std::move(*group);
}

}  // namespace headway::testing

#endif  // HEADWAY_TESTS_SUPPORT_RANK_CASE_H_
