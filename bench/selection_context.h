// The calls of selection over some layers of one context, and their times. Included by
// selection_bench.cc alone, which says what the rows are.
#ifndef HEADWAY_BENCH_SELECTION_CONTEXT_H_
#define HEADWAY_BENCH_SELECTION_CONTEXT_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "base/bytes.h"
#include "base/env.h"
#include "base/half.h"
#include "base/random.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "kernels/page_codec.h"
#include "kernels/selection_scratch.h"
#include "unwrap.h"

namespace headway::bench {

inline constexpr int kHeads = 8, kGroup = 4, kHeadDim = 128;
inline constexpr int64_t kRows = int64_t{kHeads} * kGroup;
inline constexpr int64_t kSegmentPages = 64;
#ifndef HEADWAY_BENCH_BLOCK
#define HEADWAY_BENCH_BLOCK 16  // keys
#endif
inline constexpr SummaryFormat kSummary = {.kind = SummaryKind::kMoments,
                                           .block_slots = HEADWAY_BENCH_BLOCK,
                                           .sketch = SketchKind::kTwoBits};
// Listed of a head, on average: far keys, and the first and last of the context.
inline constexpr int64_t kFarKeys = 2048, kFirstKeys = 256, kLastKeys = 1024;
inline constexpr SummaryFormat kOneLook = {.kind = SummaryKind::kMoments,
                                           .block_slots = HEADWAY_BENCH_BLOCK};
// In front of blocks.
inline constexpr int kRun = kDefaultPageSlots / kOneLook.block_slots;
inline constexpr SummaryFormat kOfPages = {.kind = SummaryKind::kMoments,
                                           .block_slots = kDefaultPageSlots};
inline constexpr int kSearchSteps = 8;  // that one search may be for
inline constexpr int64_t kCandidates = 8 * kFarKeys / kSummary.block_slots;  // of a second look
// Keys of open pages.
inline constexpr int64_t kOpenKeys = 33;

enum class Place { kDevice, kHost };

struct Rates {
  double device = 0;  // bytes/us
  double host = 0;
};

// How a step chooses: one look at blocks; one at pages in front, in each step or in every eighth.
enum class Choice { kBlocks, kPages, kPagesRarely };

// Some layers of one context, so many that no cache holds their summaries, nor, with blocks of 16
// keys, those of their candidates. They share pages.
class Context {
 public:
  Context(Device& device, Kernels& kernels, Stream& compute, int64_t tokens, Encoding encoding,
          Place place)
      : device_(device),
        kernels_(kernels),
        compute_(compute),
        format_{DType::kBF16, kDefaultPageSlots, kHeadDim, encoding},
        place_(place),
        split_(kernels.ListedSplit(kHeads, kFirstKeys + kFarKeys + kLastKeys)),
        blocks_(tokens / kSummary.block_slots),
        segments_(CeilDiv(tokens, kSegmentPages * kDefaultPageSlots)) {
    LayOut();
    constexpr int64_t kCached = int64_t{128} << 20;
    // No more than models have: of blocks of 64 keys a call's candidates are so few that a device's
    // memory would not hold the layers whose candidates no cache holds.
    constexpr int64_t kLayers = 64;
    layers_ =
        static_cast<int>(std::min(kLayers, std::max(CeilDiv(kCached, segments_ * summary_bytes_),
                                                    CeilDiv(kCached, among_bytes()))));
    slabs_ = Fill(segments_ * slab_bytes_, place);
    summaries_ = Fill(layers_ * segments_ * summary_bytes_, Place::kDevice);
    sketches_ = Fill(layers_ * segments_ * sketch_bytes_, Place::kDevice);
    q_ = Fill(int64_t{kHeads} * kGroup * kHeadDim * 4, Place::kDevice);
    for (int layer = 0; layer < layers_; ++layer) {
      for (int64_t segment = 0; segment < segments_; ++segment) {
        places_.push_back({slabs_->data() + segment * slab_bytes_,
                           summaries_->data() + (layer * segments_ + segment) * summary_bytes_,
                           sketches_->data() + (layer * segments_ + segment) * sketch_bytes_});
      }
    }
    const int64_t last = blocks_ - kLastKeys / kSummary.block_slots;
    budget_ = {.far_begin = kFirstKeys / kSummary.block_slots,
               .far_end = last,
               .far_blocks = kFarKeys / kSummary.block_slots,
               .share = BudgetShare::kLayer};
    capacity_ = budget_.Capacity(blocks_, kHeads);
    parts_ = CeilDiv(capacity_ * kSummary.block_slots, split_);
    lists_ = Zeros(kHeads * (capacity_ + 1) * 4);
    states_ = Zeros((parts_ + 1) * kRows * (kHeadDim + 1) * 4);
    open_ = Fill(2 * kHeads * open_stride(), Place::kDevice);
    result_ = Zeros(kRows * kHeadDim * 4);
    twice_ = budget_;
    twice_.candidates = kCandidates;
    candidate_capacity_ = twice_.OfCandidates().Capacity(blocks_, kHeads);
    candidates_ = Zeros(layers_ * candidate_lists() * 4);
    scratch_ =
        Zeros(SelectScratchBytes(kHeads, kGroup, blocks_, segments_, 1, candidate_capacity_));
  }

