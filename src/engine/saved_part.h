// What a rank in a process of its own tells the first one of a save: its slabs, and what its heads
// keep, as bytes.
#ifndef HEADWAY_ENGINE_SAVED_PART_H_
#define HEADWAY_ENGINE_SAVED_PART_H_

#include <string>
#include <string_view>

#include "headway/status.h"
#include "kv/session/manifest.h"

namespace headway {

// Of a manifest, or the error in its place, and the rank's heads of each layer.
std::string WordsOfPart(const Result<kv::Manifest>& part, const kv::LayerHeads& heads);
// A manifest of slabs and what is kept alone. No words are an error, too.
Result<kv::Manifest> PartOfWords(std::string_view words, kv::LayerHeads* heads);

}  // namespace headway

#endif  // HEADWAY_ENGINE_SAVED_PART_H_
