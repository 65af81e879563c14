#include "plan/choose.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "base/bytes.h"
#include "plan/optimize.h"
#include "plan/stretch.h"

namespace headway::plan {
namespace {

constexpr int64_t kMinAutoSegment = 1024;
constexpr int64_t kAlwaysSegment = 32768;  // beyond, a cache has two segments at least
// Sequences of unequal lengths have shorter segments where more than a quarter of the slabs would
// stay empty, the longest sequence so many at most: each costs prefill a merge.
constexpr int64_t kMostEmpty = 4;
constexpr int64_t kSegmentsOfLongest = 8;
constexpr int64_t kMinChunk = 16;
// Where a part of the segments is recomputed they are halved until they have at most kMinXSegment
// tokens: shorter ones move too few bytes at a time, and with kShareSegments any share is met well
// enough.
constexpr int64_t kMinXSegment = 256;
constexpr int64_t kShareSegments = 16;
// What a cut with another chunk or segment must gain: it changes the order of additions, and runs
// under different budgets should agree to the last bit.
constexpr double kClearly = 0.05;
// And any cut: less is the model's noise, and the rule's order decides.
constexpr double kHairsBreadth = 1e-3;
// Of the chunk that is preferred, where weights stream: more gains little.
constexpr int64_t kMostChunks = 4;
constexpr int kMostStaging = 4;  // more hide nothing where the bus is the lane that limits
// But where slabs are short: the bus goes on while a layer computes what is no attention, or
// recomputes.
constexpr int kStagingOfBatches[] = {8, 16, 32, 64};
constexpr int kStagingOfDisk = 6;  // a disk gives its bandwidth to many requests at a time

// Keys of the smallest piece of a slab that prefill on a GPU attends to by its fast kernel: a page
// that is left over at the end takes a launch of a slower one, and a merge.
constexpr int64_t kLeastPiece = 128;

int64_t Align(int64_t tokens, int page_slots) {
  return RoundUp(std::max<int64_t>(tokens, 1), page_slots);
}

// Up to an eighth of a power of two: the sizes that attention on a GPU is made for (powers of two
// and halves between) then cover a full slab with two pieces at most.
int64_t RoundSegment(int64_t tokens, int page_slots) {
  const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(tokens)));
  return Align(RoundUp(tokens, std::max<int64_t>(power / 8, page_slots)), page_slots);
}

int64_t LeastXSegment(const PlanRequest& request) {
  return Align(kMinXSegment, request.page_slots);
}

// Where layers have unequal numbers of heads with slabs, larger groups leave more of their last
// slabs empty.
bool WastesSlabs(const PlanRequest& request, int group_heads) {
  int64_t heads = 0;
  for (int layer = 0; layer < request.shape.layers; ++layer) {
    heads += RoundUp(SlabHeads(request, layer), group_heads);
  }
  return !request.slab_heads.empty() && heads > SlabHeads(request) * 9 / 8;
}

// Numbers of staging slabs to choose from.
std::vector<int> StagingChoices(const PlanRequest& request) {
  if (request.fixed.staging_slabs.has_value()) return {*request.fixed.staging_slabs};
  std::vector<int> choices;
  const int most = request.budgets.disk > 0 ? kStagingOfDisk : kMostStaging;
  for (int slabs = kStaging; slabs <= most; ++slabs) choices.push_back(slabs);
  if (request.lengths.size() > 1) {
    choices.insert(choices.end(), std::begin(kStagingOfBatches), std::end(kStagingOfBatches));
  }
  return choices;
}

// From the longest to the shortest.
std::vector<int64_t> Chunks(const PlanRequest& request) {
  if (request.fixed.chunk.has_value()) return {*request.fixed.chunk};
  std::vector<int64_t> chunks = {AutoChunk(request)};
  for (int64_t c = request.chunk / 2; c >= kMinChunk; c /= 2) {
    if (c < chunks.back()) chunks.push_back(c);
  }
  return chunks;
}

int64_t TotalSegments(const PlanRequest& request, int64_t segment_tokens) {
  int64_t segments = 0;
  for (int64_t length : request.lengths) segments += CeilDiv(length, segment_tokens);
  return segments;
}

}  // namespace

int64_t AutoChunk(const PlanRequest& request) {
  return std::min(request.chunk, Align(TotalTokens(request), request.page_slots));
}

int64_t WholeSegment(const PlanRequest& request) {
  const int64_t longest = *std::max_element(request.lengths.begin(), request.lengths.end());
  return Align(RoundUp(longest, kLeastPiece), request.page_slots);
}