  int64_t select_bytes() const {
    return kHeads * blocks_ * (kSummary.code_bytes(kHeadDim) + SummaryFormat::scale_bytes());
  }
  int64_t candidate_blocks() const {
    return kHeads * (kCandidates + (kFirstKeys + kLastKeys) / kSummary.block_slots);
  }
  int64_t looked_at_bytes() const { return candidate_blocks() * kSummary.sketch_bytes(kHeadDim); }
  int64_t twice_bytes() const {
    return select_bytes() + looked_at_bytes() + candidate_blocks() * kOneLook.bytes(kHeadDim) -
           candidate_blocks() * kHeadDim;
  }
  int64_t among_bytes() const { return candidate_blocks() * kOneLook.bytes(kHeadDim); }
  int64_t paged_bytes() const {
    return kHeads * (blocks_ / kRun) * kOfPages.bytes(kHeadDim) + among_bytes();
  }
  int64_t attend_bytes() const {
    const int64_t pages = (kFarKeys + kFirstKeys + kLastKeys) / format_.page_slots;
    return kHeads * pages *
           (2 * static_cast<int64_t>(format_.closed_bytes()) +
            (encoded() ? ParamBytes(format_) : 0));
  }
  enum class Candidates { kNew, kListed };
  void Select(int layer, const SelectionBudget& budget, const SummaryFormat& summary = kSummary,
              Candidates candidates = Candidates::kNew) {
    SelectItem item = ItemOf(layer, budget);
    item.candidates_listed = candidates == Candidates::kListed;
    kernels_.SelectBlocks(compute_, format_, summary, kGroup, kScale, {&item, 1});
  }
  // By pages, and among their blocks.
  enum class Search { kNow, kBefore };
  void SelectByPages(int layer, Search search) {
    SelectItem item = ItemOf(layer, twice_);
    item.candidates.run = kRun;
    item.candidates_listed = true;
    if (search == Search::kNow) {
      SelectItem pages = item;
      pages.keys = PageKeys(layer);
      pages.budget = twice_.OfCoarse(kRun);
      pages.blocks = item.candidates.blocks;
      pages.capacity = item.candidates.capacity;
      pages.counts = item.candidates.counts;
      pages.candidates = {};
      kernels_.SelectBlocks(compute_, format_, kOfPages, kGroup, kScale, {&pages, 1});
    }
    kernels_.SelectBlocks(compute_, format_, kOneLook, kGroup, kScale, {&item, 1});
  }
  void Choose(Choice choice, int layer, int step) {
    if (choice == Choice::kBlocks) return Select(layer, budget_);
    const bool now = choice == Choice::kPages || step % kSearchSteps == 0;
    SelectByPages(layer, now ? Search::kNow : Search::kBefore);
  }
  // Without its rest, which others do, or with it.
  enum class Rest { kApart, kTogether };
  void Attend(int layer, Rest rest) {
    AttendBlocksItem item;
    item.q = q_->data();
    item.keys = Keys(layer);
    item.blocks = reinterpret_cast<int32_t*>(lists_->data()) + kHeads;
    item.capacity = capacity_;
    item.counts = reinterpret_cast<int32_t*>(lists_->data());
    item.split = split_;
    item.parts = static_cast<int>(parts_);
    item.o = states();
    item.o_part_stride = kRows * kHeadDim;
    item.lse = lses();
    item.lse_part_stride = kRows;
    item.scratch = scratch_->data();
    if (rest == Rest::kTogether) {
      item.rest = {result_->data(), open_->data(), open_stride(), kOpenKeys};
    }
    item.cache = cache_;
    kernels_.AttendBlocks(compute_, format_, kSummary, kGroup, kScale, {&item, 1});
  }
  void AttendApart(int layer) {
    Attend(layer, Rest::kApart);
    AttentionItem open;
    open.q = q_->data();
    open.tokens = 1;
    open.q_position = kOpenKeys - 1;
    open.heads = kHeads;
    open.keys.pages.k = open_->data();
    open.keys.pages.v = open_->data() + kHeads * open_stride();
    open.keys.pages.head_stride = open_stride();
    open.keys.pages.count = kOpenKeys;
    open.o = states() + parts_ * kRows * kHeadDim;
    open.lse = lses() + parts_ * kRows;
    kernels_.Attend(compute_, format_, kGroup, {.scale = kScale}, {&open, 1});
    MergeItem merge;
    merge.part_o = states();
    merge.o_part_stride = kRows * kHeadDim;
    merge.part_lse = lses();
    merge.lse_part_stride = kRows;
    merge.parts = static_cast<int>(parts_) + 1;
    merge.rows = kRows;
    merge.o = result_->data();
    kernels_.Merge(compute_, kHeadDim, {&merge, 1});
  }
  // Attention to all keys, segment by segment in parts.
  void AttendDensely() {
    const int64_t split = kernels_.DecodeSplit(blocks_ * kSummary.block_slots, kHeads);
    const int64_t segment_keys = kSegmentPages * format_.page_slots;
    const int64_t parts = segments_ * CeilDiv(segment_keys, split);
    if (dense_ == nullptr) dense_ = Zeros(parts * kRows * (kHeadDim + 1) * 4);
    auto* const o = reinterpret_cast<float*>(dense_->data());
    float* const lse = o + parts * kRows * kHeadDim;
    std::vector<AttentionItem> items(static_cast<size_t>(segments_));
    for (int64_t segment = 0; segment < segments_; ++segment) {
      AttentionItem& item = items[static_cast<size_t>(segment)];
      std::byte* const slab = slabs_->data() + segment * slab_bytes_;
      const int64_t part = segment * CeilDiv(segment_keys, split);
      item.q = q_->data();
      item.tokens = 1;
      item.q_position = blocks_ * kSummary.block_slots;
      item.heads = kHeads;
      item.keys.position = segment * segment_keys;
      item.keys.pages.k = slab;
      item.keys.pages.v = slab + keys_.v_offset;
      item.keys.pages.page_stride = keys_.page_stride;
      item.keys.pages.head_stride = keys_.head_stride;
      item.keys.pages.count = segment_keys;
      if (encoded()) {
        item.keys.pages.params = slab + keys_.params_offset;
        item.keys.pages.params_page_stride = keys_.params_page_stride;
        item.keys.pages.params_head_stride = keys_.params_head_stride;
      }
      item.split = split;
      item.o = o + part * kRows * kHeadDim;
      item.o_part_stride = kRows * kHeadDim;
      item.lse = lse + part * kRows;
      item.lse_part_stride = kRows;
    }
    kernels_.Attend(compute_, format_, kGroup, {.scale = kScale}, items);
    MergeItem merge;
    merge.part_o = o;
    merge.o_part_stride = kRows * kHeadDim;
    merge.part_lse = lse;
    merge.lse_part_stride = kRows;
    merge.parts = static_cast<int>(parts);
    merge.rows = kRows;
    merge.o = result_->data();
    kernels_.Merge(compute_, kHeadDim, {&merge, 1});
  }
  // Microseconds of work(layer, step), the best of some rounds of eight steps through all layers.
  double Measure(const std::function<void(int, int)>& work) {
    const int count = layers_ * kSearchSteps;
    double best = 0.0;
    for (int round = 0; round < 6; ++round) {
      Require(compute_.Synchronize());
      const int64_t start = Env::Default()->NowNanos();
      for (int i = 0; i < count; ++i) work(i % layers_, i / layers_);
      Require(compute_.Synchronize());
      const double us = static_cast<double>(Env::Default()->NowNanos() - start) * 1e-3 / count;
      if (round == 1 || (round > 1 && us < best)) best = us;  // the first warms up
    }
    return best;
  }
  void Print(const char* name, const Rates& rates) {
    const double select_us = static_cast<double>(select_bytes()) / rates.device;
    const double attend_us = static_cast<double>(attend_bytes()) /
                             (place_ == Place::kDevice ? rates.device : rates.host);
    Row(name, "select", select_bytes(), select_us,
        Measure([this](int layer, int) { Select(layer, budget_); }));
    Row(name, "twice", twice_bytes(), static_cast<double>(twice_bytes()) / rates.device,
        Measure([this](int layer, int) { Select(layer, twice_); }));
    if (place_ == Place::kHost) PrintSketchesOnHost(name, rates);
    // Behind the row above: candidates are there.
    Row(name, "among", among_bytes(), static_cast<double>(among_bytes()) / rates.device,
        Measure([this](int layer, int) { Select(layer, twice_, kOneLook, Candidates::kListed); }));
    Row(name, "attend", attend_bytes(), attend_us,
        Measure([this](int layer, int) { Attend(layer, Rest::kApart); }));
    Row(name, "both", select_bytes() + attend_bytes(), select_us + attend_us,
        Measure([this](int layer, int) {
          Select(layer, budget_);
          Attend(layer, Rest::kApart);
        }));
    Row(name, "apart", attend_bytes(), attend_us,
        Measure([this](int layer, int) { AttendApart(layer); }));
    Row(name, "rest", attend_bytes(), attend_us,
        Measure([this](int layer, int) { Attend(layer, Rest::kTogether); }));
    const double paged_us = static_cast<double>(paged_bytes()) / rates.device;
    const double among_us = static_cast<double>(among_bytes()) / rates.device;
    const double eighth_us = among_us + (paged_us - among_us) / kSearchSteps;
    const auto eighth_bytes = static_cast<int64_t>(eighth_us * rates.device);
    Row(name, "pages", paged_bytes(), paged_us,
        Measure([this](int layer, int) { SelectByPages(layer, Search::kNow); }));
    const auto layer_of = [&](const char* call, Choice choice, int64_t bytes, double us) {
      Row(name, call, bytes + attend_bytes(), us + attend_us,
          Measure([this, choice](int layer, int step) {
            Choose(choice, layer, step);
            Attend(layer, Rest::kTogether);
          }));
    };
    layer_of("layer", Choice::kBlocks, select_bytes(), select_us);
    layer_of("paged", Choice::kPages, paged_bytes(), paged_us);
    layer_of("eighth", Choice::kPagesRarely, eighth_bytes, eighth_us);
    if (place_ == Place::kDevice) {
      const auto dense_bytes = segments_ * slab_bytes_;
      Row(name, "dense", dense_bytes, static_cast<double>(dense_bytes) / rates.device,
          Measure([this](int, int) { AttendDensely(); }));
      return;
    }
    PrintCached(
        name, "cached", Choice::kBlocks,
        {select_us + 0.9 * attend_bytes() / rates.device + 0.1 * attend_us, select_bytes()});
    PrintCached(name, "cached/8", Choice::kPagesRarely,
                {eighth_us + 0.9 * attend_bytes() / rates.device + 0.1 * attend_us, eighth_bytes});
  }
  // The same with sketches in host memory, which kernels read where they lie.
  void PrintSketchesOnHost(const char* name, const Rates& rates) {
    const std::unique_ptr<Buffer> on_host = Fill(layers_ * segments_ * sketch_bytes_, Place::kHost);
    for (size_t i = 0; i < places_.size(); ++i) {
      places_[i].sketch = on_host->data() + static_cast<int64_t>(i) * sketch_bytes_;
    }
    const auto beside = static_cast<double>(twice_bytes() - looked_at_bytes());
    Row(name, "twice/host", twice_bytes(),
        beside / rates.device + static_cast<double>(looked_at_bytes()) / rates.host,
        Measure([this](int layer, int) { Select(layer, twice_); }));
    for (size_t i = 0; i < places_.size(); ++i) {
      places_[i].sketch = sketches_->data() + static_cast<int64_t>(i) * sketch_bytes_;
    }
  }
  // A tenth of the segments have another version in each call: their blocks are not found.
  struct Floor {
    double us = 0.0;
    int64_t choice_bytes = 0;
  };
  void PrintCached(const char* name, const char* call, Choice choice, Floor floor) {
    MakeCache();
    Random random(1);
    const double us = Measure([&](int layer, int step) {
      for (int64_t i = 0; i < segments_; ++i) {
        SegmentPlace& place = places_[static_cast<size_t>(layer * segments_ + i)];
        if (place.version == 0 || random.Below(10) == 0) place.version = ++last_version_;
      }
      ++cache_.step;
      Choose(choice, layer, step);
      Attend(layer, Rest::kTogether);
    });
    cache_.lines = nullptr;
    Row(name, call, floor.choice_bytes + attend_bytes(), floor.us, us);
    std::array<uint64_t, BlockCache::kReads> reads = {};
    compute_.Copy(reinterpret_cast<std::byte*>(reads.data()),
                  reinterpret_cast<const std::byte*>(cache_.reads), sizeof(reads));
    Require(compute_.Synchronize());
    const uint64_t all = std::reduce(reads.begin(), reads.end());
    std::printf("%-28s found %.3f, brought %.3f\n", name,
                static_cast<double>(reads[BlockCache::kFound]) / static_cast<double>(all),
                static_cast<double>(reads[BlockCache::kBrought]) / static_cast<double>(all));
  }

