// ResidualSums: what ranks add up of the residual stream in a step. A step of many rows goes in
// pieces, whose sums have a lane of their own: they run beside the products of the other pieces.
#ifndef HEADWAY_ENGINE_STEP_RESIDUAL_SUMS_H_
#define HEADWAY_ENGINE_STEP_RESIDUAL_SUMS_H_

#include <cstdint>
#include <vector>

#include "device/lanes.h"
#include "headway/status.h"
#include "model/arch/run.h"
#include "parallel/communicator.h"

namespace headway {

class ResidualSums final : public arch::ResidualSum {
 public:
  // Both outlive it.
  ResidualSums(Communicator& communicator, Lanes& lanes)
      : communicator_(communicator), lanes_(lanes) {}
  // Sums under way use the residual stream.
  ~ResidualSums() override { lanes_.stream(Lane::kRanks).Synchronize().ok(); }

  // Cuts a step's rows into pieces of `rows_of_sum` each at least: as many on all ranks.
  void Cut(int64_t rows, int64_t rows_of_sum);
  int pieces() const { return static_cast<int>(summed_.size()); }
  // A GPU's multiprocessors that sums take from what runs beside them.
  int multiprocessors() const { return pieces() > 1 ? communicator_.multiprocessors() : 0; }

  void Begin(int piece, float* residual, int64_t count) override;
  void Await(int piece) override;
  // Of a step: what the stream is given from now on finds all sums, and comes in one piece.
  void End();
  // The first error of the sums, or of the kernels beside them.
  Status status();

 private:
  Communicator& communicator_;
  Lanes& lanes_;
  // Of each piece, the point behind its sum, until it is awaited. One piece is added up between
  // kernels, and has none.
  std::vector<Fence> summed_ = std::vector<Fence>(1);
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_RESIDUAL_SUMS_H_