int64_t AutoSegment(const PlanRequest& request) {
  const int64_t longest = *std::max_element(request.lengths.begin(), request.lengths.end());
  const int64_t least = Align(kMinAutoSegment, request.page_slots);
  int64_t segment = Align(request.segment, request.page_slots);
  while (segment > kAlwaysSegment && segment * 2 > longest) {
    segment = Align(segment / 2, request.page_slots);
  }
  while (segment / 2 >= std::max(longest, least)) {
    segment = Align(segment / 2, request.page_slots);
  }
  // As many segments of equal length: of a last one that takes what is left most may stay empty.
  if (segment > least) {
    const int64_t even = CeilDiv(longest, CeilDiv(longest, segment));
    segment = std::clamp(RoundSegment(even, request.page_slots), least, segment);
  }
  // Each of many short sequences would leave as much room empty.
  if (request.lengths.size() > 1) {
    segment = std::min(segment, Align(longest, request.page_slots));
    const int64_t tokens = TotalTokens(request);
    while (segment / 2 >= std::max(least, longest / kSegmentsOfLongest) &&
           TotalSegments(request, segment) * segment > tokens + tokens / kMostEmpty) {
      segment = RoundSegment(segment / 2, request.page_slots);
    }
  }
  // A share of the tokens is a number of segments.
  const double share = request.fixed.recompute;
  while (share > 0.0 && share < 1.0 && segment > LeastXSegment(request) &&
         TotalSegments(request, segment) < kShareSegments) {
    segment = Align(segment / 2, request.page_slots);
  }
  return segment;
}

std::vector<CacheChoice> Candidates(const PlanRequest& request) {
  std::vector<int> groups;
  if (request.fixed.group_heads.has_value()) {
    groups.push_back(std::min(*request.fixed.group_heads, request.shape.kv_heads));
  } else {
    for (int g = request.shape.kv_heads; g > 1; g = static_cast<int>(CeilDiv(g, 2)))
      if (!WastesSlabs(request, g)) groups.push_back(g);
    groups.push_back(1);
  }
  const std::vector<int64_t> chunks = Chunks(request);
  std::vector<int64_t> segments;
  if (request.fixed.segment_tokens.has_value()) {
    segments.push_back(*request.fixed.segment_tokens);
  } else {
    const int64_t largest = AutoSegment(request);
    for (int64_t s = largest; s >= request.page_slots; s = Align(s / 2, request.page_slots)) {
      segments.push_back(s);
      if (s == request.page_slots) break;
    }
  }
  std::vector<CacheChoice> candidates;
  for (int64_t segment : segments) {
    for (int64_t chunk : chunks) {
      for (const Tier sketches : request.costs.sketch_tiers) {
        for (int group : groups) {
          CacheChoice choice;
          choice.recompute = request.fixed.recompute;
          choice.group_heads = group;
          choice.chunk = chunk;
          choice.segment_tokens = segment;
          choice.staging_slabs = request.fixed.staging_slabs.value_or(kStaging);
          choice.bounce_slabs = request.budgets.disk > 0 ? kStaging : 0;
          choice.sketches = sketches;
          if (request.prompt_order == PromptOrder::kLayers) {
            choice.stretch_tokens = LeastStretch(choice.chunk);
          }
          candidates.push_back(choice);
        }
      }
    }
  }
  return candidates;
}

namespace {

// Which fits are taken: those with all weights on the device, those whose weights stream, too, or
// also those that keep slabs on disk for want of page tables (Fit::few_on_host).
enum class Accept { kAllWeights, kStreamedWeights, kFewOnHost };

// Of the candidates that fit, the one to take: the first whose fixed buffers leave at least half of
// a limited budget to resident slabs, or else the first that fits. Null where none is accepted.
const CacheChoice* Choose(const PlanRequest& request, const std::vector<CacheChoice>& candidates,
                          Accept accept) {
  const CacheChoice* first = nullptr;
  for (const CacheChoice& choice : candidates) {
    const Fit fit = TryFit(request, choice);
    if (!fit.ok || (fit.few_on_host && accept != Accept::kFewOnHost)) continue;
    if (accept == Accept::kAllWeights && fit.weight_layers < request.shape.layers) continue;
    if (first == nullptr) first = &choice;
    if (choice.segment_tokens != first->segment_tokens || choice.chunk != first->chunk) break;
    const CacheBytes bytes = request.costs.cache(choice);
    const int64_t fixed = bytes.fixed();
    const bool all_resident = fit.slabs[1] == 0 && fit.slabs[2] == 0;
    if (all_resident || fixed <= fit.room / 2 || !request.keep_on_device) {
      return &choice;
    }
  }
  return first;
}

// Where most of the cache is read from disk, more buffers are worth more than resident slabs.
CacheChoice WithReadAhead(const PlanRequest& request, const CacheChoice& choice) {
  const Fit fit = TryFit(request, choice);
  if (request.fixed.staging_slabs.has_value() || fit.slabs[2] <= fit.slabs[0] + fit.slabs[1]) {
    return choice;
  }
  CacheChoice deeper = choice;
  for (int slabs = kStagingOfDisk; slabs > kStaging; --slabs) {
    deeper.staging_slabs = deeper.bounce_slabs = slabs;
    if (TryFit(request, deeper).ok) return deeper;
  }
  return choice;
}

}  // namespace

