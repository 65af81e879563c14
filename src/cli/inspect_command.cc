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
  AddSwitch(*app, "Output", "--json", &output.json, "print the lines as one JSON object");
  if (std::optional<int> status = Parse(*app, args, console)) return *status;
  Result<std::vector<std::string>> lines = Inspect(path);
  if (!lines.ok()) return console.Fail(lines.status());
  std::string text;
  if (output.json) {
    text = Dump({{"path", path}, {"lines", *lines}});
  } else {
    for (const std::string& line : *lines) text += line + "\n";
  }
  return console.WriteResult(text);
}

}  // namespace headway::cli
