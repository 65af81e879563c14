#include "engine/eval/recall.h"

#include <iterator>

namespace headway::eval {
namespace {

void Add(const SelectionRecall& one, SelectionRecall* sum) {
  sum->layers = one.layers;
  sum->kv_heads = one.kv_heads;
  sum->steps += one.steps;
  sum->heads.resize(one.heads.size());
  for (size_t i = 0; i < one.heads.size(); ++i) {
    SelectionRecall::Head& to = sum->heads[i];
    const SelectionRecall::Head& from = one.heads[i];
    to.far += from.far;
    to.listed += from.listed;
    to.best_of_head += from.best_of_head;
    to.best_of_layer += from.best_of_layer;
    to.listed_blocks += from.listed_blocks;
    to.far_blocks += from.far_blocks;
  }
}

}  // namespace

Result<SelectionRecall> MeasureRecall(Context& context, const SpreadWindows& windows,
                                      const Hooks& hooks) {
  const SpreadWindows::Shape& shape = windows.shape();
  SelectionRecall sum;
  for (int64_t window = 0; window < shape.count; ++window) {
    context.Reset();
    const Result<SelectionRecall> one =
        context.RecallOfSelection(windows.Window(window), shape.length - shape.compared, hooks);
    if (!one.ok()) return one.status();
    Add(*one, &sum);
    Progress progress;
    progress.done = (window + 1) * shape.length;
    progress.total = shape.count * shape.length;
    if (hooks.on_progress) hooks.on_progress(progress);
  }
  return sum;
}

RecallShares SharesOf(std::span<const SelectionRecall::Head> heads, int64_t steps) {
  SelectionRecall::Head sum;
  for (const SelectionRecall::Head& head : heads) {
    sum.far += head.far;
    sum.listed += head.listed;
    sum.best_of_head += head.best_of_head;
    sum.best_of_layer += head.best_of_layer;
    sum.listed_blocks += head.listed_blocks;
    sum.far_blocks += head.far_blocks;
  }
  RecallShares shares;
  if (sum.far_blocks == 0 || sum.far <= 0.0) return shares;
  shares.listed = sum.listed / sum.far;
  shares.best_of_head = sum.best_of_head / sum.far;
  shares.best_of_layer = sum.best_of_layer / sum.far;
  shares.far = sum.far / static_cast<double>(steps * std::ssize(heads));
  shares.blocks = static_cast<double>(sum.listed_blocks) / static_cast<double>(sum.far_blocks);
  return shares;
}

}  // namespace headway::eval