WeightShares SharesOf(const PlanRequest& request, const Fit& fit) {
  const auto layers = static_cast<double>(request.shape.layers);
  const double code = request.layer_code_bytes == 0
                          ? 1.0
                          : static_cast<double>(request.layer_code_bytes) /
                                static_cast<double>(request.layer_weight_bytes);
  return {1.0 - fit.weight_layers / layers, fit.disk_layers / layers, code};
}

Execution ExecutionFor(const CacheChoice& choice, const int64_t (&slabs)[kTierCount],
                       int64_t x_slabs, double host_share, const WeightShares& weights,
                       const std::vector<int64_t>& lengths) {
  Execution run;
  run.weights_streamed = weights.streamed;
  run.weights_on_disk = weights.on_disk;
  run.weight_code = weights.code;
  run.chunk = choice.chunk;
  run.stretch_tokens = choice.stretch_tokens;
  run.group_heads = choice.group_heads;
  run.segment_tokens = choice.segment_tokens;
  run.staging_slabs = std::max(choice.staging_slabs, 1);
  int64_t tokens = 0;
  for (int64_t length : lengths) tokens += length;
  run.full_length = tokens / static_cast<int64_t>(std::max<size_t>(lengths.size(), 1));
  run.gather_tokens = GatherTokens(choice, lengths);
  const auto all = static_cast<double>(slabs[0] + slabs[1] + slabs[2] + x_slabs);
  if (all <= 0.0) return run;
  run.split.resident = static_cast<double>(slabs[0]) / all;
  run.split.host = static_cast<double>(slabs[1]) / all * host_share;
  run.split.stream = static_cast<double>(slabs[1]) / all - run.split.host;
  run.split.disk = static_cast<double>(slabs[2]) / all;
  run.split.recompute = static_cast<double>(x_slabs) / all;
  return run;
}

