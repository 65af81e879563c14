#include "engine/step/residual_sums.h"

#include <utility>

#include "plan/communication.h"

namespace headway {

void ResidualSums::Cut(int64_t rows, int64_t rows_of_sum) {
  summed_.assign(static_cast<size_t>(plan::PiecesOfSum(rows, rows_of_sum)), {});
}

// Calls of all ranks come in one order, whichever lane they are on: kernels wait for the sums of
// all pieces before anything else is said on the compute lane, and the other way round.
void ResidualSums::Begin(int piece, float* residual, int64_t count) {
  if (summed_.size() == 1) {
    communicator_.AllReduceSum(lanes_.stream(Lane::kCompute), residual, count);
    return;
  }
  Fence made;
  made.Add(Lane::kCompute, lanes_.Mark(Lane::kCompute));
  lanes_.Wait(Lane::kRanks, made);
  communicator_.AllReduceSum(lanes_.stream(Lane::kRanks), residual, count);
  Fence& summed = summed_[static_cast<size_t>(piece)];
  summed = {};
  summed.Add(Lane::kRanks, lanes_.Mark(Lane::kRanks));
}

void ResidualSums::Await(int piece) {
  if (pieces() == 1) return;
  lanes_.Wait(Lane::kCompute, std::exchange(summed_[static_cast<size_t>(piece)], {}));
}

void ResidualSums::End() {
  for (int piece = 0; piece < pieces(); ++piece) Await(piece);
  summed_.assign(1, {});
}

Status ResidualSums::status() {
  if (Status s = lanes_.stream(Lane::kRanks).status(); !s.ok()) return s;
  return lanes_.stream(Lane::kCompute).status();
}

}  // namespace headway
