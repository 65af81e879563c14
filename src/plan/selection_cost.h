// How long choosing keys takes, and attending to what a prompt's tokens list: kernels that run at
// rates of their own. Where a machine's profile does not have these, at the rates that bound them.
#ifndef HEADWAY_PLAN_SELECTION_COST_H_
#define HEADWAY_PLAN_SELECTION_COST_H_

#include <cstdint>
#include <span>

#include "base/machine_profile.h"
#include "plan/cost.h"

namespace headway::plan {

// In a layer of one sequence, by one query of each query head: scoring the summaries of `keys` keys
// of each KV head, listing the best, and looking at these again where there are two looks. A search
// of all summaries that serves some choices counts as a part of each.
double ChoiceSeconds(const MachineProfile& machine, const Subject& subject, double keys);

// Of that, reading the sketches that lie in host memory.
double SketchBusSeconds(const MachineProfile& machine, const Subject& subject);

// What the launches of a choice take beside its bytes, where that was not measured.
double ChoiceLaunchSeconds(const MachineProfile& machine);

// Bytes a second that kernels read of the host's memory.
double InPlaceRate(const MachineProfile& machine);
// The same of the keys that a choice reads.
double KeyRate(const MachineProfile& machine, const KeySelection& selection);

// Bytes a second of keys on the device that are read to choose, by so many rows together.
double KeyChoiceRate(const MachineProfile& machine, const KeySelection& selection, double rows);

// Of the chosen keys that lie in host memory, the share that a page cache for the keys that `steps`
// steps choose has already, where each step chooses: as measured on a text
// (docs/decisions/selection.md), which is assumed of others.
double AssumedShare(double steps);
// The same of what decode steps read, some of which may read what an earlier one chose: what
// earlier runs found, beside what is assumed, which counts as kAssumedTokens of their tokens. So a
// few tokens change little, and many replace the assumption.
inline constexpr double kAssumedTokens = 256.0;
double FoundShare(const KeySelection& selection, const Execution& run);
// Whether what was found was in a cache that holds as much as this one, to within a fifth.
bool IsOfCache(const FoundBefore& found, double steps);

// Keys of a list that lie in host memory: those that every list has, and those that it chose.
struct KeysAway {
  double always = 0.0, chosen = 0.0;
};
// Of `keys` keys of all sequences so many are listed.
struct KeysChosenOf {
  double keys = 0.0, chosen = 0.0, sequences = 1.0;
};
// Beside a device with memory of its own, those that do not lie there.
KeysAway ChosenAway(const KeySelection& selection, const Execution& run, const KeysChosenOf& of);
// Those that decode reads from disk, by pages: the oldest keys lie there, and those that every list
// has where all others do.
KeysAway ChosenOnDisk(const KeySelection& selection, const Execution& run, const KeysChosenOf& of);
// Lists of a prompt's chunk.
struct ChunkLists {
  double count = 1.0;
  double layers = 1.0;       // of the model
  double layers_each = 1.0;  // that have lists before the next chunk's of the same layer
};
ChunkLists ListsOfChunk(const Subject& subject, const Execution& run, double tokens);
// Those that the lists of a layer bring over the bus, by a page cache for the keys that `steps`
// decode steps choose, `step_keys` of a layer each. A key crosses it once a chunk, whatever the
// number of lists that have it, as long as there are lines.
double PromptKeysOverBus(const KeysAway& away, const ChunkLists& lists, double step_keys,
                         double steps);

// Bytes of the pages on disk that the lists of a layer's heads have, `listed` of `keys` keys in
// all: chosen blocks of the heads of a group lie anywhere in these pages, and some share one; what
// every list has lies together.
double ListedPageBytes(const Subject& subject, const Execution& run, double keys,
                       const KeysAway& listed);

// Of these pages, the share that host memory has already where it holds those of `steps` steps,
// each chosen block counted as a page: as measured on a text (docs/decisions/selection.md).
double ListedPageShare(const KeySelection& selection, double steps);

// How long reading the others takes: a head's keys of a page by themselves, and so its values.
struct ListedOnDisk {
  double keys = 0.0;
  KeysAway listed;
};
double ListedPageSeconds(const MachineProfile& machine, const Subject& subject,
                         const Execution& run, const ListedOnDisk& of);

// In a layer, by `tokens` tokens of a prompt: pooled queries that score blocks, or queries that
// score keys where they lie, and their lists.
double PromptChoiceSeconds(const MachineProfile& machine, const Subject& subject,
                           const Execution& run, double keys, double tokens);

// Recent keys that tokens of a chunk of so many have in it, and not in their lists, on average.
double RecentInChunk(const KeySelection& selection, double tokens);

// In a layer, of `tokens` tokens that each see `listed` keys of each KV head.
double ListedAttentionSeconds(const MachineProfile& machine, const Subject& subject, double listed,
                              double tokens);

// In a layer, of a decode that reads `listed` keys of each KV head, which takes `whole` where keys
// are not listed: as long as that, if it was not measured.
double ListedDecodeSeconds(const MachineProfile& machine, const Subject& subject, double listed,
                           double whole);

// Bytes of keys, values and summaries that the queries of a decode step read: of all layers and of
// sequences of these lengths.
double CacheBytesRead(const Subject& subject, std::span<const int64_t> lengths);

}  // namespace headway::plan

#endif  // HEADWAY_PLAN_SELECTION_COST_H_