namespace {

Execution RunOf(const PlanRequest& request, const CacheChoice& choice, const Fit& fit) {
  Execution run = ExecutionFor(choice, fit.slabs, fit.x_slabs, request.host_share,
                               SharesOf(request, fit), request.lengths);
  run.page_cache_steps = PageCacheSteps(request, fit);
  return run;
}

ScoredCut Score(const PlanRequest& request, const CacheChoice& choice, const Fit& fit) {
  const MachineProfile& machine = *request.machine;
  const Subject subject = SubjectOf(request, choice);
  Execution run = RunOf(request, choice, fit);
  run.listed_steps = fit.listed_steps;
  ScoredCut scored{choice, request.host_share};
  if (request.host_attention && fit.slabs[1] > 0) {
    SplitOptions options;
    options.host = true;
    run = BestSplit(machine, subject, run, request.lengths, options);
    scored.host_share = run.split.host / (run.split.host + run.split.stream);
  }
  scored.seconds = WorkloadSeconds(machine, subject, run, request.lengths);
  return scored;
}

// The fastest of the cuts that fit, `rule` among them. Cuts with its chunk and segment give the
// same bits, and any that is faster is taken; the named policies' whole-context segment must be
// clearly faster.
ScoredCut Fastest(const PlanRequest& request, const std::vector<CacheChoice>& candidates,
                  const CacheChoice& rule) {
  std::vector<CacheChoice> cuts;
  const bool disk = request.budgets.disk > 0;
  const auto add = [&](CacheChoice cut) {
    for (int slabs : StagingChoices(request)) {
      cut.staging_slabs = slabs;
      cut.bounce_slabs = !disk ? 0 : request.fixed.staging_slabs.has_value() ? kStaging : slabs;
      cuts.push_back(WithLongestStretch(request, cut));
    }
  };
  for (const CacheChoice& cut : candidates) {
    if (cut.chunk == rule.chunk && cut.segment_tokens == rule.segment_tokens) add(cut);
  }
  if (!request.fixed.segment_tokens.has_value() && !request.fixed.group_heads.has_value()) {
    CacheChoice whole = rule;
    whole.segment_tokens = WholeSegment(request);
    for (int group : {1, request.shape.kv_heads}) {
      whole.group_heads = group;
      add(whole);
    }
  }
  ScoredCut best = Score(request, rule, TryFit(request, rule));
  for (const CacheChoice& cut : cuts) {
    const Fit fit = TryFit(request, cut);
    if (!fit.ok) continue;
    const ScoredCut scored = Score(request, cut, fit);
    const bool same_bits =
        cut.segment_tokens == best.choice.segment_tokens && cut.chunk == best.choice.chunk;
    const double needed = same_bits ? kHairsBreadth : kClearly;
    if (scored.seconds < best.seconds * (1.0 - needed)) best = scored;
  }
  return best;
}

double PrefillSeconds(const PlanRequest& request, const CacheChoice& choice, const Fit& fit) {
  return PredictPrefills(*request.machine, SubjectOf(request, choice), RunOf(request, choice, fit),
                         request.lengths)
      .seconds;
}

// Where weights stream, prompts may be faster to read layer by layer: a stretch brings each layer
// once. It has the bits of the same chunks.
ScoredCut WithStretch(const PlanRequest& request, ScoredCut best) {
  const Fit fit = TryFit(request, best.choice);
  const bool streams = fit.weight_layers < request.shape.layers;
  if (request.prompt_order != PromptOrder::kAuto || !streams || best.choice.recompute > 0.0) {
    return best;
  }
  double prefill = PrefillSeconds(request, best.choice, fit);
  const double least = prefill * (1.0 - kClearly);
  for (const int64_t stretch : Stretches(request, best.choice.chunk)) {
    CacheChoice choice = best.choice;
    choice.stretch_tokens = stretch;
    const Fit then = TryFit(request, choice);
    if (!then.ok) continue;
    const ScoredCut scored = Score(request, choice, then);
    const double seconds = PrefillSeconds(request, choice, then);
    // What lies in host memory instead may have to come from disk in each step.
    if (scored.seconds >= best.seconds || seconds > least || seconds >= prefill) continue;
    best = scored;
    prefill = seconds;
  }
  return best;
}

// There a larger chunk may be faster, too: a step brings the weights once, however many tokens it
// has.
ScoredCut WithLargerChunk(const PlanRequest& request, ScoredCut best) {
  const Fit fit = TryFit(request, best.choice);
  if (request.fixed.chunk.has_value() || fit.weight_layers == request.shape.layers) return best;
  double prefill = PrefillSeconds(request, best.choice, fit);
  const int64_t most = best.choice.chunk * kMostChunks;
  for (CacheChoice larger = best.choice; larger.chunk < most;) {
    larger.chunk *= 2;
    larger.stretch_tokens = RoundUp(larger.stretch_tokens, larger.chunk);
    if (larger.stretch_tokens == larger.chunk) larger.stretch_tokens = 0;
    const Fit then = TryFit(request, larger);
    if (!then.ok) break;
    const ScoredCut scored = Score(request, larger, then);
    const double seconds = PrefillSeconds(request, larger, then);
    if (scored.seconds > best.seconds || seconds > prefill * (1.0 - kClearly)) continue;
    best = scored;
    prefill = seconds;
  }
  return best;
}

// The fastest cut that recomputes a part of what the host holds, where one is clearly faster than
// `best`, which does not.
ScoredCut FastestRecomputing(const PlanRequest& request, const CacheChoice& rule,
                             const ScoredCut& best) {
  if (!request.recompute || !XIsSmaller(request.shape)) return best;
  const Subject subject = SubjectOf(request, rule);
  SplitOptions options;
  options.host = request.host_attention;
  options.recompute = true;
  ScoredCut found = best;
  bool any = false;
  for (int64_t segment = rule.segment_tokens;; segment = Align(segment / 2, request.page_slots)) {
    for (int slabs : StagingChoices(request)) {
      CacheChoice cut = rule;
      cut.group_heads = request.shape.kv_heads;
      cut.segment_tokens = segment;
      cut.staging_slabs = slabs;
      const Fit without = TryFit(request, cut);
      if (!without.ok || without.slabs[1] == 0) continue;
      Execution run = ExecutionFor(cut, without.slabs, 0, request.host_share,
                                   SharesOf(request, without), request.lengths);
      cut.recompute = 1.0;
      run.gather_tokens = GatherTokens(cut, request.lengths);
      run = BestSplit(*request.machine, subject, run, request.lengths, options);
      cut.recompute = run.split.recompute;
      if (cut.recompute <= 0.0) continue;
      const Fit fit = TryFit(request, cut);
      if (!fit.ok || fit.x_slabs == 0) continue;
      const ScoredCut scored = Score(request, cut, fit);
      if (any && scored.seconds >= found.seconds * (1.0 - kHairsBreadth)) continue;
      found = scored;
      any = true;
    }
    if (request.fixed.segment_tokens.has_value() || segment <= LeastXSegment(request)) break;
  }
  return found.seconds < best.seconds * (1.0 - kClearly) ? found : best;
}

// The rule puts weights on the device first and long segments before long chunks. Where memory is
// short by a little that costs much: chunks of a few tokens, each of which takes all weights, or
// layers on disk because those in host memory take page tables. So, where it shortens chunks, the
// first cut of each longer one, and where it reads more from disk than others do, the first of
// those.
std::vector<CacheChoice> OtherRules(const PlanRequest& request,
                                    const std::vector<CacheChoice>& candidates,
                                    const CacheChoice& rule) {
  std::vector<CacheChoice> others;
  const auto add = [&](const auto& wanted) {
    std::vector<CacheChoice> some;
    std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(some), wanted);
    const CacheChoice* first = Choose(request, some, Accept::kStreamedWeights);
    if (first != nullptr) others.push_back(*first);
  };
  for (int64_t chunk : Chunks(request)) {
    if (chunk <= rule.chunk) break;
    add([&](const CacheChoice& choice) { return choice.chunk == chunk; });
  }
  const int on_disk = TryFit(request, rule).disk_layers;
  int least = on_disk;
  for (size_t i = 0; i < candidates.size() && least > 0; ++i) {
    const Fit fit = TryFit(request, candidates[i]);
    if (fit.ok) least = std::min(least, fit.disk_layers);
  }
  if (least < on_disk) {
    add([&](const CacheChoice& choice) { return TryFit(request, choice).disk_layers == least; });
  }
  return others;
}

