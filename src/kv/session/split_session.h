// A session whose head groups have several heads, as one in which each head has slabs of its own,
// so that any ranks can share it.
#ifndef HEADWAY_KV_SESSION_SPLIT_SESSION_H_
#define HEADWAY_KV_SESSION_SPLIT_SESSION_H_

#include <memory>

#include "device/budget.h"
#include "headway/status.h"
#include "kv/session/session_claim.h"
#include "kv/session/slab_file.h"

namespace headway::kv {

// Copies what the session holds to another file, which then takes its place; until then the disk
// has both. Of what heads keep there are slabs of one head anyway. kCorrupt for a damaged page;
// after any error the session is what it was.
Result<std::unique_ptr<SlabFile>> SplitSession(std::unique_ptr<SessionClaim> claim, Budget* budget);

}  // namespace headway::kv

#endif  // HEADWAY_KV_SESSION_SPLIT_SESSION_H_
