#include "plan/selection_cost.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace headway::plan {
namespace {

// What a page cache finds, as measured: straight between points, and behind the last as there.
struct Found {
  double size, share;
};
double ShareAt(std::span<const Found> points, double size) {
  for (size_t i = 1; i < points.size(); ++i) {
    const Found& low = points[i - 1];
    const Found& high = points[i];
    if (size >= high.size) continue;
    const double at = std::max(size - low.size, 0.0) / (high.size - low.size);
    return low.share + at * (high.share - low.share);
  }
  return points.back().share;
}

// Bytes of sketches that a choice of a layer reads over the bus.
double SketchBytesAway(const MachineProfile& machine, const Subject& subject) {
  const KeySelection& selection = subject.selection;
  const bool away = machine.own_memory && selection.sketches == Tier::kHost;
  return away ? subject.shape.kv_heads * selection.sketch_bits : 0.0;
}

}  // namespace

double ChoiceLaunchSeconds(const MachineProfile& machine) {
  constexpr double kLaunches = 5.0;  // about as long as so many: the steps of a threshold wait
  return kLaunches * machine.launch_seconds;
}

double SketchBusSeconds(const MachineProfile& machine, const Subject& subject) {
  return SketchBytesAway(machine, subject) / InPlaceRate(machine);
}

double ChoiceSeconds(const MachineProfile& machine, const Subject& subject, double keys) {
  const KeySelection& selection = subject.selection;
  const auto look = [&](double bytes, const Curve& rate) {
    if (bytes <= 0.0) return 0.0;
    return rate.empty() ? bytes / machine.device_read + ChoiceLaunchSeconds(machine)
                        : rate.Seconds(bytes);
  };
  const double heads = subject.shape.kv_heads;
  const double search = look(heads * keys * selection.summary_bytes, machine.selection);
  const double candidates = look(heads * selection.candidate_bytes, machine.selection);
  // Beside its bytes a list is read and a second one is made, as measured on an H200.
  const double lists = candidates > 0.0 && machine.own_memory ? ChoiceLaunchSeconds(machine) : 0.0;
  return search / selection.choices + candidates + lists +
         look(heads * selection.sketch_bytes - SketchBytesAway(machine, subject),
              machine.second_look) +
         SketchBusSeconds(machine, subject);
}

double InPlaceRate(const MachineProfile& machine) {
  if (machine.read_in_place > 0.0) return machine.read_in_place;
  return std::max(machine.host_to_device.Peak(), 1.0);  // nothing is far away without a bus
}

double KeyRate(const MachineProfile& machine, const KeySelection& selection) {
  // Keys that stand for chunks are read one by one, which the bus gives more slowly.
  constexpr double kAlone = 2.2;
  return InPlaceRate(machine) / (selection.survivor_bytes > 0.0 ? kAlone : 1.0);
}

double KeyChoiceRate(const MachineProfile& machine, const KeySelection& selection, double rows) {
  const Curve& measured = selection.moved ? machine.turned_key_choice : machine.key_choice;
  if (selection.survivor_bytes > 0.0 && !measured.empty()) return measured.Rate(rows);
  // Each key that is read is multiplied with the queries of a list, which takes as long as reading
  // it so many times.
  constexpr double kTimes = 38.0;
  return machine.device_read / (rows > 1.0 ? kTimes : 1.0);
}

double AssumedShare(double steps) {
  constexpr Found kMeasured[] = {{0, 0}, {1, 0.335}, {2, 0.592}, {4, 0.862}, {8, 0.988}};
  return ShareAt(kMeasured, steps);
}

double FoundShare(const KeySelection& selection, const Execution& run) {
  // What a step chooses anew is not in the page cache; what it reads again is.
  const double kept = run.page_cache_steps < 1.0 ? 1.0 : selection.refresh;
  const double assumed = 1.0 - (1.0 - AssumedShare(run.page_cache_steps)) / kept;
  const FoundBefore& found = run.found;
  return (kAssumedTokens * assumed + found.tokens * found.share) / (kAssumedTokens + found.tokens);
}

bool IsOfCache(const FoundBefore& found, double steps) {
  const double root = std::pow(2.0, 0.25);
  return found.tokens > 0.0 && steps < found.steps * root && found.steps < steps * root;
}

