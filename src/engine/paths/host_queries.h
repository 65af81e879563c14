// Queries on their way to the host's cores.
#ifndef HEADWAY_ENGINE_PATHS_HOST_QUERIES_H_
#define HEADWAY_ENGINE_PATHS_HOST_QUERIES_H_

#include <vector>

#include "engine/paths/host_attention.h"
#include "engine/step/batch.h"
#include "engine/step/step_context.h"

namespace headway {

// Copies those of the layer at hand, of decode entries that attend to keys on the host, to where
// they are read there. [entries]
void SendQueries(StepContext& context, const Batch& batch, const std::vector<bool>& on_host,
                 HostAttention& host);

}  // namespace headway

#endif  // HEADWAY_ENGINE_PATHS_HOST_QUERIES_H_
