#include "plan/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/bytes.h"
#include "plan/optimize.h"

namespace headway::plan {
namespace {

constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
constexpr int64_t kMinAutoSegment = 1024;
constexpr int64_t kAlwaysSegment = 32768;  // beyond, a cache has two segments at least
constexpr int64_t kMinChunk = 16;
// Where a part of the segments is recomputed: shorter ones move too few bytes at a time, and with
// so many any share is met well enough.
constexpr int64_t kMinXSegment = 256;
constexpr int64_t kShareSegments = 16;
// What a cut with another chunk or segment must gain: it changes the order of additions, and runs
// under different budgets should agree to the last bit.
constexpr double kClearly = 0.05;
// And any cut: less is the model's noise, and the rule's order decides.
constexpr double kHairsBreadth = 1e-3;
// Of the chunk that is preferred, where weights stream: more gains little.
constexpr int64_t kMostChunks = 4;
constexpr int kStaging = 2;        // one is attended while the next is filled
constexpr int kMostStaging = 4;    // more hide nothing where the bus is the lane that limits
constexpr int kStagingOfDisk = 6;  // a disk gives its bandwidth to many requests at a time

int64_t Align(int64_t tokens, int page_slots) {
  return RoundUp(std::max<int64_t>(tokens, 1), page_slots);
}

int SlabHeads(const PlanRequest& request, int layer) {
  return request.slab_heads.empty() ? request.shape.kv_heads
                                    : request.slab_heads[static_cast<size_t>(layer)];
}

int64_t SlabHeads(const PlanRequest& request) {
  int64_t heads = 0;
  for (int layer = 0; layer < request.shape.layers; ++layer) heads += SlabHeads(request, layer);
  return heads;
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

// Slabs of X of all layers and sequences when every sequence has its full length.
int64_t CountXSlabs(const PlanRequest& request, const CacheChoice& choice) {
  int64_t slabs = 0;
  if (choice.recompute <= 0.0) return slabs;
  for (int segments : XSegments(choice.recompute, request.lengths, choice.segment_tokens)) {
    slabs += int64_t{segments} * request.shape.layers;
  }
  return slabs;
}

// The same of K and V, of all head groups. A layer with a sliding window keeps what the window and
// one chunk can see.
int64_t CountSlabs(const PlanRequest& request, const CacheChoice& choice) {
  std::map<int64_t, int64_t> sequences;  // by their segments: many are alike
  for (int64_t length : request.lengths) ++sequences[CeilDiv(length, choice.segment_tokens)];
  int64_t slabs = -CountXSlabs(request, choice);
  for (const auto& [segments, count] : sequences) {
    for (int layer = 0; layer < request.shape.layers; ++layer) {
      const int64_t window =
          request.window.empty() ? 0 : request.window[static_cast<size_t>(layer)];
      const int64_t seen =
          window == 0 ? segments : CeilDiv(window + choice.chunk, choice.segment_tokens) + 1;
      slabs +=
          count * CeilDiv(SlabHeads(request, layer), choice.group_heads) * std::min(segments, seen);
    }
  }
  return slabs;
}

// What a cut takes, wherever the weights are: asked of the rooms once.
struct Sizes {
  CacheBytes bytes;
  int64_t slabs = 0;
  int64_t x_slabs = 0;
  int64_t beside = 0;  // on a device with its own memory beside cache and weights
};

Sizes SizesOf(const PlanRequest& request, const CacheChoice& choice) {
  return {
      request.costs.cache(choice), CountSlabs(request, choice), CountXSlabs(request, choice),
      request.driver_bytes + request.costs.activations(choice) + request.costs.workspace(choice)};
}

// Weights with the matrices of so many layers on the device.
struct WeightSplit {
  int64_t resident = 0;
  int64_t buffers = 0;  // on the device
  int64_t host = 0;
};
WeightSplit SplitWeights(const PlanRequest& request, int layers) {
  const int64_t streamed = request.shape.layers - layers;
  const int64_t bytes = streamed * request.layer_weight_bytes;
  return {request.weight_bytes - bytes,
          std::min<int64_t>(streamed, kWeightBuffers) * request.layer_weight_bytes, bytes};
}

struct Fit {
  bool ok = false;
  int weight_layers = 0;
  int64_t room = 0;  // that cache, and layers where not all are resident, may take of the fast tier
  int64_t slabs[kTierCount] = {};
  int64_t x_slabs = 0;
  int64_t page_tables = 0;  // on the device, for host memory
};

// What the cache may take of the fast tier.
int64_t KvLimit(const PlanRequest& request, const Sizes& sizes, int weight_layers) {
  if (request.budgets.device == kUnbounded) return request.budgets.kv;
  const WeightSplit weights = SplitWeights(request, weight_layers);
  return std::min(request.budgets.kv,
                  request.budgets.device - sizes.beside - weights.resident - weights.buffers);
}

Fit FitWith(const PlanRequest& request, const Sizes& sizes, int weight_layers) {
  Fit fit;
  fit.weight_layers = weight_layers;
  const bool streams = weight_layers < request.shape.layers;
  const int64_t weights = SplitWeights(request, weight_layers).host;
  const CacheBytes& bytes = sizes.bytes;
  const int64_t fixed = bytes.fixed();
  const int64_t limit = KvLimit(request, sizes, weight_layers);
  fit.room = streams ? KvLimit(request, sizes, 0) : limit;
  fit.x_slabs = sizes.x_slabs;
  int64_t left = sizes.slabs;
  // What is there for the cache, and what of it is not for slabs of K and V.
  const int64_t host = request.budgets.host - weights;
  const int64_t on_host = bytes.bounce + fit.x_slabs * bytes.x_slab;
  if (fixed > limit || host < 0) return fit;
  const bool all_stay =
      request.keep_on_device && fit.x_slabs == 0 && left <= (limit - fixed) / bytes.slab;
  if (!all_stay || streams) {
    const int64_t room = request.keep_on_host ? host - on_host : 0;
    const int64_t slabs = std::min(left, std::max<int64_t>(room, 0) / bytes.slab) * bytes.slab;
    const int64_t mapped = weights + (all_stay ? 0 : on_host + slabs);
    fit.page_tables =
        static_cast<int64_t>(std::ceil(request.map_share * static_cast<double>(mapped)));
    if (fixed + fit.page_tables > limit) return fit;
  }
  if (request.keep_on_device) {
    fit.slabs[0] = std::min(left, (limit - fixed - fit.page_tables) / bytes.slab);
    left -= fit.slabs[0];
  }
  if ((left > 0 && bytes.bounce > host) || (fit.x_slabs > 0 && on_host > host)) return fit;
  if (request.keep_on_host && left > 0) {
    fit.slabs[1] = std::min(left, (host - on_host) / bytes.slab);
    left -= fit.slabs[1];
  }
  if (left > 0) {
    fit.slabs[2] = std::min(left, request.budgets.disk / bytes.slab);
    left -= fit.slabs[2];
  }
  fit.ok = left == 0;
  return fit;
}

// Weights come before keys and values where not both fit: a byte that stays saves a byte of the bus
// in each step, but one of the cache only from when it is filled, and cores of the host can attend
// to what stays there.
Fit TryFit(const PlanRequest& request, const CacheChoice& choice) {
  const Sizes sizes = SizesOf(request, choice);
  const int layers = request.shape.layers;
  if (request.weight_layers >= 0) {
    return FitWith(request, sizes, std::min(request.weight_layers, layers));
  }
  const Fit all = FitWith(request, sizes, layers);
  if (all.ok || request.budgets.device == kUnbounded || request.layer_weight_bytes == 0) return all;
  for (int resident = layers - 1; resident >= 0; --resident) {
    const Fit some = FitWith(request, sizes, resident);
    if (some.ok) return some;
  }
  return all;
}

int64_t TotalSegments(const PlanRequest& request, int64_t segment_tokens) {
  int64_t segments = 0;
  for (int64_t length : request.lengths) segments += CeilDiv(length, segment_tokens);
  return segments;
}

// A slab longer than every sequence would be room that nothing fills, and of the last slab of a
// long one too much would stay empty.
int64_t AutoSegment(const PlanRequest& request) {
  const int64_t longest = *std::max_element(request.lengths.begin(), request.lengths.end());
  int64_t segment = Align(request.segment, request.page_slots);
  while (segment > kAlwaysSegment && segment * 2 > longest) {
    segment = Align(segment / 2, request.page_slots);
  }
  while (segment / 2 >= std::max(longest, kMinAutoSegment)) {
    segment = Align(segment / 2, request.page_slots);
  }
  // Each of many short sequences would leave as much room empty.
  if (request.lengths.size() > 1) {
    segment = std::min(segment, Align(longest, request.page_slots));
  }
  // A share of the tokens is a number of segments.
  const double share = request.fixed.recompute;
  while (share > 0.0 && share < 1.0 && segment > kMinXSegment &&
         TotalSegments(request, segment) < kShareSegments) {
    segment = Align(segment / 2, request.page_slots);
  }
  return segment;
}

// Candidates from the largest buffers to the smallest. The segment shrinks last: with the same
// segment and chunk, runs under different budgets agree to the last bit.
std::vector<CacheChoice> Candidates(const PlanRequest& request) {
  std::vector<int> groups;
  if (request.fixed.group_heads > 0) {
    groups.push_back(std::min(request.fixed.group_heads, request.shape.kv_heads));
  } else {
    for (int g = request.shape.kv_heads; g > 1; g = static_cast<int>(CeilDiv(g, 2)))
      if (!WastesSlabs(request, g)) groups.push_back(g);
    groups.push_back(1);
  }
  std::vector<int64_t> chunks, segments;
  if (request.fixed.chunk > 0) {
    chunks.push_back(request.fixed.chunk);
  } else {
    for (int64_t c = request.chunk; c >= kMinChunk; c /= 2) chunks.push_back(c);
  }
  if (request.fixed.segment_tokens > 0) {
    segments.push_back(request.fixed.segment_tokens);
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
      for (int group : groups) {
        CacheChoice choice = request.fixed;
        choice.group_heads = group;
        choice.chunk = chunk;
        choice.segment_tokens = segment;
        if (choice.staging_slabs == 0) choice.staging_slabs = kStaging;
        choice.bounce_slabs = request.budgets.disk > 0 ? kStaging : 0;
        candidates.push_back(choice);
      }
    }
  }
  return candidates;
}

Status CheckRequest(const PlanRequest& request) {
  const CacheChoice& fixed = request.fixed;
  if (fixed.chunk < 0 || fixed.group_heads < 0 || fixed.segment_tokens < 0) {
    return Status(StatusCode::kInvalidArgument, "chunk, head group and segment must be positive");
  }
  if (fixed.segment_tokens % request.page_slots != 0) {
    return Status(StatusCode::kInvalidArgument, "a segment of " +
                                                    std::to_string(fixed.segment_tokens) +
                                                    " tokens is not a multiple of the page's " +
                                                    std::to_string(request.page_slots) + " slots");
  }
  if (fixed.staging_slabs < 0) {
    return Status(StatusCode::kInvalidArgument, "staging buffers cannot be fewer than 0");
  }
  for (int64_t length : request.lengths) {
    if (length <= 0) return Status(StatusCode::kInvalidArgument, "a sequence has no tokens");
  }
  return OkStatus();
}

// Of the plans that fit, the one to take: the first whose fixed buffers leave at least half of a
// limited budget to resident slabs, or else the first that fits.
const CacheChoice* Choose(const PlanRequest& request, const std::vector<CacheChoice>& candidates,
                          bool all_weights) {
  const CacheChoice* first = nullptr;
  for (const CacheChoice& choice : candidates) {
    const Fit fit = TryFit(request, choice);
    if (!fit.ok || (all_weights && fit.weight_layers < request.shape.layers)) continue;
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
  if (request.fixed.staging_slabs > 0 || fit.slabs[2] <= fit.slabs[0] + fit.slabs[1]) return choice;
  CacheChoice deeper = choice;
  for (int slabs = kStagingOfDisk; slabs > kStaging; --slabs) {
    deeper.staging_slabs = deeper.bounce_slabs = slabs;
    if (TryFit(request, deeper).ok) return deeper;
  }
  return choice;
}

double WeightsStreamed(const PlanRequest& request, const Fit& fit) {
  return 1.0 - static_cast<double>(fit.weight_layers) / request.shape.layers;
}

Execution ExecutionFor(const CacheChoice& choice, const int64_t (&slabs)[kTierCount],
                       int64_t x_slabs, double host_share, double weights_streamed,
                       const std::vector<int64_t>& lengths) {
  Execution run;
  run.weights_streamed = weights_streamed;
  run.chunk = choice.chunk;
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

// A cut that fits, with what the machine would do with it.
struct Scored {
  CacheChoice choice;
  double host_share = 0.0;
  double seconds = 0.0;  // WorkloadSeconds
};

Scored Score(const PlanRequest& request, const CacheChoice& choice, const Fit& fit) {
  const Machine& machine = *request.machine;
  const Subject subject = SubjectOf(request, choice);
  Execution run = ExecutionFor(choice, fit.slabs, fit.x_slabs, request.host_share,
                               WeightsStreamed(request, fit), request.lengths);
  Scored scored{choice, request.host_share};
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
Scored Fastest(const PlanRequest& request, const std::vector<CacheChoice>& candidates,
               const CacheChoice& rule) {
  std::vector<CacheChoice> cuts;
  const bool disk = request.budgets.disk > 0;
  const auto add = [&](CacheChoice cut) {
    cut.bounce_slabs = disk ? kStaging : 0;
    if (request.fixed.staging_slabs > 0) return cuts.push_back(cut);
    for (int slabs = kStaging; slabs <= (disk ? kStagingOfDisk : kMostStaging); ++slabs) {
      cut.staging_slabs = slabs;
      if (disk) cut.bounce_slabs = slabs;
      cuts.push_back(cut);
    }
  };
  for (const CacheChoice& cut : candidates) {
    if (cut.chunk == rule.chunk && cut.segment_tokens == rule.segment_tokens) add(cut);
  }
  if (request.fixed.segment_tokens == 0 && request.fixed.group_heads == 0) {
    CacheChoice whole = rule;
    whole.segment_tokens = Align(*std::max_element(request.lengths.begin(), request.lengths.end()),
                                 request.page_slots);
    for (int group : {1, request.shape.kv_heads}) {
      whole.group_heads = group;
      add(whole);
    }
  }
  Scored best = Score(request, rule, TryFit(request, rule));
  for (const CacheChoice& cut : cuts) {
    const Fit fit = TryFit(request, cut);
    if (!fit.ok) continue;
    const Scored scored = Score(request, cut, fit);
    const bool same_bits =
        cut.segment_tokens == best.choice.segment_tokens && cut.chunk == best.choice.chunk;
    const double needed = same_bits ? kHairsBreadth : kClearly;
    if (scored.seconds < best.seconds * (1.0 - needed)) best = scored;
  }
  return best;
}

// Where weights stream a larger chunk may be faster to read prompts by: a step brings the weights
// once, however many tokens it has.
Scored WithLargerChunk(const PlanRequest& request, Scored best) {
  const auto prefill_of = [&](const CacheChoice& choice, const Fit& fit) {
    const Execution run = ExecutionFor(choice, fit.slabs, fit.x_slabs, request.host_share,
                                       WeightsStreamed(request, fit), request.lengths);
    return PredictPrefills(*request.machine, SubjectOf(request, choice), run, request.lengths)
        .seconds;
  };
  const Fit fit = TryFit(request, best.choice);
  if (request.fixed.chunk > 0 || fit.weight_layers == request.shape.layers) return best;
  double prefill = prefill_of(best.choice, fit);
  const int64_t most = best.choice.chunk * kMostChunks;
  for (CacheChoice larger = best.choice; larger.chunk < most;) {
    larger.chunk *= 2;
    const Fit then = TryFit(request, larger);
    if (!then.ok) break;
    const Scored scored = Score(request, larger, then);
    const double seconds = prefill_of(larger, then);
    if (scored.seconds > best.seconds || seconds > prefill * (1.0 - kClearly)) continue;
    best = scored;
    prefill = seconds;
  }
  return best;
}

// The fastest cut that recomputes a part of what the host holds, where one is clearly faster than
// `best`, which does not.
Scored FastestRecomputing(const PlanRequest& request, const CacheChoice& rule, const Scored& best) {
  if (!request.recompute || !XIsSmaller(request.shape)) return best;
  const Subject subject = SubjectOf(request, rule);
  SplitOptions options;
  options.host = request.host_attention;
  options.recompute = true;
  Scored found = best;
  bool any = false;
  for (int64_t segment = rule.segment_tokens; segment >= request.page_slots;) {
    for (int slabs = kStaging; slabs <= kMostStaging; ++slabs) {
      CacheChoice cut = rule;
      cut.group_heads = request.shape.kv_heads;
      cut.segment_tokens = segment;
      if (request.fixed.staging_slabs == 0) cut.staging_slabs = slabs;
      const Fit without = TryFit(request, cut);
      if (!without.ok || without.slabs[1] == 0) continue;
      Execution run = ExecutionFor(cut, without.slabs, 0, request.host_share,
                                   WeightsStreamed(request, without), request.lengths);
      cut.recompute = 1.0;
      run.gather_tokens = GatherTokens(cut, request.lengths);
      run = BestSplit(*request.machine, subject, run, request.lengths, options);
      cut.recompute = run.split.recompute;
      if (cut.recompute <= 0.0) continue;
      const Fit fit = TryFit(request, cut);
      if (!fit.ok || fit.x_slabs == 0) continue;
      const Scored scored = Score(request, cut, fit);
      if (any && scored.seconds >= found.seconds * (1.0 - kHairsBreadth)) continue;
      found = scored;
      any = true;
    }
    if (request.fixed.segment_tokens > 0 || segment <= kMinXSegment) break;
    segment = Align(segment / 2, request.page_slots);
  }
  return found.seconds < best.seconds * (1.0 - kClearly) ? found : best;
}

bool Fits(PlanRequest request, Budgets budgets) {
  request.budgets = budgets;
  const std::vector<CacheChoice> candidates = Candidates(request);
  return std::any_of(candidates.begin(), candidates.end(),
                     [&](const CacheChoice& choice) { return TryFit(request, choice).ok; });
}

// The smallest value of one budget with which the request fits, by bisection over 4 KiB.
int64_t SmallestOf(const PlanRequest& request, int64_t Budgets::*field) {
  constexpr int64_t kStep = 4096;
  Budgets budgets = request.budgets;
  int64_t high = int64_t{1} << 52;
  budgets.*field = high;
  if (!Fits(request, budgets)) return -1;
  int64_t low = 0;  // multiples of kStep; `high` fits
  budgets.*field = 0;
  if (Fits(request, budgets)) return 0;
  while (high - low > kStep) {
    const int64_t middle = RoundUp((low + high) / 2, kStep);
    if (middle >= high) break;
    budgets.*field = middle;
    (Fits(request, budgets) ? high : low) = middle;
  }
  return high;
}

// The longest length for all sequences that fits as things are, in pages; 0: none.
int64_t LongestThatFits(PlanRequest request) {
  const int64_t longest = *std::max_element(request.lengths.begin(), request.lengths.end());
  const std::vector<int64_t> lengths = request.lengths;
  int64_t low = 0, high = CeilDiv(longest, request.page_slots);  // pages; `low` fits
  while (low + 1 < high) {
    const int64_t middle = (low + high) / 2;
    for (size_t i = 0; i < lengths.size(); ++i) {
      request.lengths[i] = std::min(lengths[i], middle * request.page_slots);
    }
    (Fits(request, request.budgets) ? low : high) = middle;
  }
  return low * request.page_slots;
}

Status DoesNotFit(const PlanRequest& request) {
  const SmallestBudgets smallest = FindSmallestBudgets(request);
  const int64_t longest = *std::max_element(request.lengths.begin(), request.lengths.end());
  const bool streams = request.weight_layers >= 0 && request.weight_layers < request.shape.layers;
  std::string message =
      std::string(streams ? "weights that stream and the" : "the") + " KV cache of " +
      std::to_string(longest) + " tokens" +
      (request.lengths.size() > 1
           ? " (longest of " + std::to_string(request.lengths.size()) + " sequences)"
           : "") +
      (streams ? " do" : " does") + " not fit; one of these would do:";
  // The cheapest first: a byte of disk costs about a fiftieth of one of RAM, and that a twentieth
  // of one of a GPU.
  struct Offer {
    double price;
    std::string text;
  };
  std::vector<Offer> offers;
  const auto offer = [&](const char* flag, int64_t now, int64_t bytes, double price) {
    if (bytes < 0 || bytes <= now) return;
    offers.push_back({price * static_cast<double>(bytes - now),
                      std::string(flag) + " " + std::to_string(CeilDiv(bytes, kKiB)) + "KiB (" +
                          FormatBytes(bytes) + ", now " + FormatBytes(now) + ")"});
  };
  const bool own = request.budgets.device != kUnbounded;
  if (own) offer("--gpu-memory", request.budgets.device, smallest.device, 1000.0);
  offer("--kv-memory", request.budgets.kv, smallest.kv, own ? 1000.0 : 50.0);
  offer("--host-memory", request.budgets.host, smallest.host, 50.0);
  offer("--disk-memory", request.budgets.disk, smallest.disk, 1.0);
  std::stable_sort(offers.begin(), offers.end(),
                   [](const Offer& a, const Offer& b) { return a.price < b.price; });
  for (const Offer& o : offers) message += (&o == &offers.front() ? " " : ", or ") + o.text;
  if (offers.empty()) message += " no single budget alone; raise --kv-memory together with another";
  if (offers.size() > 1) message += "; the first is the cheapest";
  if (const int64_t tokens = LongestThatFits(request); tokens > 0) {
    message += "; or a context of at most " + std::to_string(tokens) + " tokens";
  }
  return Status(StatusCode::kOutOfBudget, message);
}

void FillTable(const PlanRequest& request, const Fit& fit, Plan* plan) {
  const CacheBytes bytes = request.costs.cache(plan->cache);
  const auto add = [&](Tier tier, const char* tag, int64_t n) {
    if (n > 0) plan->memory.push_back({tier, tag, n});
  };
  plan->slab_bytes = bytes.slab;
  std::copy(std::begin(fit.slabs), std::end(fit.slabs), std::begin(plan->slabs));
  plan->x_slabs = fit.x_slabs;
  add(Tier::kDevice, "driver and libraries", request.driver_bytes);
  add(Tier::kDevice, "page tables of host memory", fit.page_tables);
  const WeightSplit weights = SplitWeights(request, fit.weight_layers);
  add(Tier::kDevice, "weights", weights.resident);
  add(Tier::kDevice, "weights: buffers", weights.buffers);
  add(Tier::kDevice, "activations", request.costs.activations(plan->cache));
  add(Tier::kDevice, "workspace", request.costs.workspace(plan->cache));
  add(Tier::kDevice, "KV: open pages", bytes.open_pages);
  add(Tier::kDevice, "KV: append buffer", bytes.append_buffer);
  add(Tier::kDevice, "KV: streaming heads", bytes.streaming_heads);
  add(Tier::kDevice, "KV: staging", bytes.staging);
  add(Tier::kDevice, "KV: resident slabs", fit.slabs[0] * bytes.slab);
  add(Tier::kHost, "weights", weights.host);
  add(Tier::kHost, "KV: host slabs", fit.slabs[1] * bytes.slab);
  add(Tier::kHost, "KV: host slabs of X", fit.x_slabs * bytes.x_slab);
  add(Tier::kHost, "KV: bounce buffers", fit.slabs[1] + fit.slabs[2] > 0 ? bytes.bounce : 0);
  add(Tier::kHost, "program and tokenizer", request.other_bytes);
  add(Tier::kDisk, "KV: disk slabs", fit.slabs[2] * bytes.slab);
}

// Why keys and values are recomputed, or not.
void ExplainRecompute(const PlanRequest& request, const Fit& fit, Plan* plan) {
  const int64_t width = static_cast<int64_t>(DTypeBytes(request.shape.dtype));
  const std::string bytes =
      "of a token and layer X is " + FormatBytes(request.shape.d_model * width) + ", K and V are " +
      FormatBytes(2 * int64_t{request.shape.kv_heads} * request.shape.head_dim * width);
  if (fit.x_slabs > 0) {
    plan->reasons.push_back(
        (request.recompute ? "keys and values are recomputed where that takes the device less time "
                             "than their copy takes the bus: "
                           : "so much is recomputed as was asked for: ") +
        bytes);
  } else if (!request.recompute) {
    return;
  } else if (!XIsSmaller(request.shape)) {
    plan->reasons.push_back("nothing is recomputed: " + bytes + ", so that it never pays");
  } else if (request.machine == nullptr) {
    plan->reasons.push_back(
        "nothing is recomputed: without a machine's profile it is not known whether that pays");
  } else if (fit.slabs[1] > 0) {
    plan->reasons.push_back(
        "nothing is recomputed: the device would take longer than the copies "
        "that it saves");
  }
}

void Explain(const PlanRequest& request, const Fit& fit, Plan* plan) {
  const auto say = [&](std::string sentence) { plan->reasons.push_back(std::move(sentence)); };
  if (plan->streamed_weight_bytes > 0) {
    const int layers = request.shape.layers;
    say("the weights of " + std::to_string(layers - fit.weight_layers) + " of " +
        std::to_string(layers) + " layers stream from host memory, " +
        FormatBytes(plan->streamed_weight_bytes) + " in each step of any size" +
        (request.weight_layers >= 0 ? ""
                                    : "; they do not fit, and those that do come before keys and "
                                      "values, since a step needs all of them from the first on"));
  }
  if (request.fixed.chunk == 0 && plan->cache.chunk > request.chunk) {
    say("chunk " + std::to_string(plan->cache.chunk) +
        ": the weights cross the bus once for more tokens");
  }
  const int64_t total = fit.slabs[0] + fit.slabs[1] + fit.slabs[2] + fit.x_slabs;
  if (fit.slabs[0] == total) {
    say("everything is resident: the KV cache fits in the fast tier");
  } else {
    const auto share = [&](int tier) {
      return std::to_string(100 * fit.slabs[tier] / std::max<int64_t>(total, 1)) + " %";
    };
    say("resident " + share(0) + ", streamed from host " + share(1) + ", streamed from disk " +
        share(2) +
        (fit.x_slabs > 0 ? ", recomputed from X in host memory " +
                               std::to_string(100 * fit.x_slabs / total) + " %"
                         : std::string()) +
        " of the closed KV");
  }
  ExplainRecompute(request, fit, plan);
  const int64_t heads = int64_t{request.shape.layers} * request.shape.kv_heads;
  if (const int64_t streaming = heads - SlabHeads(request); streaming > 0) {
    say(std::to_string(streaming) + " of " + std::to_string(heads) +
        " KV heads stream: they keep sink and recent tokens, on the device, and no others");
  }
  if (request.fixed.group_heads == 0 && plan->cache.group_heads < request.shape.kv_heads) {
    say("head group " + std::to_string(plan->cache.group_heads) + " of " +
        std::to_string(request.shape.kv_heads) +
        (request.machine == nullptr ? ": larger staging buffers would take over half of "
                                      "the fast tier or not fit"
                                    : ": larger staging buffers would not fit, or leave less to "
                                      "resident keys than they gain"));
  }
  if (request.fixed.chunk == 0 && plan->cache.chunk < request.chunk) {
    say("chunk " + std::to_string(plan->cache.chunk) +
        ": the append buffer of a larger one does not fit");
  }
  if (plan->host_share > 0.0) {
    say("the host's cores attend to " + std::to_string(std::lround(100.0 * plan->host_share)) +
        " % of what is in host memory, so that they end with the bus");
  }
  if (plan->cache.staging_slabs > kStaging && fit.slabs[2] > 0) {
    say(std::to_string(plan->cache.staging_slabs) +
        " staging buffers: most is read from disk, which is faster with many requests");
  }
  if (request.fixed.segment_tokens == 0 && plan->cache.recompute == 0.0 &&
      plan->cache.segment_tokens < AutoSegment(request)) {
    say("segment " + std::to_string(plan->cache.segment_tokens) +
        ": staging buffers of longer ones do not fit");
  }
}

}  // namespace

int64_t Plan::Bytes(Tier tier) const {
  int64_t sum = 0;
  for (const MemoryRow& row : memory) sum += row.tier == tier ? row.bytes : 0;
  return sum;
}

Result<Plan> MakePlan(const PlanRequest& request) {
  if (Status s = CheckRequest(request); !s.ok()) return s;
  const std::vector<CacheChoice> candidates = Candidates(request);
  const CacheChoice* choice = Choose(request, candidates, /*all_weights=*/true);
  if (choice == nullptr) choice = Choose(request, candidates, /*all_weights=*/false);
  if (choice == nullptr) return DoesNotFit(request);
  Plan plan;
  plan.cache = WithReadAhead(request, *choice);
  plan.host_share = request.host_share;
  if (request.machine != nullptr) {
    const Scored fastest = WithLargerChunk(
        request, FastestRecomputing(request, plan.cache, Fastest(request, candidates, plan.cache)));
    plan.cache = fastest.choice;
    plan.host_share = fastest.host_share;
  }
  const Fit fit = TryFit(request, plan.cache);
  plan.weight_layers = fit.weight_layers;
  plan.streamed_weight_bytes = SplitWeights(request, fit.weight_layers).host;
  plan.weights_streamed = WeightsStreamed(request, fit);
  FillTable(request, fit, &plan);
  const double token_bytes =
      SubjectOf(request, plan.cache).closed_bytes * static_cast<double>(SlabHeads(request));
  plan.x_segments = XSegments(plan.cache.recompute, request.lengths, plan.cache.segment_tokens);
  const int64_t x_bytes = int64_t{request.shape.layers} * request.shape.d_model *
                          static_cast<int64_t>(DTypeBytes(request.shape.dtype));
  for (size_t i = 0; i < request.lengths.size(); ++i) {
    const int64_t of_x =
        std::min(request.lengths[i], plan.x_segments[i] * plan.cache.segment_tokens);
    plan.kv_bytes +=
        std::llround(static_cast<double>(request.lengths[i] - of_x) * token_bytes) + of_x * x_bytes;
  }
  plan.kv_bytes += request.costs.cache(plan.cache).streaming_heads;
  if (request.machine != nullptr) Predict(request, &plan);
  Explain(request, fit, &plan);
  return plan;
}

void Predict(const PlanRequest& request, Plan* plan) {
  const Execution run = ExecutionOf(*plan, request.lengths);
  const Subject subject = SubjectOf(request, plan->cache);
  plan->prefill = PredictPrefills(*request.machine, subject, run, request.lengths);
  plan->decode = PredictDecode(*request.machine, subject, run, request.lengths);
}

Execution ExecutionOf(const Plan& plan, const std::vector<int64_t>& lengths) {
  return ExecutionFor(plan.cache, plan.slabs, plan.x_slabs, plan.host_share, plan.weights_streamed,
                      lengths);
}

Subject SubjectOf(const PlanRequest& request, const CacheChoice& choice) {
  const int64_t heads = int64_t{request.shape.layers} * request.shape.kv_heads;
  // Slabs move as they are: encoded, and with what pads their pages.
  const auto slots = static_cast<double>(choice.segment_tokens * choice.group_heads);
  return {request.shape, request.window,
          static_cast<double>(SlabHeads(request)) / static_cast<double>(heads),
          static_cast<double>(request.costs.cache(choice).slab) / slots};
}

SmallestBudgets FindSmallestBudgets(const PlanRequest& request) {
  SmallestBudgets smallest;
  if (request.budgets.device != kUnbounded) smallest.device = SmallestOf(request, &Budgets::device);
  smallest.kv = SmallestOf(request, &Budgets::kv);
  smallest.host = SmallestOf(request, &Budgets::host);
  smallest.disk = SmallestOf(request, &Budgets::disk);
  return smallest;
}

}  // namespace headway::plan