 private:
  static constexpr float kScale = 0.08838834764f;  // 1 / sqrt(kHeadDim)

  // Of as many lines as sixteen calls of each layer list.
  void MakeCache() {
    const int64_t entries =
        RoundUp(16 * layers_ * kHeads * (kFarKeys + kFirstKeys + kLastKeys) / kSummary.block_slots,
                int64_t{BlockCache::kWays});
    const int64_t lines = entries * CacheLineBytes(format_, kSummary.block_slots);
    cache_memory_ = Zeros(lines + (entries + BlockCache::kWays) * 8);
    cache_.lines = cache_memory_->data();
    cache_.entries = reinterpret_cast<uint64_t*>(cache_.lines + RoundUp(lines, int64_t{128}));
    cache_.reads = cache_.entries + entries;
    cache_.sets = static_cast<uint32_t>(entries / BlockCache::kWays);
  }
  float* states() { return reinterpret_cast<float*>(states_->data()); }
  float* lses() { return states() + (parts_ + 1) * kRows * kHeadDim; }
  // Between rows of open pages, which are plain.
  int64_t open_stride() const { return static_cast<int64_t>(format_.bytes()); }
  bool encoded() const { return format_.encoding != Encoding::kNone; }
  static void Row(const char* name, const char* call, int64_t bytes, double floor, double us) {
    std::printf("%-28s %-8s %9.2f MB %8.1f us %8.1f us at least %5.0f %%\n", name, call,
                static_cast<double>(bytes) * 1e-6, us, floor, 100 * floor / us);
    std::fflush(stdout);
  }

