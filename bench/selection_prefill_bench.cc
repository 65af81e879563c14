// Selection in prefill at the shape of Llama-3-8B: a chunk of rows chooses among the blocks of what
// lies before it, and attends to what it lists. For each length before the chunk, the times of a
// layer's calls and what they compute in a second:
//   once      SelectBlocks in one look: products of codes of 8 bits
//   select    SelectBlocks in two looks
//   attend    AttendBlocks, written as states of rows: products of the pages' dtype
//   moved     the same, with blocks that are rotated as they are attended to
//   dense     Attend of the same rows to as many neighbouring keys, as exact prefill has it
// With pages in host memory, as many lists have a block as happens to be:
//   attend    AttendBlocks without a cache: each list reads its blocks there
//   brought   the same with lines, all of which are empty, and GB/s of what comes to them
//   found     the same with lines that have all
// The last lines are of a whole prompt of 131,072 tokens and all layers, at the mean length.
//
//   selection_prefill_bench [DEVICE]            by default cuda
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/env.h"
#include "base/half.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "kernels/backend/backend.h"
#include "kernels/page_codec.h"
#include "kernels/selection_scratch.h"
#include "unwrap.h"

namespace headway::bench {
namespace {

constexpr int kHeads = 8, kGroup = 4, kHeadDim = 128;
constexpr int64_t kQueryHeads = int64_t{kHeads} * kGroup;
constexpr int64_t kLayers = 32;
constexpr int64_t kPrompt = 131072, kRows = 4096;
constexpr int64_t kSegmentPages = 64;
constexpr SummaryFormat kSummary = {.kind = SummaryKind::kMoments, .block_slots = 16};
// Listed of a head, on average: far keys, and the first and last before the chunk.
constexpr int64_t kFarKeys = 2048, kFirstKeys = 256, kLastKeys = 1024;
constexpr int64_t kListed = kFarKeys + kFirstKeys + kLastKeys;
constexpr int64_t kCandidates = 8 * kFarKeys / kSummary.block_slots;
constexpr float kScale = 0.08838834764f;  // 1 / sqrt(kHeadDim)

enum class Place { kDevice, kHost };

class Prefix {
 public:
  Prefix(Device& device, Kernels& kernels, int64_t tokens, Encoding encoding, Place place)
      : device_(device),
        kernels_(kernels),
        format_{DType::kBF16, kDefaultPageSlots, kHeadDim, encoding},
        tokens_(tokens),
        segments_(CeilDiv(tokens, kSegmentPages * kDefaultPageSlots)) {
    compute_ = Unwrap(device.NewStream(Lane::kCompute));
    LayOut();
    slabs_ = Fill(segments_ * slab_bytes_, place);
    summaries_ = Fill(segments_ * summary_bytes_, Place::kDevice);
    q_ = Fill(kRows * kQueryHeads * kHeadDim * 4, Place::kDevice);
    for (int64_t segment = 0; segment < segments_; ++segment) {
      places_.push_back({slabs_->data() + segment * slab_bytes_,
                         summaries_->data() + segment * summary_bytes_, /*sketch=*/nullptr,
                         segment * kSegmentPages * kDefaultPageSlots});
    }
    keys_.segments = places_;
    budget_ = {.far_begin = kFirstKeys / kSummary.block_slots,
               .far_end = (tokens - kLastKeys) / kSummary.block_slots,
               .far_blocks = kFarKeys / kSummary.block_slots,
               .share = BudgetShare::kLayer};
    capacity_ = budget_.Capacity(keys_.blocks, kHeads);
    lists_ = Zeros(kRows / kSelectRows * kHeads * (capacity_ + 1) * 4);
    states_ = Zeros(kRows * kQueryHeads * (kHeadDim + 1) * 4);
    // Every head has room for as many candidates, and its near blocks.
    scratch_ = Zeros(SelectScratchBytes(kHeads, kGroup, keys_.blocks, segments_, kRows,
                                        kCandidates + capacity_));
    frequencies_ = Zeros(kHeadDim / 2 * 4);
    FillFrequencies();
  }

