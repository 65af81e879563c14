#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <memory>
#include <span>

#include "base/env.h"
#include "cli/commands.h"
#include "cli/eval_text.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/prompt.h"
#include "cli/read_list.h"
#include "cli/report.h"
#include "cli/selection_flags.h"
#include "engine/eval/recall.h"

namespace headway::cli {
namespace {

constexpr const char* kExamples =
    R"(  headway eval recall models/demo --file book.txt --context 8192
  headway eval recall models/demo --file book.txt --context 8192 \
      --selectors pages,quest --sparse-keys 512 --tokens 64 --windows 4 --json)";

struct RecallFlags {
  ModelFlags model;
  OutputFlags output;
  EvalTextFlags text;
  std::string selectors = "pages,quest";
  int64_t tokens = 32;
  int64_t windows = 1;
};

void AddFlags(CLI::App& app, RecallFlags* flags) {
  AddModelFlags(app, &flags->model);
  const std::string group = "Evaluation";
  AddEvalTextFlags(app, group, &flags->text);
  AddText(app, group, "--selectors", &flags->selectors, "what --selector takes, one or several")
      ->type_name("LIST")
      ->default_str(flags->selectors);
  AddNumber(app, group, "--tokens", &flags->tokens, {1, kMaxCount},
            "last tokens of a window, whose steps are measured")
      ->type_name("T")
      ->default_str(std::to_string(flags->tokens));
  AddNumber(app, group, "--windows", &flags->windows, {1, kMaxCount},
            "windows, spread evenly over the text")
      ->type_name("W")
      ->default_str(std::to_string(flags->windows));
  AddOutputFlags(app, &flags->output);
}

struct Found {
  std::string selector;
  SelectionRecall recall;
};

// Stages are infinitehip's alone: the others leave them out.
EngineOptions OptionsOf(EngineOptions options, const std::string& selector) {
  options.selector = selector;
  ChooseAtAnyLength(&options);
  if (selector == kInfiniteHip) return options;
  const EngineOptions absent;
  options.hip_stages = absent.hip_stages;
  options.hip_refresh = absent.hip_refresh;
  options.hip_outer_keys = absent.hip_outer_keys;
  options.hip_positions = absent.hip_positions;
  return options;
}

// One selector after the other, each with the memory to itself.
Result<std::vector<Found>> Measure(const RecallFlags& flags, const std::string& text,
                                   const Hooks& hooks, Console& console) {
  std::vector<Found> all;
  for (const std::string& selector : SplitAtCommas(flags.selectors)) {
    const EngineOptions options = OptionsOf(flags.model.engine, selector);
    Result<std::unique_ptr<Engine>> engine = Engine::Open(flags.model.model, options);
    if (!engine.ok()) return engine.status();
    const Result<EvalText> encoded = EncodeEvalText(flags.text, text, **engine);
    if (!encoded.ok()) return encoded.status();
    const Result<eval::SpreadWindows> windows = eval::SpreadWindows::Over(
        encoded->tokens, encoded->bos, {flags.text.context, flags.windows, flags.tokens});
    if (!windows.ok()) return windows.status().Within({"--file " + flags.text.file + ": "});
    Result<std::unique_ptr<Context>> context = (*engine)->NewContext({{flags.text.context}});
    if (!context.ok()) return context.status();
    const std::string warning =
        LongContextWarning((*engine)->info(), flags.text.context, (*context)->plan(), options);
    if (!warning.empty()) console.Warn(selector + ": " + warning);
    Result<SelectionRecall> recall = eval::MeasureRecall(**context, *windows, hooks);
    if (!recall.ok()) return recall.status();
    all.push_back({selector, std::move(*recall)});
  }
  return all;
}

Json SharesJson(const eval::RecallShares& shares) {
  return {{"recall", shares.listed},
          {"oracle_of_head", shares.best_of_head},
          {"oracle_of_layer", shares.best_of_layer},
          {"far_attention", shares.far},
          {"far_blocks_read", shares.blocks}};
}

Json FoundJson(const Found& found) {
  const SelectionRecall& recall = found.recall;
  Json json = SharesJson(eval::SharesOf(recall.heads, recall.steps));
  json["selector"] = found.selector;
  json["steps"] = recall.steps;
  json["layers"] = Json::array();
  for (int layer = 0; layer < recall.layers; ++layer) {
    Json heads = Json::array();
    for (int head = 0; head < recall.kv_heads; ++head) {
      const auto at = static_cast<size_t>(layer * recall.kv_heads + head);
      heads.push_back(
          SharesJson(eval::SharesOf(std::span(recall.heads).subspan(at, 1), recall.steps)));
    }
    json["layers"].push_back(std::move(heads));
  }
  return json;
}

std::string FoundText(const std::vector<Found>& all) {
  std::vector<std::vector<std::string>> rows = {{"selector", "far blocks read", "recall",
                                                 "oracle of a head", "oracle of a layer",
                                                 "recall / oracle"}};
  for (const Found& found : all) {
    const eval::RecallShares shares = eval::SharesOf(found.recall.heads, found.recall.steps);
    rows.push_back({found.selector, fmt::format("{:.1f} %", 100.0 * shares.blocks),
                    fmt::format("{:.4f}", shares.listed),
                    fmt::format("{:.4f}", shares.best_of_head),
                    fmt::format("{:.4f}", shares.best_of_layer),
                    fmt::format("{:.4f}", shares.listed / shares.best_of_layer)});
  }
  const eval::RecallShares first = eval::SharesOf(all[0].recall.heads, all[0].recall.steps);
  return FormatTable(rows, {false, true, true, true, true, true}) +
         fmt::format("over {} steps; {:.1f} % of the attention is on far keys\n",
                     all[0].recall.steps, 100.0 * first.far);
}

}  // namespace

