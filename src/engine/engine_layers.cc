// What an engine does whose ranks have a run of the model's layers each.
#include <utility>

#include "engine/engine_impl.h"
#include "engine/layer_ranks.h"
#include "engine/model_info.h"
#include "engine/page_size.h"
#include "engine/report.h"

namespace headway {

Status Engine::Impl::LoadRuns(const Settings& all, const ModelConfig& config,
                              const std::string& folder) {
  std::vector<Impl*> ranks = {this};
  for (int rank = 1; rank < all.layer_ranks; ++rank) {
    Impl& other = *others.emplace_back(std::make_unique<Impl>(env, SettingsOfRank(all, rank)));
    FitPages(config.shape, &other.settings);
    if (Status s = other.OpenBackend(); !s.ok()) return s;
    other.machine = machine;
    ranks.push_back(&other);
  }
  std::vector<int64_t> memory;
  for (const Impl* rank : ranks) {
    memory.push_back(rank->device_budget.has_value() ? rank->device_budget->limit() : 1);
  }
  Result<std::vector<LayerRun>> runs = CutLayers(config, memory);
  if (!runs.ok()) return runs.status();
  for (size_t i = 0; i < ranks.size(); ++i) {
    LayerRun& run = (*runs)[i];
    TakeRun(config, run.config, &ranks[i]->settings);
    RankShare& own = ranks[i]->share.emplace(RankShare{config, std::move(run.shard)});
    if (Status s = ranks[i]->LoadShard(run.config, folder, &own.shard); !s.ok()) return s;
    own.whole.shape.dtype = ranks[i]->model->shape().dtype;
  }
  info = ModelInfoOf(share->whole, CountWeightBytes(share->whole), folder, settings);
  return OkStatus();
}

Result<std::vector<Blueprint>> Engine::Impl::DrawRuns(const Workload& workload,
                                                      const Blueprint& first) {
  std::vector<Blueprint> runs;
  if (settings.layer_ranks == 1) return runs;
  for (const std::unique_ptr<Impl>& rank : others) {
    Result<Blueprint> drawn =
        rank->DrawUnder(SettingsOfRun(rank->settings, first), workload, nullptr);
    if (!drawn.ok()) return drawn.status();
    runs.push_back(std::move(*drawn));
  }
  return runs;
}

}  // namespace headway
