#include "engine/eval/budget_profile.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

namespace headway::eval {
namespace {

using Json = nlohmann::ordered_json;

// A list for each layer.
template <typename T>
Json ByLayer(const std::vector<T>& heads, int kv_heads) {
  Json layers = Json::array();
  for (auto at = heads.begin(); at != heads.end(); at += kv_heads) {
    layers.push_back(std::vector<T>(at, at + kv_heads));
  }
  return layers;
}

Json HeaderOf(int layers, int kv_heads, const std::string& config, const char* kind) {
  return {{"format", "headway head profile"},
          {"version", 1},
          {"model", {{"layers", layers}, {"kv_heads", kv_heads}, {"config", config}}},
          {"kind", kind}};
}

double Cosine(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  const auto dot = [](const std::vector<int64_t>& x, const std::vector<int64_t>& y) {
    return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
  };
  return dot(a, b) / std::sqrt(dot(a, a) * dot(b, b));
}

}  // namespace

Status ProfileText(Context& context, const std::string& name, std::span<const TokenId> text,
                   const Hooks& hooks, BudgetProfile* profile) {
  Request request;
  request.prompt.assign(text.begin(), text.end());
  request.max_tokens = 0;
  context.Reset();
  const Result<std::vector<Generation>> read = context.Generate({&request, 1}, hooks);
  if (!read.ok()) return read.status();
  if (read->front().finish == FinishReason::kCancelled) {
    return Status(StatusCode::kCancelled, "stopped");
  }
  Result<HeadBudgets> budgets = context.EvictedBudgets();
  if (!budgets.ok()) return budgets.status();
  const bool first = profile->texts.empty();
  profile->anyway = first ? budgets->anyway : std::min(profile->anyway, budgets->anyway);
  profile->texts.push_back({name, std::ssize(text), std::move(budgets->tokens)});
  return OkStatus();
}

std::vector<double> MeanBudgets(const BudgetProfile& profile) {
  std::vector<double> mean(static_cast<size_t>(profile.layers * profile.kv_heads), 0.0);
  for (const ProfiledText& text : profile.texts) {
    for (size_t head = 0; head < mean.size(); ++head) {
      mean[head] += static_cast<double>(text.heads[head]);
    }
  }
  for (double& tokens : mean) tokens /= static_cast<double>(profile.texts.size());
  return mean;
}

std::vector<LayerSpread> SpreadsOf(const BudgetProfile& profile) {
  const std::vector<double> heads = MeanBudgets(profile);
  std::vector<LayerSpread> spreads;
  for (auto at = heads.begin(); at != heads.end(); at += profile.kv_heads) {
    const auto end = at + profile.kv_heads;
    const auto [least, most] = std::minmax_element(at, end);
    spreads.push_back({*least, std::accumulate(at, end, 0.0) / profile.kv_heads, *most});
  }
  return spreads;
}

std::vector<double> Similarities(const BudgetProfile& profile) {
  std::vector<double> cosines;
  for (const ProfiledText& a : profile.texts) {
    for (const ProfiledText& b : profile.texts) cosines.push_back(Cosine(a.heads, b.heads));
  }
  return cosines;
}

std::string BudgetProfileJson(const BudgetProfile& profile) {
  Json json = HeaderOf(profile.layers, profile.kv_heads, profile.config, "budgets");
  json["method"] = profile.method;
  json["budget"] = profile.budget;
  json["anyway"] = profile.anyway;
  json["heads"] = ByLayer(MeanBudgets(profile), profile.kv_heads);
  json["texts"] = Json::array();
  for (const ProfiledText& text : profile.texts) {
    json["texts"].push_back({{"name", text.name},
                             {"tokens", text.tokens},
                             {"heads", ByLayer(text.heads, profile.kv_heads)}});
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string ImportanceJson(const HeadProfile& profile, const ModelInfo& model) {
  Json json = HeaderOf(profile.layers, profile.kv_heads, model.config_hash, "importance");
  json["answered"] = profile.answered;
  json["heads"] = ByLayer(profile.scores, profile.kv_heads);
  return json.dump() + "\n";
}

}  // namespace headway::eval
