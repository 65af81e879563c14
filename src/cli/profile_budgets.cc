#include "cli/profile_budgets.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "cli/eval_text.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/prompt.h"
#include "cli/report.h"

namespace headway::cli {
namespace {

// Methods as their papers call them.
std::string PaperName(const std::string& method) {
  constexpr std::pair<const char*, const char*> kNames[] = {
      {"streamingllm", "StreamingLLM"},
      {"snapkv", "SnapKV"},
      {"pyramidkv", "PyramidKV"},
      {"ada-snapkv", "Ada-SnapKV"},
      {"ada-pyramidkv", "Ada-Pyramid"},
      {"critical-snapkv", "CriticalKV (SnapKV)"},
      {"critical-ada-snapkv", "CriticalKV (Ada-SnapKV)"},
      {"defensivekv", "DefensiveKV"},
      {"expectedattention", "ExpectedAttention"},
      {"h2o", "H2O"},
      {"headkv", "HeadKV"},
      {"kvzip", "KVzip"},
  };
  for (const auto& [name, paper] : kNames) {
    if (method == name) return paper;
  }
  return method;
}

std::string SimilarityText(const eval::BudgetProfile& profile) {
  const size_t texts = profile.texts.size();
  const std::vector<double> cosines = eval::Similarities(profile);
  std::vector<std::vector<std::string>> rows = {{"cosine similarity"}};
  for (size_t i = 0; i < texts; ++i) rows[0].push_back(fmt::format("{}", i + 1));
  for (size_t i = 0; i < texts; ++i) {
    rows.push_back({fmt::format("{}  {}", i + 1, profile.texts[i].name)});
    for (size_t j = 0; j < texts; ++j) {
      rows.back().push_back(fmt::format("{:.3f}", cosines[i * texts + j]));
    }
  }
  std::vector<bool> right(texts + 1, true);
  right[0] = false;
  return "\n" + FormatTable(rows, right);
}

Json ResultJson(const eval::BudgetProfile& profile, const std::string& file) {
  Json json = {{"file", file},           {"method", profile.method}, {"budget", profile.budget},
               {"texts", Json::array()}, {"layers", Json::array()},  {"similarity", Json::array()}};
  for (const eval::ProfiledText& text : profile.texts) {
    json["texts"].push_back({{"name", text.name}, {"tokens", text.tokens}});
  }
  for (const eval::LayerSpread& spread : eval::SpreadsOf(profile)) {
    json["layers"].push_back({{"least", spread.least},
                              {"mean", spread.mean},
                              {"most", spread.most},
                              {"imbalance", spread.imbalance()}});
  }
  const std::vector<double> cosines = eval::Similarities(profile);
  const auto texts = static_cast<std::ptrdiff_t>(profile.texts.size());
  for (auto row = cosines.begin(); row != cosines.end(); row += texts) {
    json["similarity"].push_back(std::vector<double>(row, row + texts));
  }
  return json;
}

// The texts' first tokens.
Result<std::vector<std::vector<TokenId>>> ReadTexts(const BudgetFlags& flags, const Engine& engine,
                                                    Console& console) {
  std::vector<std::vector<TokenId>> texts;
  for (const std::string& file : flags.texts) {
    const Result<std::string> text = ReadText(file, console);
    if (!text.ok()) return text.status();
    const Result<EvalText> encoded = EncodeEvalText({.file = file}, *text, engine);
    if (!encoded.ok()) return encoded.status();
    std::vector<TokenId>& tokens = texts.emplace_back();
    if (encoded->bos.has_value()) tokens.push_back(*encoded->bos);
    tokens.insert(tokens.end(), encoded->tokens.begin(), encoded->tokens.end());
    tokens.resize(std::min(tokens.size(), static_cast<size_t>(flags.context)));
  }
  return texts;
}

Status Profile(const BudgetFlags& flags, Engine& engine, Console& console,
               eval::BudgetProfile* profile) {
  const Result<std::vector<std::vector<TokenId>>> texts = ReadTexts(flags, engine, console);
  if (!texts.ok()) return texts.status();
  size_t longest = 0;
  for (const std::vector<TokenId>& text : *texts) longest = std::max(longest, text.size());
  const auto length = static_cast<int64_t>(longest);
  Result<std::unique_ptr<Context>> context = engine.NewContext({{length}});
  if (!context.ok()) return context.status();
  WarnOfLength(engine.info(), length, (*context)->plan(), flags.model.engine, console);
  const EvictionReport& eviction = *(*context)->plan().eviction;
  const InterruptGuard interrupt;
  ProgressMeter meter(console, flags.model.engine, flags.output.progress_on(console));
  Hooks hooks;
  hooks.cancel = interrupt.flag();
  hooks.on_progress = [&](const Progress& progress) { meter.Show(progress); };
  for (size_t i = 0; i < texts->size(); ++i) {
    const std::vector<TokenId>& text = (*texts)[i];
    if (std::ssize(text) <= eviction.budget) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{} has {} tokens, no more than --evict-budget {}: every head "
                                "would keep all of them; give longer texts or a smaller budget",
                                flags.texts[i], text.size(), eviction.budget));
    }
    meter.SetPrefix(fmt::format("text {}/{}  ", i + 1, texts->size()));
    if (Status s = eval::ProfileText(**context, flags.texts[i], text, hooks, profile); !s.ok()) {
      return s;
    }
  }
  return OkStatus();
}

}  // namespace

