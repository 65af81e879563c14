#include "engine/step/layer_relay.h"

namespace headway {

Status LayerRelay::Receive(float* residual, int64_t count) {
  for (int from = 0; from < communicator_.rank(); ++from) Give(residual, count, from);
  return compute_.status();
}

Status LayerRelay::HandOn(float* residual, int64_t count, bool to_all) {
  // All ranks take part in each, those before the giver, too. So the first one begins another step
  // as soon as the last one has what it needs of this one.
  const int givers = communicator_.ranks() - (to_all ? 0 : 1);
  for (int from = communicator_.rank(); from < givers; ++from) Give(residual, count, from);
  return compute_.status();
}

// As columns of which one rank has all: large ones go from memory to memory.
void LayerRelay::Give(float* residual, int64_t count, int from) {
  const bool gives = communicator_.rank() == from;
  communicator_.AllGather(compute_, {residual, 1, count, 0, gives ? count : 0});
}

}  // namespace headway
