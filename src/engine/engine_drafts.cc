// The model that drafts for an engine's: it is opened with it, and its weights stay on the device.
#include <mutex>
#include <utility>

#include "base/exceptions.h"
#include "engine/draft_plan.h"
#include "engine/engine_impl.h"
#include "engine/model_info.h"
#include "engine/refused.h"
#include "model/locate.h"
#include "model/weights/open_weights.h"

namespace headway {
namespace {

Result<std::unique_ptr<Model>> OpenDraft(Env* env, const std::string& folder) {
  Result<ModelConfig> config = ReadModelConfig(*env, folder);
  if (!config.ok()) return config.status();
  Result<std::unique_ptr<WeightSource>> weights = OpenWeights(*env, folder);
  if (!weights.ok()) return weights.status();
  return Model::Map(env, *config, std::move(*weights));
}

}  // namespace

Status Engine::Impl::CompareTokens(const std::string& folder) const {
  Result<std::unique_ptr<Tokenizer>> own = Tokenizer::Load(env, folder);
  if (!own.ok() && own.status().code() != StatusCode::kNotFound) return OfDraft(own.status());
  const bool same =
      tokenizer == nullptr ? !own.ok() : own.ok() && (*own)->Hash() == tokenizer->Hash();
  if (same) return OkStatus();
  return Wrong({Option::kDraft, ": " + folder + " has another tokenizer than " + info.folder +
                                    "; a model that drafts has the same tokens"});
}

Status Engine::Impl::LoadDraft() {
  const bool first = processes == nullptr || processes->rank() == 0;
  if (settings.drafts.by != DraftSettings::By::kModel || !first) return OkStatus();
  const std::string& name = settings.drafts.model;
  Result<std::unique_ptr<Model>> opened(StatusCode::kNotFound, "");
  if (settings.weights == Settings::Weights::kRandom) {
    const Result<ModelConfig> config = ReadRandomConfig(*env, name);
    if (!config.ok()) return OfDraft(config.status());
    opened = Model::Random(env, *config, /*seed=*/1, &pool);
  } else {
    const Result<std::string> folder = LocateModel(*env, name, ProcessEnvironment());
    if (!folder.ok()) {
      return folder.status().Within({Option::kDraft, " is none of none, lookup, sparse; "});
    }
    opened = OpenDraft(env, *folder);
    const Status same = opened.ok() ? CompareTokens(*folder) : OkStatus();
    if (!same.ok()) return same;
  }
  if (!opened.ok()) return OfDraft(opened.status());
  draft = std::make_unique<DraftSource>();
  draft->model = std::move(*opened);
  draft->basis = DraftBasisOf(settings, draft->model->config(), draft->model->weight_bytes());
  return OkStatus();
}

Status Engine::Impl::MoveDraft() {
  const std::lock_guard lock(moving);
  if (draft == nullptr || draft->placed) return OkStatus();
  Status status;
  if (device_budget.has_value()) {
    Result<std::unique_ptr<Device>> made =
        backend->NewDevice(env, nullptr, KernelTimes::kWhereFree);
    if (!made.ok()) return made.status();
    draft->device = std::move(*made);
    status = Guarded([&] {
      return draft->model->MoveTo(
          *draft->device,
          {.device_budget = fast_budget(), .host_budget = &host_budget, .pool = &pool});
    });
  } else {
    status = draft->model->Gather();
  }
  draft->placed = status.ok();
  return status.ok() ? status : OfDraft(status);
}

}  // namespace headway