  void LayOut() {
    page_ = static_cast<int64_t>(format_.closed_bytes());
    const int64_t plane = kHeads * kSegmentPages * page_;
    keys_.page_stride = page_;
    keys_.head_stride = kSegmentPages * page_;
    keys_.v_offset = plane;
    keys_.params_offset = 2 * plane;
    keys_.params_head_stride = encoded() ? ParamBytes(format_) : 0;
    keys_.params_page_stride = kHeads * keys_.params_head_stride;
    slab_bytes_ = 2 * plane + kSegmentPages * keys_.params_page_stride;
    keys_.heads = kHeads;
    keys_.group_heads = kHeads;
    keys_.blocks = blocks_;
    keys_.segment_blocks = kSegmentPages * format_.page_slots / kSummary.block_slots;
    keys_.codes_head_stride = keys_.segment_blocks * kSummary.code_bytes(kHeadDim);
    keys_.scales_offset = kHeads * keys_.codes_head_stride;
    keys_.scales_head_stride = 2 * keys_.segment_blocks;
    keys_.sketch_head_stride = keys_.segment_blocks * kSummary.sketch_bytes(kHeadDim);
    sketch_bytes_ = kHeads * keys_.sketch_head_stride;
    // Those of pages lie behind.
    page_offset_ = keys_.scales_offset + kHeads * keys_.scales_head_stride * 4;
    summary_bytes_ = page_offset_ + kHeads * kSegmentPages * kOfPages.bytes(kHeadDim);
  }
  BlockedKeys Keys(int layer) const {
    BlockedKeys keys = keys_;
    keys.segments = {places_.data() + layer * segments_, static_cast<size_t>(segments_)};
    return keys;
  }
  SelectItem ItemOf(int layer, const SelectionBudget& budget) const {
    SelectItem item;
    item.q = q_->data();
    item.keys = Keys(layer);
    item.budget = budget;
    item.blocks = reinterpret_cast<int32_t*>(lists_->data()) + kHeads;
    item.capacity = capacity_;
    item.counts = reinterpret_cast<int32_t*>(lists_->data());
    item.candidates = CandidatesOf(layer);
    item.scratch = scratch_->data();
    return item;
  }
  BlockedKeys PageKeys(int layer) const {
    BlockedKeys keys = Keys(layer);
    keys.blocks /= kRun;
    keys.segment_blocks = kSegmentPages;
    keys.codes_offset = page_offset_;
    keys.codes_head_stride = kSegmentPages * kOfPages.code_bytes(kHeadDim);
    keys.scales_offset = page_offset_ + kHeads * keys.codes_head_stride;
    keys.scales_head_stride = 2 * kSegmentPages;
    return keys;
  }
  // Counts, then lists, of one layer.
  int64_t candidate_lists() const { return kHeads * (candidate_capacity_ + 1); }
  CandidateLists CandidatesOf(int layer) const {
    auto* const counts =
        reinterpret_cast<int32_t*>(candidates_->data()) + layer * candidate_lists();
    return {counts + kHeads, candidate_capacity_, counts};
  }
  std::unique_ptr<Buffer> Zeros(int64_t bytes) {
    return Unwrap(device_.Allocate(memory_, static_cast<size_t>(bytes), "benchmark"));
  }
  // Small normal numbers in bf16; as f32 they are numbers, too, and as codes.
  std::unique_ptr<Buffer> Fill(int64_t bytes, Place place) {
    constexpr int64_t kPattern = int64_t{3} << 20;  // no multiple of what lies in it
    if (pattern_ == nullptr) {
      pattern_ = Unwrap(device_.AllocateHost(memory_, kPattern * 2, "pattern"));
      Random random(1);
      for (int64_t i = 0; i < kPattern; ++i) {
        StoreFloat(pattern_->data(), i, DType::kBF16, 0.02f * random.Normal());
      }
    }
    auto buffer = Unwrap(place == Place::kDevice
                             ? device_.Allocate(memory_, static_cast<size_t>(bytes), "benchmark")
                             : device_.AllocateHost(memory_, static_cast<size_t>(bytes), "slabs"));
    for (int64_t at = 0; at < bytes; at += 2 * kPattern) {
      const auto some = static_cast<size_t>(std::min(2 * kPattern, bytes - at));
      if (place == Place::kDevice) {
        compute_.Copy(buffer->data() + at, pattern_->data(), some);
      } else {
        std::copy_n(pattern_->data(), some, buffer->data() + at);
      }
    }
    Require(compute_.Synchronize());
    return buffer;
  }

  Device& device_;
  Kernels& kernels_;
  Stream& compute_;
  const PageFormat format_;
  const Place place_;
  const int64_t split_;  // listed keys of a state
  const int64_t blocks_;
  const int64_t segments_;
  int layers_ = 0;
  int64_t page_ = 0, slab_bytes_ = 0, summary_bytes_ = 0, sketch_bytes_ = 0, page_offset_ = 0,
          capacity_ = 0, parts_ = 0;
  int64_t candidate_capacity_ = 0;
  BlockedKeys keys_;
  SelectionBudget budget_, twice_;
  Budget memory_{"benchmark", kUnlimited};
  std::unique_ptr<Buffer> pattern_, slabs_, summaries_, sketches_, q_, lists_, candidates_, states_,
      scratch_, open_, result_;
  std::unique_ptr<Buffer> cache_memory_, dense_;
  BlockCache cache_;
  uint32_t last_version_ = 0;
  std::vector<SegmentPlace> places_;
};

}  // namespace headway::bench

#endif  // HEADWAY_BENCH_SELECTION_CONTEXT_H_
