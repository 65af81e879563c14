#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>

#include "cli/commands.h"
#include "cli/help_formatter.h"
#include "cli/prompt.h"
#include "cli/report.h"

namespace headway::cli {
namespace {

constexpr const char* kExamples =
    R"(  headway probe
  headway probe --device cuda -o here.json
  headway plan models/demo --machine here.json)";

std::string ReportText(const MachineReport& report) {
  std::string text = report.name + "\n";
  size_t width = 0;
  for (const MachineReport::Figure& figure : report.figures) {
    width = std::max(width, figure.meaning.size());
  }
  for (const MachineReport::Figure& figure : report.figures) {
    text +=
        fmt::format("  {:<{}}  ", figure.meaning, width) + Wrap(figure.value, 78, width + 4) +
        (figure.source == "measured" || figure.source.empty() ? "" : "  (" + figure.source + ")") +
        "\n";
  }
  if (!report.cached_at.empty()) text += "kept in " + report.cached_at + "\n";
  return text;
}

}  // namespace

int ProbeCommand(const Args& args, Console& console) {
  EngineOptions options;
  OutputFlags output;
  std::string file;
  const auto app = NewApp("probe",
                          "Measures what the machine can do and keeps it, so that plans and their "
                          "predicted times are of this machine. To be run while nothing else is.",
                          kExamples);
  AddText(*app, "Computing", "--device", &options.device,
          "what to measure beside the host: cpu, cuda, or cuda:N for GPU N")
      ->type_name("NAME")
      ->default_str(options.device);
  AddNumber(*app, "Computing", "-t,--threads", &options.threads, {0, 1024},
            "threads of the host; 0: all cores");
  AddText(*app, "Computing", "--disk-path", &options.disk_path,
          "directory whose disk is measured; else TMPDIR, or /tmp")
      ->type_name("DIR");
  AddText(*app, "Output", "-o,--output", &file, "also write the profile, for --machine")
      ->type_name("FILE");
  AddSwitch(*app, "Output", "--json", &output.json, "print the profile");
  if (std::optional<int> status = Parse(*app, args, console)) return *status;
  if (!file.empty()) {
    if (Status s = CheckWritable(file); !s.ok()) return console.Fail(s);
  }
  Result<MachineReport> report = ProbeMachine(options);
  if (!report.ok()) return console.Fail(report.status());
  for (const std::string& notice : report->notices) console.Warn(notice);
  if (!file.empty()) {
    if (Status s = WriteText(file, report->json); !s.ok()) return console.Fail(s);
  }
  return console.WriteResult(output.json ? report->json : ReportText(*report));
}

}  // namespace headway::cli
