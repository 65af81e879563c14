#include "engine/paths/registry.h"

#include <algorithm>
#include <vector>

#include "engine/paths/demoted.h"
#include "engine/paths/host.h"
#include "engine/paths/recompute.h"
#include "engine/paths/salient.h"
#include "engine/paths/selected_prefill.h"
#include "engine/paths/selection.h"
#include "engine/paths/self_extend.h"
#include "engine/paths/slabs.h"
#include "engine/paths/streaming_heads.h"
#include "engine/paths/tail.h"

namespace headway {
namespace {

std::vector<PathKind>& Kinds() {
  static std::vector<PathKind> kinds = {
      kRecomputePath, kSelectionPath, kSelectedPrefillPath, kSelfExtendPath,     kSalientPath,
      kDemotedPath,   kHostPath,      kSlabsPath,           kStreamingHeadsPath, kTailPath};
  return kinds;
}

}  // namespace

std::span<const PathKind> RegisteredPaths() { return Kinds(); }

bool RegisterPath(const PathKind& kind) {
  std::vector<PathKind>& kinds = Kinds();
  const auto before = [](const PathKind& a, const PathKind& b) { return a.order < b.order; };
  kinds.insert(std::upper_bound(kinds.begin(), kinds.end(), kind, before), kind);
  return true;
}

}  // namespace headway
