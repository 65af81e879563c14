#include "plan/fit.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/bytes.h"
#include "plan/optimize.h"
#include "plan/selection_cost.h"

namespace headway::plan {

int64_t TotalTokens(const PlanRequest& request) {
  return std::reduce(request.lengths.begin(), request.lengths.end());
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

WeightSplit SplitWeights(const PlanRequest& request, int resident, int on_disk) {
  const int64_t streamed = request.shape.layers - resident;
  const int64_t layer = request.layer_weight_bytes;
  WeightSplit split;
  split.resident = request.weight_bytes - streamed * layer;
  const bool coded = request.layer_code_bytes > 0 && streamed > on_disk;
  const int64_t sent = coded ? request.layer_code_bytes : layer;
  split.buffers = std::min<int64_t>(streamed, kWeightBuffers) * (on_disk > 0 ? layer : sent);
  if (coded) split.buffers += layer;  // what is sent is expanded there
  split.host = (streamed - on_disk) * sent;
  split.bounce = std::min(on_disk, kWeightBuffers) * request.layer_read_bytes;
  split.disk = on_disk * layer;
  return split;
}

namespace {

constexpr int64_t kDiskAlignment = 4096;  // of what is written there

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
  int64_t beside = 0;   // on a device with its own memory beside cache and weights
  int64_t session = 0;  // on the disk, for a session
};

// A session's file holds all slabs once it is saved, whatever the tiers that they are read from,
// and its table of contents; or what is kept of a prompt alone.
int64_t SessionBytes(const PlanRequest& request, const CacheChoice& choice, int64_t slabs,
                     const CacheBytes& bytes) {
  if (!request.session.has_value()) return bytes.kept_file;
  const int64_t slab_bytes = bytes.slab;
  const SessionSizes& sizes = *request.session;
  const int64_t pages = choice.segment_tokens / request.page_slots;
  const int64_t contents = sizes.contents + sizes.token * TotalTokens(request) +
                           slabs * (sizes.slab + sizes.page * pages);
  return sizes.header + (slabs + sizes.copies * CeilDiv(contents, slab_bytes)) * slab_bytes;
}

Sizes SizesOf(const PlanRequest& request, const CacheChoice& choice) {
  Sizes sizes;
  sizes.bytes = request.costs.cache(choice);
  sizes.slabs = CountSlabs(request, choice);
  sizes.x_slabs = CountXSlabs(request, choice);
  sizes.beside = request.driver_bytes + request.costs.activations(choice) +
                 request.costs.workspace(choice) + request.beside.device;
  sizes.session = SessionBytes(request, choice, sizes.slabs, sizes.bytes);
  return sizes;
}

// On the device, for so many bytes of host memory.
int64_t PageTables(const PlanRequest& request, int64_t bytes) {
  return static_cast<int64_t>(std::ceil(request.map_share * static_cast<double>(bytes)));
}

// What the cache may take of the fast tier, beside page tables on the device.
int64_t KvLimit(const PlanRequest& request, const Sizes& sizes, int weight_layers,
                int64_t page_tables) {
  const int64_t kv = request.budgets.kv - request.beside.kv;
  if (request.budgets.device == kUnbounded) return kv;
  const WeightSplit weights = SplitWeights(request, weight_layers, 0);
  return std::min(
      kv, request.budgets.device - sizes.beside - weights.resident - weights.buffers - page_tables);
}

// Slabs in host memory: all that it holds, or as few as leave the device room for their page
// tables, the others on disk.
enum class HostSlabs { kAllThatFit, kFew };

// Where things may lie.
struct Places {
  int weight_layers = 0;
  int disk_layers = 0;
  int64_t disk = 0;        // left there for the cache
  bool disk_tier = false;  // the buffers on the way to it take host memory
  HostSlabs host_slabs = HostSlabs::kAllThatFit;
  bool keeps_listed = false;  // pages from disk that decode has listed stay in host memory
};

// Slabs in host memory, of at most `most`, beside `beside` bytes there.
int64_t SlabsOnHost(const PlanRequest& request, const Sizes& sizes, const Places& places,
                    int64_t beside, int64_t most) {
  const auto fits = [&](int64_t slabs) {
    const int64_t tables = PageTables(request, beside + slabs * sizes.bytes.slab);
    return KvLimit(request, sizes, places.weight_layers, tables) >= sizes.bytes.fixed();
  };
  if (places.host_slabs == HostSlabs::kAllThatFit || fits(most)) return most;
  int64_t low = 0;
  for (int64_t high = most; high - low > 1;) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

// What the buffers of the disk tier take of the host's budget. A budget of nothing means that no
// keys and values stay there: the buffers, which a disk tier cannot do without, are beside it.
int64_t HostBounce(const PlanRequest& request, int64_t bounce) {
  return request.budgets.host == 0 ? 0 : bounce;
}

// What the page cache takes of the device where `room` bytes are left for slabs, and some of these
// lie in host memory.
int64_t PageCacheIn(const PlanRequest& request, int64_t room) {
  const PageCacheRequest& cache = request.page_cache;
  if (cache.fixed) return cache.bytes;
  const int64_t bytes = std::min(room / 2, cache.bytes);
  return bytes < cache.least ? 0 : bytes;
}

// Slabs for the listed pages of so many steps, where the host has `room` for slabs: at most half of
// it, if slabs lie there, too. More held next to nothing more (docs/decisions/selection.md).
int64_t ListedSlabs(const PlanRequest& request, const CacheBytes& bytes, int64_t room) {
  constexpr int64_t kSteps = 2;
  const int64_t slabs = std::max<int64_t>(room, 0) / bytes.slab;
  return std::min(kSteps * bytes.listed_slabs, request.keep_on_host ? slabs / 2 : slabs);
}

Fit FitIn(const PlanRequest& request, const Sizes& sizes, const Places& places) {
  Fit fit;
  fit.weight_layers = places.weight_layers;
  fit.disk_layers = places.disk_layers;
  const bool streams = fit.weight_layers < request.shape.layers;
  const WeightSplit split = SplitWeights(request, fit.weight_layers, fit.disk_layers);
  const int64_t weights = split.host + split.bounce;
  const CacheBytes& bytes = sizes.bytes;
  const int64_t fixed = bytes.fixed();
  int64_t limit = KvLimit(request, sizes, fit.weight_layers, 0);
  fit.room = streams ? KvLimit(request, sizes, 0, 0) : limit;
  fit.x_slabs = sizes.x_slabs;
  int64_t left = sizes.slabs;
  // What is there for the cache, and what of it is not for slabs of K and V.
  const int64_t host = request.budgets.host - weights - bytes.fixed_on_host();
  fit.bounce = places.disk_tier ? bytes.bounce : 0;
  int64_t on_host = HostBounce(request, fit.bounce) + fit.x_slabs * bytes.x_slab;
  if (places.keeps_listed) fit.listed_slabs = ListedSlabs(request, bytes, host - on_host);
  const int64_t listed = fit.listed_slabs * bytes.slab;
  on_host += listed;
  if (fixed > limit || host < 0 || places.disk < 0) return fit;
  const bool all_stay =
      request.keep_on_device && fit.x_slabs == 0 && left <= (limit - fixed) / bytes.slab;
  int64_t on_host_most = 0;  // slabs
  if (!all_stay || streams || places.disk_tier || bytes.fixed_on_host() > 0) {
    const int64_t beside =
        weights + bytes.fixed_on_host() + fit.bounce + listed + fit.x_slabs * bytes.x_slab;
    if (!all_stay && request.keep_on_host) {
      const int64_t room = std::max<int64_t>(host - on_host, 0) / bytes.slab;
      on_host_most = SlabsOnHost(request, sizes, places, beside, std::min(left, room));
    }
    fit.page_tables = PageTables(request, beside + on_host_most * bytes.slab);
    limit = KvLimit(request, sizes, fit.weight_layers, fit.page_tables);
    // What was asked for is no reason for weights to make room for all keys instead.
    if (on_host_most > 0 || (streams && request.page_cache.fixed)) {
      fit.page_cache = PageCacheIn(request, limit - fixed);
    }
    limit -= fit.page_cache;
    if (fixed > limit) return fit;
  }
  if (request.keep_on_device) {
    fit.slabs[0] = std::min(left, (limit - fixed) / bytes.slab);
    left -= fit.slabs[0];
  }
  if (on_host > host) return fit;
  fit.slabs[1] = std::min(left, on_host_most);
  left -= fit.slabs[1];
  if (left > 0 && places.disk_tier) {
    fit.slabs[2] = std::min(left, places.disk / bytes.slab);
    left -= fit.slabs[2];
  }
  fit.ok = left == 0 && sizes.session <= places.disk;
  return fit;
}

// A disk tier is there where slabs need one, and in any case for a session's file or where nothing
// else may hold what closes.
Fit FitWithDisk(const PlanRequest& request, const Sizes& sizes, Places places) {
  places.disk_tier = request.session.has_value() || !request.keep_on_host;
  Fit fit = FitIn(request, sizes, places);
  if (!fit.ok && !places.disk_tier && places.disk > 0) {
    places.disk_tier = true;
    fit = FitIn(request, sizes, places);
  }
  if (!fit.ok || fit.slabs[2] == 0 || sizes.bytes.listed_slabs == 0) return fit;
  places.keeps_listed = true;
  Fit keeps = FitIn(request, sizes, places);
  if (!keeps.ok) return fit;
  keeps.listed_steps =
      static_cast<double>(keeps.listed_slabs) / static_cast<double>(sizes.bytes.listed_slabs);
  // Slabs that make room for these pages go to the disk themselves. Decode alone counts, though
  // prompts that are read exactly read them all.
  const double read = 1.0 - ListedPageShare(request.selection, keeps.listed_steps);
  return read * static_cast<double>(keeps.slabs[2]) < static_cast<double>(fit.slabs[2]) ? keeps
                                                                                        : fit;
}

// With so many layers on the device, and of the others as few on disk as fit: more of them leave
// more of host memory, so that the number is found by bisection.
Fit FitWith(const PlanRequest& request, const Sizes& sizes, int weight_layers,
            HostSlabs host_slabs) {
  const int64_t disk = request.budgets.disk;
  const int64_t layer = RoundUp(request.layer_disk_bytes, kDiskAlignment);
  const auto with = [&](int on_disk) {
    return FitWithDisk(
        request, sizes,
        {weight_layers, on_disk, disk - on_disk * layer, /*disk_tier=*/false, host_slabs});
  };
  int high = request.shape.layers - weight_layers;
  if (request.disk_layers.has_value()) return with(std::min(*request.disk_layers, high));
  const Fit none = with(0);
  if (none.ok || high == 0 || request.layer_read_bytes == 0) return none;
  // Where they take of the disk's budget, that is asked last.
  const auto fits = [&](int on_disk) {
    const int64_t left = request.layer_disk_bytes == 0 ? disk : kUnbounded;
    return FitWithDisk(request, sizes,
                       {weight_layers, on_disk, left, /*disk_tier=*/false, host_slabs})
        .ok;
  };
  if (!fits(high)) return none;
  for (int low = 0; high - low > 1;) {
    const int middle = (low + high) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return with(high);
}

// With as many layers on the device as fit.
Fit FitLayers(const PlanRequest& request, const Sizes& sizes, HostSlabs host_slabs) {
  const int layers = request.shape.layers;
  if (request.weight_layers.has_value()) {
    return FitWith(request, sizes, std::min(*request.weight_layers, layers), host_slabs);
  }
  const Fit all = FitWith(request, sizes, layers, host_slabs);
  if (all.ok || request.budgets.device == kUnbounded || request.layer_weight_bytes == 0) return all;
  for (int resident = layers - 1; resident >= 0; --resident) {
    const Fit some = FitWith(request, sizes, resident, host_slabs);
    if (some.ok) return some;
  }
  return all;
}

}  // namespace

Fit TryFit(const PlanRequest& request, const CacheChoice& choice) {
  const Sizes sizes = SizesOf(request, choice);
  const Fit fit = FitLayers(request, sizes, HostSlabs::kAllThatFit);
  if (fit.ok || request.map_share == 0.0 || request.budgets.disk == 0) return fit;
  Fit with_few = FitLayers(request, sizes, HostSlabs::kFew);
  with_few.few_on_host = with_few.ok;
  return with_few;
}

double PageCacheSteps(const PlanRequest& request, const Fit& fit) {
  const int64_t step = request.page_cache.step_bytes;
  return step > 0 ? static_cast<double>(fit.page_cache) / static_cast<double>(step) : 0.0;
}

}  // namespace headway::plan
