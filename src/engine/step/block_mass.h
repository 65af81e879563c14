// BlockMass: reads from a decode step how much of each head's attention falls on far blocks, on
// those of them that the path of selection lists, and on the best ones: how near a selector comes
// to an oracle.
#ifndef HEADWAY_ENGINE_STEP_BLOCK_MASS_H_
#define HEADWAY_ENGINE_STEP_BLOCK_MASS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/step/batch.h"
#include "engine/step/board.h"
#include "engine/step/step_context.h"
#include "headway/context.h"

namespace headway {

// Of the blocks of one layer: masses [KV heads, blocks], the sum over the query heads of a group of
// the share of their attention that falls on the block.
struct LayerMasses {
  int heads = 0;
  int64_t blocks = 0;
  std::vector<double> masses;

  double& at(int head, int64_t block) { return masses[static_cast<size_t>(head * blocks + block)]; }
};
// Adds a layer's step to the sums of its heads: `lists` [KV heads] are the blocks listed, `group`
// the query heads of a KV head.
void AddRecall(LayerMasses& masses, const SelectionBudget& budget, int group,
               std::span<const std::span<const int32_t>> lists,
               std::span<SelectionRecall::Head> heads);

class BlockMass : public AttentionObserver {
 public:
  // Of a batch of one token. The step is added to `recall`, which has the model's heads.
  BlockMass(StepContext& context, const Batch& batch, Board& board, SelectionRecall* recall);

  bool WantsLists() const override { return true; }
  void OnLists(int entry, const SelectItem& item, std::span<const kv::BlockSpan> spans) override;
  void OnRange(int entry, std::span<const kv::HeadRun> heads, const KeyRun& keys) override;
  Status OnLayer(int layer) override;

 private:
  void CopyToHost(void* to, const void* from, int64_t bytes);
  void AddStates(std::span<const kv::HeadRun> heads, const KeyRun& keys, int64_t begin, int64_t end,
                 const Board::SpareStates& states);

  StepContext& context_;
  const Batch& batch_;
  Board& board_;
  SelectionRecall* const recall_;
  // Of the layer at hand:
  bool listed_ = false;
  bool gaps_ = false;  // some blocks before the last are not among those to choose from
  SelectionBudget budget_;
  int64_t blocks_ = 0;
  int64_t capacity_ = 0;
  std::vector<int32_t> lists_;   // [KV heads, capacity]
  std::vector<int32_t> counts_;  // [KV heads]
  std::vector<float> lse_;       // [blocks, query_heads]
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_BLOCK_MASS_H_