std::string BudgetsText(const eval::BudgetProfile& profile) {
  std::vector<std::vector<std::string>> rows = {{"layer", "least", "mean", "most", "imbalance"}};
  eval::LayerSpread all;
  double imbalance = 0.0;
  const std::vector<eval::LayerSpread> spreads = eval::SpreadsOf(profile);
  for (size_t layer = 0; layer < spreads.size(); ++layer) {
    const eval::LayerSpread& spread = spreads[layer];
    rows.push_back({fmt::format("{}", layer), fmt::format("{:.0f}", spread.least),
                    fmt::format("{:.0f}", spread.mean), fmt::format("{:.0f}", spread.most),
                    fmt::format("{:.2f}", spread.imbalance())});
    all.least = layer == 0 ? spread.least : std::min(all.least, spread.least);
    all.mean += spread.mean / static_cast<double>(spreads.size());
    all.most = std::max(all.most, spread.most);
    imbalance += spread.imbalance() / static_cast<double>(spreads.size());
  }
  rows.push_back({"all", fmt::format("{:.0f}", all.least), fmt::format("{:.0f}", all.mean),
                  fmt::format("{:.0f}", all.most), fmt::format("{:.2f}", all.imbalance())});
  std::string text = fmt::format("{}, budget {}: tokens that heads keep\n",
                                 PaperName(profile.method), profile.budget) +
                     FormatTable(rows, {false, true, true, true, true}) +
                     fmt::format(
                         "imbalance: the largest head beside the mean; {:.2f} on average "
                         "over layers\n",
                         imbalance);
  return profile.texts.size() > 1 ? text + SimilarityText(profile) : text;
}

int ProfileBudgets(const BudgetFlags& flags, Console& console) {
  const EngineOptions& options = flags.model.engine;
  const Result<std::unique_ptr<Engine>> engine = Engine::Open(flags.model.model, options);
  if (!engine.ok()) return console.Fail(engine.status());
  if (Status s = CheckWritable(flags.file); !s.ok()) return console.Fail(s);
  eval::BudgetProfile profile;
  profile.layers = (*engine)->info().layers;
  profile.kv_heads = (*engine)->info().kv_heads;
  profile.config = (*engine)->info().config_hash;
  profile.method = options.evict;
  profile.budget = options.evict_budget.empty() ? kDefaultEvictBudget : options.evict_budget;
  const Status status = Profile(flags, **engine, console, &profile);
  if (status.code() == StatusCode::kCancelled) {
    return console.Fail(Status(StatusCode::kCancelled, "interrupted"));
  }
  if (!status.ok()) return console.Fail(status);
  if (Status s = WriteText(flags.file, eval::BudgetProfileJson(profile)); !s.ok()) {
    return console.Fail(s);
  }
  if (flags.output.json) return console.WriteResult(Dump(ResultJson(profile, flags.file)));
  return console.WriteResult(
      BudgetsText(profile) +
      fmt::format("wrote {}; use it with --evict METHOD --evict-profile {}\n", flags.file,
                  flags.file));
}

}  // namespace headway::cli
