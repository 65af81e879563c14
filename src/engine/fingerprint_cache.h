// The fingerprints of weights that were read before, in the user's cache folder, so that a session
// that goes on does not read them again.
#ifndef HEADWAY_ENGINE_FINGERPRINT_CACHE_H_
#define HEADWAY_ENGINE_FINGERPRINT_CACHE_H_

#include <cstdint>
#include <string>

#include "base/env.h"
#include "base/thread_pool.h"
#include "headway/status.h"
#include "model/model.h"

namespace headway {

// Model::Fingerprint, from the cache where none of the model's files has changed since it was kept
// there. An error only where they changed after the model was loaded: a cache that cannot be read
// or written is one that has nothing. `pool` may be null.
Result<uint64_t> WeightsFingerprint(Env& env, const Model& model, ThreadPool* pool);

// The file that holds them: a line each, the newest first.
std::string FingerprintCachePath();

}  // namespace headway

#endif  // HEADWAY_ENGINE_FINGERPRINT_CACHE_H_
