#include "engine/layer_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/head_set.h"
#include "engine/ranks.h"
#include "engine/refused.h"
#include "engine/report.h"

namespace headway {
namespace {

Status Apart(const Message& other) {
  Message refused = {Option::kLayersOver, " and "};
  refused += other;
  refused += {" do not go together yet; leave one of them out"};
  return Unsupported(std::move(refused));
}

// How many of `layers` each rank has: one, and each further one goes where it weighs least.
std::vector<int> CountLayers(int layers, std::span<const int64_t> memory) {
  std::vector<int> counts(memory.size(), 1);
  const auto weight = [&](size_t rank) {
    return (counts[rank] + 1) / static_cast<double>(memory[rank]);
  };
  for (auto given = static_cast<int>(memory.size()); given < layers; ++given) {
    size_t least = 0;
    for (size_t rank = 1; rank < memory.size(); ++rank) {
      if (weight(rank) < weight(least)) least = rank;
    }
    ++counts[least];
  }
  return counts;
}

// Adds what a rank takes; memory is that of all.
void AddRank(const PlanReport& rank, int first_layer, PlanReport* all) {
  all->kv_bytes += rank.kv_bytes;
  all->kv_bytes_per_token += rank.kv_bytes_per_token;
  all->memory_bytes += rank.memory_bytes;
  all->weight_layers += rank.weight_layers;
  all->streamed_weight_bytes += rank.streamed_weight_bytes;
  all->disk_weight_bytes += rank.disk_weight_bytes;
  for (const int layer : rank.disk_layers) all->disk_layers.push_back(first_layer + layer);
  for (size_t tier = 0; tier < std::size(all->slabs); ++tier) all->slabs[tier] += rank.slabs[tier];
  all->x_slabs += rank.x_slabs;
  for (const MemoryLine& line : rank.memory) {
    const auto same = std::ranges::find_if(all->memory, [&](const MemoryLine& other) {
      return other.tier == line.tier && other.what == line.what;
    });
    if (same == all->memory.end()) {
      all->memory.push_back(line);
    } else {
      same->bytes += line.bytes;
    }
  }
  const auto most = [](int64_t of_rank, int64_t* of_all) {
    *of_all = of_rank < 0 || *of_all < 0 ? -1 : std::max(*of_all, of_rank);
  };
  most(rank.smallest_gpu_memory, &all->smallest_gpu_memory);
  most(rank.smallest_kv_memory, &all->smallest_kv_memory);
  most(rank.smallest_host_memory, &all->smallest_host_memory);
  most(rank.smallest_disk_memory, &all->smallest_disk_memory);
}

int LayersOfPlan(const Blueprint& blueprint) { return blueprint.request.shape.layers; }

// "0 to 15, 16 to 31"
std::string RunsText(std::span<const int> layers) {
  std::string text;
  int begin = 0;
  for (const int count : layers) {
    text += text.empty() ? "" : ", ";
    text += count == 1 ? fmt::to_string(begin) : fmt::format("{} to {}", begin, begin + count - 1);
    begin += count;
  }
  return text;
}

}  // namespace

Status CheckLayerRanks(const Settings& settings) {
  if (settings.layer_ranks < 1 || settings.layer_ranks > kMaxRanks) {
    return Wrong({Option::kLayersOver, fmt::format(": 1 to {} ranks are possible", kMaxRanks)});
  }
  if (settings.layer_ranks == 1) return OkStatus();
  if (settings.ranks > 1) return Apart({Option::kTensorParallel});
  if (settings.session.has_value()) return Apart({Option::kSession});
  if (settings.eviction.evicts()) return Apart({Option::kEvict});
  // Which layers read more, and where they count, is by their number in the model.
  if (settings.selection.approximates() &&
      settings.selection.summary.kind == SummaryKind::kStages) {
    return Apart({Option::kSelector, std::string(" ") + SelectorName(settings.selection)});
  }
  return OkStatus();
}

Result<std::vector<LayerRun>> CutLayers(const ModelConfig& whole, std::span<const int64_t> memory) {
  const ModelShape& shape = whole.shape;
  const auto ranks = static_cast<int>(memory.size());
  const int most = std::min({shape.layers, shape.d_ff, shape.vocab});
  if (ranks > most) {
    return Wrong({Option::kLayersOver,
                  fmt::format(" {}: this model has layers for {} ranks at most", ranks, most)});
  }
  const std::vector<HeadSet> heads(static_cast<size_t>(shape.layers), HeadSet::All(shape.kv_heads));
  std::vector<Shard> shards = CutShards(shape, std::vector(memory.size(), heads));
  std::vector<LayerRun> runs;
  int begin = 0;
  for (const int count : CountLayers(shape.layers, memory)) {
    Shard& shard = shards[runs.size()];
    shard.kv_heads.resize(static_cast<size_t>(count));
    shard.inner = {0, shape.d_ff};
    shard.role = arch::SumRole::kAlone;
    shard.embeds = runs.empty();
    runs.push_back({LayersOf(whole, begin, count), std::move(shard)});
    begin += count;
  }
  return runs;
}

void TakeRun(const ModelConfig& whole, const ModelConfig& run, Settings* settings) {
  if (!settings->gpu_layers.has_value()) return;
  // Of so many behind one another as many as of all, together.
  const auto up_to = [&](int layer) { return *settings->gpu_layers * layer / whole.shape.layers; };
  settings->gpu_layers = up_to(run.first_layer + run.shape.layers) - up_to(run.first_layer);
}

Settings SettingsOfRun(const Settings& settings, const Blueprint& first) {
  Settings own = settings;
  const plan::CacheChoice& cut = first.plan.cache;
  own.cut.chunk = cut.chunk;
  own.cut.head_group = cut.group_heads;
  own.cut.segment = cut.segment_tokens;
  const kv::SelectionPolicy& chosen = first.layout.executor.selection;
  if (!chosen.approximates()) return own;
  own.selection.summary.block_slots = chosen.summary.block_slots;
  own.selection.breadth = chosen.breadth;
  own.selection.search_slots = chosen.search_slots;
  own.blocks_by_plan = own.levels_by_plan = false;
  return own;
}

kv::HeadPattern PatternOfRun(const kv::HeadPattern& whole, const ModelConfig& run) {
  kv::HeadPattern own = whole;
  if (whole.streaming.empty()) return own;
  const auto begin = whole.streaming.begin() + run.first_layer;
  own.streaming.assign(begin, begin + run.shape.layers);
  return own;
}

void TellOfRuns(const Blueprint& first, std::span<const Blueprint> others, PlanReport* report) {
  if (others.empty()) return;
  const auto ranks = static_cast<int64_t>(others.size()) + 1;
  report->layers_of_ranks = {LayersOfPlan(first)};
  int begin = LayersOfPlan(first);
  for (const Blueprint& other : others) {
    AddRank(ReportOf(other), begin, report);
    report->layers_of_ranks.push_back(LayersOfPlan(other));
    begin += LayersOfPlan(other);
  }
  // Each has a part of what is given.
  for (int64_t* const smallest : {&report->smallest_kv_memory, &report->smallest_host_memory,
                                  &report->smallest_disk_memory}) {
    if (*smallest > 0) *smallest *= ranks;
  }
  report->reasons.push_back(fmt::format(
      "{} ranks have layers {}, each with 1/{} of every budget but that of its GPU; a step goes "
      "through them one behind the other; bytes are of all, the other reasons of the first",
      ranks, RunsText(report->layers_of_ranks), ranks));
}

double PrefillOfRuns(const Blueprint& first, std::span<const double> of_ranks, int64_t tokens) {
  const double last = of_ranks.back();
  const double before = std::accumulate(of_ranks.begin(), of_ranks.end(), -last);
  // On devices of their own the last one computes a chunk beside the others, which are at the next.
  if (!first.own_memory) return before + last;
  const auto chunks =
      static_cast<double>(CeilDiv(std::max<int64_t>(tokens, 1), first.plan.cache.chunk));
  return std::max(before, last) + std::min(before, last) / chunks;
}

void PredictRuns(const Blueprint& first, std::span<const Blueprint> others, PlanReport* report) {
  if (others.empty()) return;
  std::vector<double> prompts = {first.plan.prefill.seconds};
  double decode = first.plan.decode.seconds;
  int64_t tokens = 0;
  for (const Blueprint& other : others) {
    decode += other.plan.decode.seconds;
    prompts.push_back(other.plan.prefill.seconds);
  }
  for (const int64_t length : first.lengths) tokens += length;
  const double prefill = PrefillOfRuns(first, prompts, tokens);
  const auto take = [&](double seconds, plan::StepTime plan::Plan::*time, PhasePrediction* phase) {
    for (auto& [name, busy] : phase->lanes) {
      for (const Blueprint& other : others) {
        for (int lane = 0; lane < plan::kCostLanes; ++lane) {
          if (name != plan::CostLaneName(static_cast<plan::CostLane>(lane))) continue;
          busy += (other.plan.*time).busy[lane];
        }
      }
    }
    if (seconds <= 0.0) return;
    phase->tokens_per_second *= phase->seconds / seconds;
    phase->seconds = seconds;
  };
  take(prefill, &plan::Plan::prefill, &report->prediction.prefill);
  take(decode, &plan::Plan::decode, &report->prediction.decode);
}

}  // namespace headway
