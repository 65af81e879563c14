#include "engine/step/residual_sums.h"

#include "plan/communication.h"

namespace headway {

int ResidualSums::Cut(int64_t rows, int64_t rows_of_sum) {
  const int pieces = plan::PiecesOfSum(rows, rows_of_sum);
  summed_.resize(static_cast<size_t>(pieces));
  return pieces;
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
  if (summed_.size() > 1) lanes_.Wait(Lane::kCompute, summed_[static_cast<size_t>(piece)]);
}

Status ResidualSums::status() {
  if (Status s = lanes_.stream(Lane::kRanks).status(); !s.ok()) return s;
  return lanes_.stream(Lane::kCompute).status();
}

}  // namespace headway
