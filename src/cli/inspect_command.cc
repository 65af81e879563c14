#include <fmt/format.h>

#include <CLI/App.hpp>

#include "cli/commands.h"
#include "cli/report.h"

namespace headway::cli {

int InspectCommand(const Args& args, Console& console) {
  std::string path;
  OutputFlags output;
  const auto app = NewApp("inspect", "Says what a model folder or a session file holds.",
                          "  headway inspect models/demo\n  headway inspect book.session");
  app->add_option("PATH", path, "model folder, org/name in the local cache, or session file")
      ->required()
      ->type_name("PATH")
      ->group("Input");
  AddSwitch(*app, "Output", "--json", &output.json, "print the fields as one JSON object");
  if (std::optional<int> status = Parse(*app, args, console)) return *status;
  Result<Inspection> inspection = Inspect(path);
  if (!inspection.ok()) return console.Fail(inspection.status());
  std::string text;
  if (output.json) {
    Json fields = Json::object();
    for (const auto& [name, value] : inspection->fields) fields[name] = value;
    text = Dump({{"kind", inspection->kind}, {"path", inspection->path}, {"fields", fields}});
  } else {
    text = inspection->kind + " " + inspection->path + "\n";
    for (const auto& [name, value] : inspection->fields) {
      text += fmt::format("  {:<15} {}\n", name, value);
    }
  }
  return console.WriteResult(text);
}

}  // namespace headway::cli
