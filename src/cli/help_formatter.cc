#include "cli/help_formatter.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>

#include "cli/flags.h"

namespace headway::cli {
namespace {

constexpr size_t kWidth = 80;
constexpr size_t kColumn = 26;  // where descriptions begin
constexpr char kMore = '+';     // ends the names of groups that --help leaves out

bool IsMore(const CLI::Option& option) { return option.get_group().ends_with(kMore); }

// What a group is printed under.
std::string Heading(const CLI::Option& option) {
  std::string group = option.get_group();
  if (IsMore(option)) group.pop_back();
  return group;
}

// "-c, --ctx-size N"
std::string Names(const CLI::Option& option) {
  std::string names;
  const auto add = [&names](const std::string& name) {
    if (!names.empty()) names += ", ";
    names += name;
  };
  if (option.get_positional()) add(option.get_name(/*positional=*/true, /*all_options=*/false));
  for (const std::string& name : option.get_snames()) add("-" + name);
  for (const std::string& name : option.get_lnames()) add("--" + name);
  const bool flag = option.get_items_expected_max() == 0;
  const bool only_positional = option.get_snames().empty() && option.get_lnames().empty();
  if (!flag && !only_positional && !option.get_type_name().empty()) {
    names += " " + option.get_type_name();
  }
  return names;
}

// Whether a flag's environment variable is said with it.
enum class Variables { kLeftOut, kSaid };

std::string Describe(const CLI::Option& option, Variables variables) {
  std::string text = option.get_description();
  if (!option.get_default_str().empty()) text += " (default: " + option.get_default_str() + ")";
  if (variables == Variables::kSaid && option.get_group() != kHelpGroup &&
      !option.get_lnames().empty()) {
    text += " [" + EnvironmentName(option.get_lnames().front()) + "]";
  }
  return text;
}

std::string OptionHelp(const CLI::Option& option, Variables variables) {
  std::string line = "  " + Names(option);
  if (line.size() + 2 > kColumn) {
    line += "\n" + std::string(kColumn, ' ');
  } else {
    line.resize(kColumn, ' ');
  }
  return line + Wrap(Describe(option, variables), kWidth - kColumn, kColumn) + "\n";
}

std::string Usage(const CLI::App& app, const std::string& name) {
  std::string usage = "Usage: " + (name.empty() ? app.get_name() : name);
  bool options = false;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      const std::string positional = option->get_name(/*positional=*/true, false);
      usage += option->get_required() ? " " + positional : " [" + positional + "]";
    } else {
      options = true;
    }
  }
  return usage + (options ? " [OPTIONS]" : "") + "\n";
}

class HelpFormatter : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;
};

}  // namespace

std::string Wrap(std::string_view text, size_t width, size_t indent) {
  const std::string break_line = "\n" + std::string(indent, ' ');
  std::string wrapped;
  size_t column = 0;
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '\n') {
      wrapped += break_line;
      column = 0;
      ++at;
      continue;
    }
    const size_t end = std::min(text.find_first_of(" \n", at + 1), text.size());
    std::string_view word = text.substr(at, end - at);  // with the blank before it
    if (column > 0 && column + word.size() > width) {
      wrapped += break_line;
      column = 0;
    }
    if (column == 0 && word.starts_with(' ')) word.remove_prefix(1);
    wrapped += word;
    column += word.size();
    at = end;
  }
  return wrapped;
}

std::string More(const std::string& group) { return group + kMore; }

std::string HelpFormatter::make_help(const CLI::App* app, std::string name,
                                     CLI::AppFormatMode mode) const {
  std::string help = Usage(*app, name);
  if (!app->get_description().empty()) {
    help += "\n" + Wrap(app->get_description(), kWidth, 0) + "\n";
  }
  const std::vector<const CLI::Option*> options = app->get_options();
  const auto left_out = std::count_if(options.begin(), options.end(),
                                      [](const CLI::Option* option) { return IsMore(*option); });
  const bool all = left_out == 0 || mode == CLI::AppFormatMode::All;
  std::vector<std::string> headings;
  for (const CLI::Option* option : options) {
    const std::string heading = Heading(*option);
    if (heading.empty() || (IsMore(*option) && !all)) continue;
    if (std::find(headings.begin(), headings.end(), heading) == headings.end()) {
      headings.push_back(heading);
    }
  }
  // What asks for help comes last.
  std::stable_partition(headings.begin(), headings.end(),
                        [](const std::string& heading) { return heading != kHelpGroup; });
  for (const std::string& heading : headings) {
    help += "\n" + heading + ":\n";
    for (const CLI::Option* option : options) {
      if (Heading(*option) != heading || (IsMore(*option) && !all)) continue;
      help += OptionHelp(*option, all ? Variables::kSaid : Variables::kLeftOut);
    }
  }
  if (!app->get_footer().empty()) help += "\n" + app->get_footer() + "\n";
  if (!all) {
    help += fmt::format("\n{} --help-all lists {} more flags, and all variables.\n",
                        app->get_name(), left_out);
  }
  return help;
}

std::shared_ptr<CLI::FormatterBase> NewHelpFormatter() { return std::make_shared<HelpFormatter>(); }

}  // namespace headway::cli
