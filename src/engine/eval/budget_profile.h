// Budgets of heads: the tokens that a method of eviction gives each KV head of some texts, how
// uneven they are, and how alike from text to text (FairKV, section 3 and Tab 1). As a file they
// are static budgets (EngineOptions::evict_profile).
#ifndef HEADWAY_ENGINE_EVAL_BUDGET_PROFILE_H_
#define HEADWAY_ENGINE_EVAL_BUDGET_PROFILE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/eval/head_profile.h"
#include "headway/context.h"
#include "headway/plan.h"
#include "headway/status.h"

namespace headway::eval {

struct ProfiledText {
  std::string name;
  int64_t tokens = 0;
  std::vector<int64_t> heads;  // tokens given; [layers * KV heads]
};

struct BudgetProfile {
  int layers = 0;
  int kv_heads = 0;
  std::string config;  // ModelInfo::config_hash
  std::string method;  // as EngineOptions has them
  std::string budget;
  int64_t anyway = 0;  // tokens that every head of every text keeps
  std::vector<ProfiledText> texts;
};

// Has a text read and let go of. The profile's layers and heads are set.
Status ProfileText(Context& context, const std::string& name, std::span<const TokenId> text,
                   const Hooks& hooks, BudgetProfile* profile);

// The mean over the texts; [layers * KV heads].
std::vector<double> MeanBudgets(const BudgetProfile& profile);

// Of the heads of a layer.
struct LayerSpread {
  double least = 0.0, mean = 0.0, most = 0.0;
  double imbalance() const { return most / mean; }  // the largest head beside the mean
};
std::vector<LayerSpread> SpreadsOf(const BudgetProfile& profile);

// Cosine similarity between the budgets of each two texts; [texts * texts].
std::vector<double> Similarities(const BudgetProfile& profile);

// As EngineOptions::evict_profile reads them; kv/policy/head_profile.h has the format.
std::string BudgetProfileJson(const BudgetProfile& profile);
// Scores as importance, for the method "headkv". `profile` is of AttentionOn.
std::string ImportanceJson(const HeadProfile& profile, const ModelInfo& model);

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_BUDGET_PROFILE_H_