ChunkLists ListsOfChunk(const Subject& subject, const Execution& run, double tokens) {
  const auto layers = static_cast<double>(subject.shape.layers);
  return {std::ceil(tokens / subject.selection.list_tokens), layers, run.in_stretch ? 1.0 : layers};
}

double PromptKeysOverBus(const KeysAway& away, const ChunkLists& lists, double step_keys,
                         double steps) {
  // Of all blocks that the lists of a chunk have, the share that the chunk before left behind, by
  // how many times as many blocks the cache holds.
  constexpr Found kMeasured[] = {{0.75, 0}, {0.9, 0.38}, {1.1, 0.65}, {1.9, 0.81}, {3.5, 0.85}};
  // Of 8, 16 and 32 lists, 2.3, 2.9 and 3.6 times the keys of one are others.
  const double others = std::pow(std::max(lists.count, 1.0), 0.375);
  const double keys = away.always + away.chosen * others;
  if (keys <= 0.0) return 0.0;
  const double in_lines = steps * step_keys * lists.layers / keys;
  if (in_lines < 1.0) {
    // What a layer has no lines for each list brings for itself.
    return in_lines * keys + (1.0 - in_lines) * lists.count * (away.always + away.chosen);
  }
  return keys * (1.0 - ShareAt(kMeasured, in_lines / lists.layers_each));
}

KeysAway ChosenAway(const KeySelection& selection, const Execution& run, const KeysChosenOf& of) {
  const auto segment = static_cast<double>(run.segment_tokens);
  const double sink = of.sequences * selection.sink;
  const double recent = of.sequences * selection.recent;
  // The sink's slabs stay on the device whole, and go before those of recent keys.
  const double sink_slabs =
      std::min(of.keys, of.sequences * segment * std::ceil(selection.sink / segment));
  const double here = of.keys * run.split.resident;
  // In a short sequence they may have recent keys, too, at their end.
  const double together = std::max(recent - (of.keys - sink_slabs), 0.0);
  const double always_here = std::min(sink, here) +
                             std::clamp(here - (sink_slabs - together), 0.0, together) +
                             std::min(recent - together, std::max(here - sink_slabs, 0.0));
  const double far_here = (here - always_here) / (of.keys - sink - recent);
  const double always_away = sink + recent - always_here;
  return {always_away, (of.chosen - sink - recent) * std::max(1.0 - far_here, 0.0)};
}

KeysAway ChosenOnDisk(const KeySelection& selection, const Execution& run, const KeysChosenOf& of) {
  if (selection.page_keys <= 0.0) return {};
  const double always = of.sequences * (selection.sink + selection.recent);
  const double far = of.keys - always;
  const double on_disk = of.keys * run.split.disk;
  return {std::max(on_disk - far, 0.0), (of.chosen - always) * std::min(1.0, on_disk / far)};
}

double ListedPageBytes(const Subject& subject, const Execution& run, double keys,
                       const KeysAway& listed) {
  const KeySelection& selection = subject.selection;
  const double pages = (keys * run.split.disk - listed.always) / selection.page_keys;
  double read = listed.always / selection.page_keys;
  if (listed.chosen > 0.0) {
    const int heads = std::min(run.group_heads, subject.shape.kv_heads);
    const double blocks = heads * listed.chosen / selection.block_keys;
    read += pages * (1.0 - std::exp(-blocks / pages));
  }
  return read * selection.page_keys * subject.shape.kv_heads * HeadBytes(subject);
}

double ListedPageShare(const KeySelection& selection, double steps) {
  constexpr Found kMeasured[] = {{0.5, 0.0}, {0.63, 0.63}, {1.0, 0.9}, {1.3, 0.965}, {2.0, 0.977}};
  // What a step chooses anew is not there; what it reads again is.
  const double anew = steps < 1.0 ? 1.0 : selection.refresh;
  return 1.0 - (1.0 - ShareAt(kMeasured, steps)) / anew;
}

