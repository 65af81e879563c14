#include <fmt/format.h>

#include "base/bytes.h"
#include "cli/commands.h"
#include "cli/help_formatter.h"
#include "cli/prompt.h"
#include "cli/report.h"

namespace headway::cli {
namespace {

constexpr const char* kExamples =
    R"(  headway plan models/demo --ctx-size 16384
  headway plan models/demo --ctx-size 16384 --kv-memory 8MiB --host-memory 64MiB
  headway plan models/demo --ctx-size 8192+2048 --batch 2 --json)";

struct PlanFlags {
  ModelFlags model;
  OutputFlags output;
  std::string context;
  int64_t batch = 1;
};

std::string SmallestBudget(int64_t bytes) {
  if (bytes < 0) return "none would do";
  if (bytes == 0) return "0";
  // Rounded up to what can be typed: a size printed as 2.1 MiB would be a little too small.
  return bytes % kMiB == 0 ? fmt::format("{}MiB", bytes / kMiB)
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

std::string ReportText(const Engine& engine, const Workload& workload, const PlanReport& plan) {
  const ModelInfo& info = engine.info();
  std::string text = fmt::format(
      "model     {}: {} {}\n"
      "shape     {} layers, {} KV heads of {}; weights {}, KV {} a token\n"
      "context   {}; KV cache {}\n"
      "kernels   {}, {} threads\n\n",
      info.folder, info.architecture, info.dtype, info.layers, info.kv_heads, info.head_dim,
      FormatBytes(info.weight_bytes), FormatBytes(info.kv_bytes_per_token), WorkloadName(workload),
      FormatBytes(plan.kv_bytes), engine.kernels(), engine.threads());
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
      "slabs     {} each: {} on the device, {} on the host, {} on disk\n",
      plan.chunk, plan.head_group, plan.segment, FormatBytes(plan.slab_bytes),
      FormatCount(plan.slabs[0]), FormatCount(plan.slabs[1]), FormatCount(plan.slabs[2]));
  for (const std::string& reason : plan.reasons) text += "- " + Wrap(reason, 78, 2) + "\n";
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

Json ReportJson(const Engine& engine, const Workload& workload, const PlanReport& plan) {
  Json json = PlanJson(plan);
  json["model"] = engine.info().folder;
  json["lengths"] = workload.lengths;
  json["kernels"] = engine.kernels();
  json["threads"] = engine.threads();
  json["smallest"] = {{"gpu_memory", plan.smallest_gpu_memory},
                      {"kv_memory", plan.smallest_kv_memory},
                      {"host_memory", plan.smallest_host_memory},
                      {"disk_memory", plan.smallest_disk_memory}};
  return json;
}

}  // namespace

int PlanCommand(const Args& args, Console& console) {
  PlanFlags flags;
  const auto app = NewApp("plan",
                          "Says what a context would take on each tier, how its cache "
                          "would be cut and why, and the smallest budgets that would do. "
                          "Nothing is computed.",
                          kExamples);
  AddModelFlags(*app, &flags.model);
  AddText(*app, "Workload", "-c,--ctx-size,--max-model-len", &flags.context,
          "tokens of the context; 4096+2048 are two sequences of unequal lengths; without it, what "
          "the model was trained for")
      ->type_name("N");
  AddNumber(*app, "Workload", "--batch", &flags.batch, 1, 4096,
            "that many times the sequences of --ctx-size");
  AddSwitch(*app, "Output", "--json", &flags.output.json, "print the plan as one JSON object");
  if (std::optional<int> status = Parse(*app, args, console)) return *status;
  if (!flags.context.empty()) {
    Result<std::vector<Workload>> checked = ParseWorkloads(flags.context, flags.batch);
    if (!checked.ok())
      return WrongUsage(*app, "--ctx-size: " + checked.status().message(), console);
    if (checked->size() != 1) {
      return WrongUsage(*app, "--ctx-size: one batch, without commas, can be planned", console);
    }
  }
  Result<std::unique_ptr<Engine>> engine = Engine::Open(flags.model.model, flags.model.engine);
  if (!engine.ok()) return console.Fail(engine.status());
  if (flags.context.empty()) flags.context = std::to_string((*engine)->info().max_position);
  Result<std::vector<Workload>> workloads = ParseWorkloads(flags.context, flags.batch);
  if (!workloads.ok()) return console.Fail(workloads.status());
  const Workload& workload = workloads->front();
  for (int64_t length : workload.lengths) {
    std::string warning = LongContextWarning((*engine)->info(), length);
    if (warning.empty()) continue;
    console.Warn(warning);
    break;
  }
  Result<PlanReport> plan = (*engine)->Plan(workload);
  if (!plan.ok()) return console.Fail(plan.status());
  const std::string text = flags.output.json ? Dump(ReportJson(**engine, workload, *plan))
                                             : ReportText(**engine, workload, *plan);
  return console.WriteResult(text);
}

}  // namespace headway::cli