  void Select(int64_t candidates) {
    SelectItem item;
    item.q = q_->data();
    item.q_stride = kQueryHeads * kHeadDim;
    item.rows = kRows;
    item.keys = keys_;
    item.budget = budget_;
    item.budget.candidates = candidates;
    item.blocks = Lists();
    item.capacity = capacity_;
    item.counts = Counts();
    item.scratch = scratch_->data();
    kernels_.SelectBlocks(*compute_, format_, kSummary, kGroup, kScale, {&item, 1});
  }
  void Attend(bool moved) {
    AttendBlocksItem item;
    item.q = q_->data();
    item.q_stride = kQueryHeads * kHeadDim;
    item.rows = kRows;
    if (moved) {
      item.move = {reinterpret_cast<const float*>(frequencies_->data()), kHeadDim, tokens_};
    }
    item.keys = keys_;
    item.blocks = Lists();
    item.capacity = capacity_;
    item.counts = Counts();
    item.o = reinterpret_cast<float*>(states_->data());
    item.o_stride = kQueryHeads * kHeadDim;
    item.lse = item.o + kRows * item.o_stride;
    item.lse_stride = kQueryHeads;
    item.scratch = scratch_->data();
    item.cache = cache_;
    ++cache_.step;
    kernels_.AttendBlocks(*compute_, format_, kSummary, kGroup, kScale, {&item, 1});
  }
  // One segment after the other, to as many keys as are listed.
  void AttendDense() {
    std::vector<AttentionItem> items;
    for (int64_t left = kListed; left > 0;) {
      AttentionItem item;
      item.q = q_->data();
      item.q_stride = kQueryHeads * kHeadDim;
      item.tokens = kRows;
      item.q_position = tokens_;
      item.heads = kHeads;
      PageRun& run = item.keys.pages;
      run.k = slabs_->data() + std::ssize(items) * slab_bytes_;
      run.v = run.k + keys_.v_offset;
      run.page_stride = keys_.page_stride;
      run.head_stride = keys_.head_stride;
      run.count = std::min(left, kSegmentPages * kDefaultPageSlots);
      if (encoded()) {
        run.params = run.k + keys_.params_offset;
        run.params_page_stride = keys_.params_page_stride;
        run.params_head_stride = keys_.params_head_stride;
      }
      item.o = reinterpret_cast<float*>(states_->data());
      item.o_stride = kQueryHeads * kHeadDim;
      item.lse = item.o + kRows * item.o_stride;
      item.lse_stride = kQueryHeads;
      item.merge = !items.empty();
      left -= run.count;
      items.push_back(item);
    }
    for (const AttentionItem& item : items) {
      kernels_.Attend(*compute_, format_, kGroup, {.scale = kScale}, {&item, 1});
    }
  }