double ListedPageSeconds(const MachineProfile& machine, const Subject& subject,
                         const Execution& run, const ListedOnDisk& of) {
  const double bytes = ListedPageBytes(subject, run, of.keys, of.listed) *
                       (1.0 - ListedPageShare(subject.selection, run.listed_steps));
  const double piece = subject.selection.page_keys * HeadBytes(subject) / 2.0;
  return bytes /
         (machine.disk_pieces.empty() ? machine.disk_read : machine.disk_pieces.Rate(piece));
}

double PromptChoiceSeconds(const MachineProfile& machine, const Subject& subject,
                           const Execution& run, double keys, double tokens) {
  const KeySelection& selection = subject.selection;
  const ModelShape& shape = subject.shape;
  if (selection.key_bytes > 0.0) {
    const double lists = std::ceil(tokens / selection.list_tokens) * shape.kv_heads;
    const double bytes = lists * (keys * selection.key_bytes + selection.prompt_survivor_bytes);
    const double away = machine.own_memory ? bytes * (1.0 - run.split.resident) : 0.0;
    return std::max(away / KeyRate(machine, selection),
                    bytes / KeyChoiceRate(machine, selection, selection.list_tokens)) +
           ChoiceLaunchSeconds(machine);
  }
  const double candidates = selection.prompt_candidates;
  const bool twice = candidates > 0.0 && 2.0 * candidates <= keys;
  const double scored = twice ? keys / selection.search_tokens + candidates / selection.pool_tokens
                              : keys / selection.pool_tokens;
  const double scores = tokens * scored / selection.block_keys * shape.query_heads;
  if (machine.prompt_scores > 0.0) return scores / machine.prompt_scores;
  // Two products a channel: with means and with variances.
  return 4.0 * scores * shape.head_dim / machine.attention.Rate(tokens * shape.query_heads) +
         shape.kv_heads * keys * selection.summary_bytes / machine.device_read +
         ChoiceLaunchSeconds(machine);
}

double RecentInChunk(const KeySelection& selection, double tokens) {
  const double recent = selection.prompt_recent;
  return tokens <= recent ? tokens / 2.0 : recent - recent * recent / (2.0 * tokens);
}

double ListedAttentionSeconds(const MachineProfile& machine, const Subject& subject, double listed,
                              double tokens) {
  const ModelShape& shape = subject.shape;
  const RangeWork work = WorkOf(RangePath::kResident, subject, shape.kv_heads, listed, tokens);
  const bool moved = subject.selection.moved;
  double rate = moved ? machine.moved_attention : machine.listed_attention;
  const double coded = moved ? machine.coded_moved_attention : machine.coded_listed_attention;
  const auto plain = static_cast<double>(2 * shape.head_dim * DTypeBytes(shape.dtype));
  const bool encoded = HeadBytes(subject) < plain;
  if (encoded && coded > 0.0) rate = coded;
  if (rate <= 0.0) rate = machine.attention.Rate(tokens * shape.query_heads);
  return std::max(work.flops / rate, machine.decode_attention.Seconds(work.device_bytes));
}

double ListedDecodeSeconds(const MachineProfile& machine, const Subject& subject, double listed,
                           double whole) {
  if (machine.listed_decode <= 0.0) return whole;
  return listed * subject.shape.kv_heads * HeadBytes(subject) / machine.listed_decode;
}

double CacheBytesRead(const Subject& subject, std::span<const int64_t> lengths) {
  const KeySelection& selection = subject.selection;
  double bytes = 0.0;
  for (int layer = 0; layer < subject.shape.layers; ++layer) {
    const int64_t window = subject.WindowOf(layer);
    for (int64_t length : lengths) {
      const int64_t seen = window > 0 ? std::min(length, window) : length;
      const double keys = static_cast<double>(seen) * subject.slab_share;
      const bool chooses = ChoosesIn(subject, layer) && length >= selection.from;
      if (chooses && selection.keys < keys) {
        const double scored =
            selection.sketch_bytes + selection.candidate_bytes + selection.survivor_bytes +
            keys * (selection.summary_bytes + selection.key_bytes) / selection.choices;
        bytes += selection.keys * HeadBytes(subject) + scored / selection.refresh;
      } else {
        bytes += keys * HeadBytes(subject);
      }
    }
  }
  return bytes * subject.shape.kv_heads;
}

}  // namespace headway::plan
