// LayerRelay: hands the residual stream on where each rank has a run of a model's layers, one
// behind the other.
#ifndef HEADWAY_ENGINE_STEP_LAYER_RELAY_H_
#define HEADWAY_ENGINE_STEP_LAYER_RELAY_H_

#include <cstdint>

#include "device/device.h"
#include "headway/status.h"
#include "parallel/communicator.h"

namespace headway {

class LayerRelay {
 public:
  // Both outlive it.
  LayerRelay(Communicator& communicator, Stream& compute)
      : communicator_(communicator), compute_(compute) {}

  bool first() const { return communicator_.rank() == 0; }
  // residual [count], on the device, becomes what the layers before this rank's have made of the
  // step's rows.
  Status Receive(float* residual, int64_t count);
  // Gives what this rank's layers have made of it to the next one. With to_all it becomes what the
  // last layer makes, on every rank.
  Status HandOn(float* residual, int64_t count, bool to_all);

 private:
  void Give(float* residual, int64_t count, int from);

  Communicator& communicator_;
  Stream& compute_;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_LAYER_RELAY_H_