ScoredCut FastestBeside(const PlanRequest& request, const std::vector<CacheChoice>& candidates,
                        const CacheChoice& rule) {
  const ScoredCut best = Fastest(request, candidates, rule);
  return WithLargerChunk(request, WithStretch(request, FastestRecomputing(request, rule, best)));
}

// The fastest on the request's machine: of `candidates` and others, beside `rule`, which fits.
ScoredCut FastestCut(const PlanRequest& request, const std::vector<CacheChoice>& candidates,
                     const CacheChoice& rule) {
  ScoredCut best = FastestBeside(request, candidates, rule);
  for (const CacheChoice& other : OtherRules(request, candidates, rule)) {
    const ScoredCut scored = FastestBeside(request, candidates, other);
    if (scored.seconds < best.seconds * (1.0 - kClearly)) best = scored;
  }
  return best;
}

}  // namespace

std::optional<ScoredCut> ChooseCut(const PlanRequest& request) {
  const std::vector<CacheChoice> candidates = Candidates(request);
  const CacheChoice* choice = Choose(request, candidates, Accept::kAllWeights);
  if (choice == nullptr) choice = Choose(request, candidates, Accept::kStreamedWeights);
  // The disk is slower than weights that stream, and than short segments.
  if (choice == nullptr) choice = Choose(request, candidates, Accept::kFewOnHost);
  if (choice == nullptr) return std::nullopt;
  const CacheChoice rule = WithLongestStretch(request, WithReadAhead(request, *choice));
  if (request.machine == nullptr) return ScoredCut{rule, request.host_share};
  return FastestCut(request, candidates, rule);
}

bool SameCut(const PlanRequest& request, const CacheChoice& a, const CacheChoice& b) {
  const int64_t tokens = TotalTokens(request);
  const int64_t longest = *std::max_element(request.lengths.begin(), request.lengths.end());
  return std::min(a.chunk, tokens) == std::min(b.chunk, tokens) &&
         std::min(a.segment_tokens, longest) == std::min(b.segment_tokens, longest);
}

}  // namespace headway::plan