int RecallCommand(const Args& args, Console& console) {
  RecallFlags flags;
  const auto app = NewApp(
      "eval recall",
      "How much of the attention to far keys (neither sink nor recent) falls on the blocks that a "
      "selector lists: reads the beginning of a text, then its next tokens as they are, one a "
      "step, exactly, and compares each step's lists with its attention. An oracle lists as many "
      "blocks by their true shares, for each KV head by itself or for a layer's heads together.",
      kExamples);
  AddFlags(*app, &flags);
  if (std::optional<int> status = Parse(*app, args, console)) return *status;
  if (flags.tokens >= flags.text.context) {
    return WrongUsage(*app,
                      fmt::format("--tokens {} leaves nothing of a --context of {} to read before",
                                  flags.tokens, flags.text.context),
                      console);
  }
  for (const std::string& selector : SplitAtCommas(flags.selectors)) {
    if (selector.empty() || selector == EngineOptions{}.selector) {
      return WrongUsage(*app, "--selectors: '" + selector + "' is no selector", console);
    }
  }
  Result<std::string> text = ReadText(flags.text.file, console);
  if (!text.ok()) return console.Fail(text.status());
  const InterruptGuard interrupt;
  ProgressMeter meter(console, flags.model.engine, flags.output.progress());
  Hooks hooks;
  hooks.cancel = interrupt.flag();
  hooks.on_progress = [&](const Progress& progress) { meter.Show(progress); };
  const int64_t start = Env::Default()->NowNanos();
  const Result<std::vector<Found>> found = Measure(flags, *text, hooks, console);
  if (found.status().code() == StatusCode::kCancelled) {
    return console.Fail(Status(StatusCode::kCancelled, "interrupted"));
  }
  if (!found.ok()) return console.Fail(found.status());
  if (!flags.output.json) return console.WriteResult(FoundText(*found));
  Json all = Json::array();
  for (const Found& each : *found) all.push_back(FoundJson(each));
  return console.WriteResult(
      Dump({{"context", flags.text.context},
            {"windows", flags.windows},
            {"keys", flags.model.engine.sparse_keys},
            {"selectors", std::move(all)},
            {"seconds", static_cast<double>(Env::Default()->NowNanos() - start) * 1e-9}}));
}

}  // namespace headway::cli
