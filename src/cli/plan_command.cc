#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "cli/commands.h"
#include "cli/help_formatter.h"
#include "cli/option_flags.h"
#include "cli/prompt.h"
#include "cli/report.h"

namespace headway::cli {
namespace {

constexpr const char* kExamples =
    R"(  headway plan models/demo --ctx-size 16384
  headway plan models/demo --ctx-size 16384 --kv-memory 8MiB --host-memory 64MiB
  headway plan models/demo --ctx-size 8192+2048 --batch 2 --json
  headway plan download/config.json --ctx-size 131072
  headway plan download/config.json --machine h200 --tp 8 --nodes 2 \
      --ctx-size 4000000
  headway plan --random-weights bench/shapes/llama-3-8b.json \
      --machine rtx-4090 --gpu-memory 20GiB --ctx-size 1000000 --explain)";

struct PlanFlags {
  ModelFlags model;
  OutputFlags output;
  std::string random_weights;
  std::string context;
  int64_t batch = 1;
  bool explain = false;
  int nodes = 1;
};

constexpr int64_t kInMiB = 128 * kMiB;  // from here on nobody counts KiB

std::string SmallestBudget(int64_t bytes) {
  if (bytes < 0) return "none would do";
  if (bytes == 0) return "0";
  // Rounded up to what can be typed: a size printed as 2.1 MiB would be a little too small.
  return bytes % kMiB == 0 || bytes >= kInMiB ? fmt::format("{}MiB", CeilDiv(bytes, kMiB))
                                              : fmt::format("{}KiB", CeilDiv(bytes, kKiB));
}

std::string WorkloadName(const Workload& workload) {
  std::string lengths;
  for (size_t i = 0; i < workload.lengths.size() && i < 8; ++i) {
    lengths += (i == 0 ? "" : "+") + FormatCount(workload.lengths[i]);
  }
  if (workload.lengths.size() > 8) lengths += "+...";
  return fmt::format("{} sequence{} of {} tokens", workload.lengths.size(),
                     workload.lengths.size() == 1 ? "" : "s", lengths);
}

std::string Duration(double seconds) {
  if (seconds < 1.0) return fmt::format("{:.3g} ms", seconds * 1e3);
  if (seconds < 120.0) return fmt::format("{:.3g} s", seconds);
  return fmt::format("{:.3g} min", seconds / 60.0);
}

// "prefill   3,476 tokens/s, 28.8 s in all; the device limits: device 28 s, ..."
std::string PhaseText(const char* name, const PhasePrediction& phase, const char* of) {
  std::string lanes;
  for (const auto& [lane, seconds] : phase.lanes) {
    lanes += fmt::format("{}{} {}", lanes.empty() ? "" : ", ", lane, Duration(seconds));
  }
  const double rate = phase.tokens_per_second;
  return fmt::format(
      "  {:<8}{} tokens/s, {} {}\n          busy: {}\n", name,
      rate >= 1000.0 ? FormatCount(static_cast<int64_t>(rate)) : fmt::format("{:.3g}", rate),
      Duration(phase.seconds), of, lanes);
}

std::string PredictionText(const ModelPlan& made) {
  const Prediction& prediction = made.plan.prediction;
  if (prediction.machine.empty()) return "";
  std::string text =
      fmt::format("\npredicted for {} ({})\n", prediction.machine, prediction.origin);
  text += PhaseText("prefill", prediction.prefill, "in all");
  text += PhaseText("decode", prediction.decode, "a step at full length");
  text += fmt::format("  limits  prefill: {}; decode: {}\n", prediction.prefill.limit,
                      prediction.decode.limit);
  for (const DraftPrediction& with : prediction.drafts) {
    text += fmt::format("  drafts  {:.3g} tokens/s where {:.0f} % are right, {} a step\n",
                        with.tokens_per_second, 100.0 * with.accepted, with.drafts);
  }
  for (const std::string& sentence : made.explain) text += "  " + Wrap(sentence, 78, 4) + "\n";
  return text;
}

// How many sequences fit where heads keep some tokens, and what one takes.
std::string AdmissionText(const ModelPlan& made) {
  const EvictionReport& eviction = *made.plan.eviction;
  const int64_t longest = *std::max_element(made.lengths.begin(), made.lengths.end());
  std::string text = fmt::format(
      "fit       sequences of {} tokens: {}; with all of their tokens on the device: {}. Each "
      "takes {} "
      "of the device, {} of them for what is kept, the rest for {} tokens behind it",
      FormatCount(longest), FormatCount(eviction.sequences), FormatCount(eviction.whole_sequences),
      FormatBytes(eviction.sequence_bytes), FormatBytes(eviction.kept_bytes),
      FormatCount(std::min(eviction.room, longest)));
  if (eviction.demoted_bytes > 0) {
    text +=
        fmt::format("; and {} of host memory for the others", FormatBytes(eviction.demoted_bytes));
  }
  return Wrap(text, 78, 10) + "\n";
}

// What each rank attends for; the heads of the first layers, those of all being too many to read.
std::string RanksText(const RanksReport& ranks) {
  constexpr size_t kShown = 3;
  std::vector<std::vector<std::string>> rows = {{"rank", "keys of a prompt", "busy"}};
  if (!ranks.profiled) rows[0][1] = "heads";
  const size_t shown = std::min(kShown, ranks.heads.size());
  for (size_t layer = 0; layer < shown; ++layer) {
    rows[0].push_back(fmt::format("layer {}", layer));
  }
  for (size_t rank = 0; rank < ranks.keys.size(); ++rank) {
    rows.push_back({std::to_string(rank), FormatCount(std::llround(ranks.keys[rank])),
                    fmt::format("{:.1f} %", 100.0 * ranks.busy[rank])});
    for (size_t layer = 0; layer < shown; ++layer) {
      std::vector<std::string> heads;
      for (size_t i = 0; i < ranks.heads[layer][rank].size(); ++i) {
        const double share = ranks.shares.empty() ? 1.0 : ranks.shares[layer][rank][i];
        heads.push_back(std::to_string(ranks.heads[layer][rank][i]));
        if (share < 1.0) heads.back() += fmt::format(" ({:.0f} %)", 100.0 * share);
      }
      rows.back().push_back(fmt::format("{}", fmt::join(heads, ", ")));
    }
  }
  std::vector<bool> right(rows[0].size(), true);
  right[0] = false;
  std::string text = fmt::format("\nranks     heads {}{}{}\n", ranks.assignment,
                                 ranks.profiled ? " by a profile" : "",
                                 ranks.copies > 0 ? fmt::format(", copies {}", ranks.copies) : "");
  text += FormatTable(rows, right);
  if (shown < ranks.heads.size()) text += "the heads of every layer: --json\n";
  return text;
}

std::string ReportText(const ModelPlan& made) {
  const ModelInfo& info = made.info;
  const PlanReport& plan = made.plan;
  std::string text = fmt::format(
      "model     {}: {} {}\n"
      "shape     {} layers, {} KV heads of {}; weights {}, KV {} a token\n"
      "context   {}; KV cache {}\n"
      "kernels   {}, {} threads\n\n",
      info.folder, info.architecture, info.dtype, info.layers, info.kv_heads, info.head_dim,
      FormatBytes(info.weight_bytes), FormatBytes(plan.kv_bytes_per_token),
      WorkloadName({made.lengths}), FormatBytes(plan.kv_bytes), made.kernels, made.threads);
  std::vector<std::vector<std::string>> rows = {{"tier", "what", "size", "bytes"}};
  for (const MemoryLine& line : plan.memory) {
    rows.push_back({line.tier, line.what, FormatBytes(line.bytes), FormatCount(line.bytes)});
  }
  int64_t device_bytes = 0;
  for (const MemoryLine& line : plan.memory) {
    if (line.tier == "device") device_bytes += line.bytes;
  }
  if (plan.smallest_gpu_memory != 0) {
    rows.push_back({"GPU in all", "", FormatBytes(device_bytes), FormatCount(device_bytes)});
  }
  rows.push_back(
      {"RAM in all", "", FormatBytes(plan.memory_bytes), FormatCount(plan.memory_bytes)});
  text += FormatTable(rows, {false, false, true, true});
  text += fmt::format(
      "\ncut       chunk {} tokens, head group {}, segment {} tokens\n"
      "slabs     {} each: {} on the device, {} on the host, {} on disk{}\n",
      plan.chunk, plan.head_group, plan.segment, FormatBytes(plan.slab_bytes),
      FormatCount(plan.slabs[0]), FormatCount(plan.slabs[1]), FormatCount(plan.slabs[2]),
      plan.x_slabs > 0 ? fmt::format("; {} of X on the host", FormatCount(plan.x_slabs)) : "");
  if (!plan.disk_layers.empty()) {
    text += Wrap(fmt::format("on disk   weights of layers {}", fmt::join(plan.disk_layers, ", ")),
                 78, 10) +
            "\n";
  }
  if (plan.selection.has_value()) text += Wrap(SelectionLine(plan), 78, 10) + "\n";
  if (plan.eviction.has_value()) text += EvictionLine(plan) + "\n" + AdmissionText(made);
  if (plan.salience.has_value()) text += SalienceLine(plan) + "\n";
  if (plan.ranks.has_value()) text += RanksText(*plan.ranks) + "\n";
  for (const std::string& reason : plan.reasons) text += "- " + Wrap(reason, 78, 2) + "\n";
  if (!plan.cut_notice.empty()) text += "- " + Wrap(Worded(plan.cut_notice), 78, 2) + "\n";
  text += PredictionText(made);
  text += "\nsmallest budgets, each with the others as they are:\n";
  if (plan.smallest_gpu_memory != 0) {
    text += fmt::format("  --gpu-memory   {}\n", SmallestBudget(plan.smallest_gpu_memory));
  }
  text += fmt::format("  --kv-memory    {}\n  --host-memory  {}\n  --disk-memory  {}\n",
                      SmallestBudget(plan.smallest_kv_memory),
                      SmallestBudget(plan.smallest_host_memory),
                      SmallestBudget(plan.smallest_disk_memory));
  return text;
}

Json ReportJson(const ModelPlan& made) {
  Json json = PlanJson(made.plan);
  json["model"] = made.info.folder;
  json["config"] = made.info.config_hash;  // by which profiles of heads name it
  json["lengths"] = made.lengths;
  json["kernels"] = made.kernels;
  json["threads"] = made.threads;
  json["smallest"] = {{"gpu_memory", made.plan.smallest_gpu_memory},
                      {"kv_memory", made.plan.smallest_kv_memory},
                      {"host_memory", made.plan.smallest_host_memory},
                      {"disk_memory", made.plan.smallest_disk_memory}};
  if (!made.explain.empty()) json["explain"] = made.explain;
  json["notices"] = Json::array();
  for (const Message& notice : made.notices) json["notices"].push_back(Worded(notice));
  return json;
}

}  // namespace