  // Microseconds, the best of some rounds.
  double Measure(const std::function<void()>& work) {
    double best = 0.0;
    for (int round = 0; round < kMeasured / kCalls; ++round) {
      Require(compute_->Synchronize());
      const int64_t start = Env::Default()->NowNanos();
      for (int i = 0; i < kCalls; ++i) work();
      Require(compute_->Synchronize());
      const double us = static_cast<double>(Env::Default()->NowNanos() - start) * 1e-3 / kCalls;
      if (round == 1 || (round > 1 && us < best)) best = us;  // the first warms up
    }
    return best;
  }
  // Prints what the calls take; returns the times of select, attend and dense.
  std::vector<double> Print(const char* name) {
    // Two products a query and channel, each of two halves.
    const double block_ops = 2.0 * 2 * 2 * kHeadDim * kQueryHeads * kRows;
    const auto blocks = static_cast<double>(keys_.blocks);
    const double once_ops = block_ops * blocks / kPoolRows;
    const double near = static_cast<double>(kFirstKeys + kLastKeys) / kSummary.block_slots;
    const bool twice = 2.0 * kCandidates <= blocks - near;
    const double select_ops =
        twice ? block_ops * (blocks / kSearchRows + (kCandidates + near) / kPoolRows) : once_ops;
    const double attend_ops = 4.0 * kHeadDim * kListed * kQueryHeads * kRows;
    const double once = Measure([this] { Select(0); });
    const double select = Measure([this] { Select(kCandidates); });
    const double attend = Measure([this] { Attend(false); });
    const double moved = Measure([this] { Attend(true); });
    const double dense = Measure([this] { AttendDense(); });
    const auto row = [&](const char* call, double us, double ops) {
      std::printf("%-16s %-7s %9.1f us %8.1f T/s\n", name, call, us, ops / us * 1e-6);
    };
    row("once", once, once_ops);
    row("select", select, select_ops);
    row("attend", attend, attend_ops);
    row("moved", moved, attend_ops);
    row("dense", dense, attend_ops);
    std::fflush(stdout);
    return {select, attend, dense};
  }
  void PrintHost(const char* name) {
    const auto row = [&](const char* call, double us) {
      std::printf("%-16s %-7s %9.1f us", name, call, us);
    };
    Select(kCandidates);
    row("attend", Measure([this] { Attend(false); }));
    std::printf("\n");
    MakeCache();
    const double brought = Measure([this] {
      for (SegmentPlace& place : places_) place.version += static_cast<uint32_t>(segments_) + 1;
      Attend(false);
    });
    uint64_t blocks = 0;
    compute_->Copy(reinterpret_cast<std::byte*>(&blocks),
                   reinterpret_cast<const std::byte*>(cache_.reads + BlockCache::kBrought), 8);
    Require(compute_->Synchronize());
    const auto bytes = static_cast<double>(blocks) / kMeasured *
                       static_cast<double>(CacheLineBytes(format_, kSummary.block_slots));
    row("brought", brought);
    std::printf(" %8.1f GB/s\n", bytes / brought * 1e-3);
    row("found", Measure([this] { Attend(false); }));
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  static constexpr int kCalls = 4;              // that are measured together
  static constexpr int kMeasured = 5 * kCalls;  // of a call of Measure

  // Of lines for twice all blocks.
  void MakeCache() {
    const int64_t entries = RoundUp(2 * kHeads * keys_.blocks, int64_t{BlockCache::kWays});
    const int64_t lines = entries * CacheLineBytes(format_, kSummary.block_slots);
    cache_memory_ = Zeros(lines + (entries + BlockCache::kWays) * 8);
    cache_.lines = cache_memory_->data();
    cache_.entries = reinterpret_cast<uint64_t*>(cache_.lines + RoundUp(lines, int64_t{128}));
    cache_.reads = cache_.entries + entries;
    cache_.sets = static_cast<uint32_t>(entries / BlockCache::kWays);
    for (SegmentPlace& place : places_) {
      place.version = static_cast<uint32_t>(&place - places_.data()) + 1;
    }
  }
  bool encoded() const { return format_.encoding != Encoding::kNone; }
  int32_t* Counts() const { return reinterpret_cast<int32_t*>(lists_->data()); }
  int32_t* Lists() const { return Counts() + kRows / kSelectRows * kHeads; }

  void LayOut() {
    const auto page = static_cast<int64_t>(format_.closed_bytes());
    const int64_t plane = kHeads * kSegmentPages * page;
    keys_.page_stride = page;
    keys_.head_stride = kSegmentPages * page;
    keys_.v_offset = plane;
    keys_.params_offset = 2 * plane;
    keys_.params_head_stride = encoded() ? ParamBytes(format_) : 0;
    keys_.params_page_stride = kHeads * keys_.params_head_stride;
    slab_bytes_ = 2 * plane + kSegmentPages * keys_.params_page_stride;
    keys_.heads = kHeads;
    keys_.group_heads = kHeads;
    keys_.blocks = tokens_ / kSummary.block_slots;
    keys_.segment_blocks = kSegmentPages * format_.page_slots / kSummary.block_slots;
    keys_.codes_head_stride = keys_.segment_blocks * kSummary.code_bytes(kHeadDim);
    keys_.scales_offset = kHeads * keys_.codes_head_stride;
    keys_.scales_head_stride = 2 * keys_.segment_blocks;
    summary_bytes_ = keys_.scales_offset + kHeads * keys_.scales_head_stride * 4;
  }
  std::unique_ptr<Buffer> Zeros(int64_t bytes) {
    return Unwrap(device_.Allocate(memory_, static_cast<size_t>(bytes), "benchmark"));
  }
  std::unique_ptr<Buffer> HostCopy(int64_t bytes) {
    return Unwrap(device_.AllocateHost(memory_, static_cast<size_t>(bytes), "pattern"));
  }
  // Small normal numbers in bf16; as f32 they are numbers, too, and as codes.
  std::unique_ptr<Buffer> Fill(int64_t bytes, Place place) {
    constexpr int64_t kPattern = int64_t{3} << 20;  // no multiple of what lies in it
    if (pattern_ == nullptr) {
      pattern_ = HostCopy(kPattern * 2);
      Random random(1);
      for (int64_t i = 0; i < kPattern; ++i) {
        StoreFloat(pattern_->data(), i, DType::kBF16, 0.02f * random.Normal());
      }
    }
    auto buffer = place == Place::kDevice ? Zeros(bytes) : HostCopy(bytes);
    for (int64_t at = 0; at < bytes; at += 2 * kPattern) {
      compute_->Copy(buffer->data() + at, pattern_->data(),
                     static_cast<size_t>(std::min(2 * kPattern, bytes - at)));
    }
    Require(compute_->Synchronize());
    return buffer;
  }
  void FillFrequencies() {
    const auto host = HostCopy(kHeadDim / 2 * 4);
    for (int i = 0; i < kHeadDim / 2; ++i) {
      StoreFloat(host->data(), i, DType::kF32,
                 static_cast<float>(std::pow(5e5, -2.0 * i / kHeadDim)));
    }
    compute_->Copy(frequencies_->data(), host->data(), kHeadDim / 2 * 4);
    Require(compute_->Synchronize());
  }

  Device& device_;
  Kernels& kernels_;
  const PageFormat format_;
  const int64_t tokens_;
  const int64_t segments_;
  int64_t slab_bytes_ = 0, summary_bytes_ = 0, capacity_ = 0;
  BlockedKeys keys_;
  SelectionBudget budget_;
  Budget memory_{"benchmark", kUnlimited};
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Buffer> pattern_, slabs_, summaries_, q_, lists_, states_, scratch_, frequencies_;
  std::unique_ptr<Buffer> cache_memory_;
  BlockCache cache_;
  std::vector<SegmentPlace> places_;
};

int Main(const std::string& device_name) {
  ThreadPool pool(0);
  Budget budget("benchmark", kUnlimited);
  const std::unique_ptr<Backend> backend = Unwrap(NewBackend(device_name, "auto"));
  const std::unique_ptr<Device> device =
      Unwrap(backend->NewDevice(Env::Default(), nullptr, KernelTimes::kWhereFree));
  for (const Encoding encoding : {Encoding::kNone, Encoding::kInt8, Encoding::kInt4}) {
    const std::unique_ptr<Kernels> kernels = Unwrap(backend->NewKernels(&pool, nullptr));
    KernelLimits limits;
    limits.rows = kRows;
    limits.max_in = limits.max_out = kQueryHeads * kHeadDim;
    limits.head_dim = kHeadDim;
    limits.group = kGroup;
    limits.query_heads = kQueryHeads;
    limits.encoding = encoding;
    limits.activation = kernels->ActivationDType(DType::kBF16);
    Require(kernels->Prepare(limits, *device, budget));
    for (const int64_t tokens : {kPrompt / 4, kPrompt / 2, kPrompt}) {
      const std::string name =
          std::to_string(tokens / 1024) + "K " + std::string(EncodingName(encoding));
      const std::vector<double> us =
          Prefix(*device, *kernels, tokens, encoding, Place::kDevice).Print(name.c_str());
      if (device->kernels_read_host_memory()) {
        Prefix(*device, *kernels, tokens, encoding, Place::kHost)
            .PrintHost((name + ", host").c_str());
      }
      if (tokens != kPrompt / 2) continue;
      constexpr double kCalls = 1e-6 * kLayers * kPrompt / kRows;
      std::printf("a prompt of %lld: select %.2f s, attend %.2f s, dense %.2f s\n",
                  static_cast<long long>(kPrompt), us[0] * kCalls, us[1] * kCalls, us[2] * kCalls);
    }
  }
  return 0;
}

}  // namespace
}  // namespace headway::bench

int main(int argc, char** argv) { return headway::bench::Main(argc > 1 ? argv[1] : "cuda"); }