int PlanCommand(const Args& args, Console& console) {
  PlanFlags flags;
  const auto app = NewApp("plan",
                          "Says what a context would take on each tier, how its cache "
                          "would be cut and why, how fast it would be, and the smallest "
                          "budgets that would do. Nothing is loaded: MODEL may be a folder with "
                          "a config.json alone, or that file, and with --machine neither the "
                          "machine nor a GPU need be here.",
                          kExamples);
  AddModelFlags(*app, &flags.model);
  app->get_option("--model")->required(false);
  app->get_option("--machine")->group("Computing");
  AddText(*app, "Model", "--random-weights", &flags.random_weights,
          "instead of MODEL: a config.json, of a model that need not be here")
      ->type_name("CONFIG")
      ->excludes(app->get_option("--model"));
  AddText(*app, "Workload", "-c,--ctx-size,--context,--max-model-len", &flags.context,
          "tokens of the context; 4096+2048 are two sequences of unequal lengths; without it, what "
          "the model was trained for")
      ->type_name("N");
  AddNumber(*app, "Workload", "--batch", &flags.batch, {1, 4096},
            "that many times the sequences of --ctx-size");
  AddNumber(
      *app, "Workload", "--nodes", &flags.nodes, {1, 64},
      "machines that the ranks of --tp are on, as many on each, with its network between them; "
      "budgets are those of one machine");
  AddSwitch(*app, "Output", "--json", &flags.output.json, "print the plan as one JSON object");
  AddSwitch(*app, "Output", "--explain", &flags.explain,
            "also say what more memory, a faster bus and the like would give");
  if (std::optional<int> status = Parse(*app, args, console)) return *status;
  const bool random = app->count("--random-weights") > 0;
  if (!random && app->count("--model") == 0) return WrongUsage(*app, "MODEL is missing", console);
  if (random) {
    flags.model.model = flags.random_weights;
    flags.model.engine.random_weights = true;
  }
  Workload workload{std::vector<int64_t>(static_cast<size_t>(flags.batch), 0)};  // trained length
  if (!flags.context.empty()) {
    Result<std::vector<Workload>> parsed = ParseWorkloads(flags.context, flags.batch);
    if (!parsed.ok()) return WrongUsage(*app, "--ctx-size: " + parsed.status().message(), console);
    if (parsed->size() != 1) {
      return WrongUsage(*app, "--ctx-size: one batch, without commas, can be planned", console);
    }
    workload = parsed->front();
  }
  Result<ModelPlan> made = PlanModel(flags.model.model, flags.model.engine, workload,
                                     flags.explain ? Explain::kYes : Explain::kNo, flags.nodes);
  if (!made.ok()) return console.Fail(made.status());
  for (int64_t length : made->lengths) {
    std::string warning = LongContextWarning(made->info, length, made->plan, flags.model.engine);
    if (warning.empty()) continue;
    console.Warn(warning);
    break;
  }
  for (const Message& notice : made->notices) console.Warn(Worded(notice));
  // Another machine's memory is not this one's.
  if (flags.model.engine.machine.empty()) WarnOfMemory(made->plan, console);
  return console.WriteResult(flags.output.json ? Dump(ReportJson(*made)) : ReportText(*made));
}

}  // namespace headway::cli
