#include "cli/flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <limits>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "cli/help_formatter.h"
#include "cli/read_number.h"

namespace headway::cli {
namespace {

constexpr int64_t kMaxSequences = 4096;

Result<int64_t> ParseSize(const std::string& text) {
  if (text == "unlimited") return kNoLimit;
  return ParseBytes(text);
}

Result<int64_t> ParseLength(std::string_view text) {
  int64_t length = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, length);
  if (at != end || error != std::errc() || length < 1 || length > kMaxCount) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("'{}' is not a number of tokens from 1 to {}", text, kMaxCount));
  }
  return length;
}

// The variable of the first long name that has one.
std::string VariableOf(const CLI::Option& option) {
  if (option.get_group() == kHelpGroup) return "";
  for (const std::string& name : option.get_lnames()) {
    const char* value = std::getenv(EnvironmentName(name).c_str());
    if (value != nullptr && *value != '\0') return EnvironmentName(name);
  }
  return "";
}

bool IsSwitch(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

// What a switch's variable says; empty where that is neither yes nor no.
std::optional<bool> ReadBoolean(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* yes : {"true", "1", "yes", "on"}) {
    if (text == yes) return true;
  }
  for (const char* no : {"false", "0", "no", "off"}) {
    if (text == no) return false;
  }
  return std::nullopt;
}

// Leaves in each option the variable that its value comes from, if any: one that is set, where the
// command line has neither the option nor one that it excludes. A switch that is off in its
// variable is one that nobody gave. What is wrong with a variable, else empty.
std::string ChooseVariables(CLI::App& app, const Args& args) {
  for (CLI::Option* option : app.get_options()) option->envname("");
  try {
    std::vector<std::string> reversed(args.rbegin(), args.rend());
    app.parse(reversed);
  } catch (const CLI::Error&) {  // Parse meets it again.
  }
  const auto given = [](const CLI::Option* option) { return option->count() > 0; };
  for (CLI::Option* option : app.get_options()) {
    const std::string variable = VariableOf(*option);
    const std::set<CLI::Option*>& excluded = option->get_excludes();
    if (variable.empty() || given(option)) continue;
    if (std::any_of(excluded.begin(), excluded.end(), given)) continue;
    if (IsSwitch(*option)) {
      const std::optional<bool> on = ReadBoolean(std::getenv(variable.c_str()));
      if (!on.has_value()) {
        return fmt::format("{}: '{}' is none of true, false, 1, 0, yes, no, on and off", variable,
                           std::getenv(variable.c_str()));
      }
      if (!*on) continue;
    }
    option->envname(variable);
  }
  return "";
}

// The message, with the variable in the place of the flag where the value is a variable's.
std::string NameVariables(const CLI::App& app, std::string message) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_envname().empty()) continue;
    const std::string flag = "--" + option->get_lnames().front();
    for (size_t at = message.find(flag); at != std::string::npos; at = message.find(flag, at + 1)) {
      const size_t end = at + flag.size();
      if (end < message.size() && (message[end] == '-' || std::isalnum(message[end]) != 0))
        continue;
      message.replace(at, flag.size(), option->get_envname());
      break;
    }
  }
  return message;
}

// As messages call it: MODEL, or --file.
std::string NameOf(const CLI::Option& option) {
  if (option.get_positional()) return option.get_name(/*positional=*/true, false);
  return "--" + option.get_lnames().front();
}

// "--prompt and --file exclude each other", of the first two that are given and do.
std::string ExcludeEachOther(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    for (const CLI::Option* other : option->get_excludes()) {
      if (option->count() == 0 || other->count() == 0) continue;
      return fmt::format("{} and {} exclude each other", NameOf(*option), NameOf(*other));
    }
  }
  return "";
}

std::vector<std::string_view> Split(std::string_view text, char divider) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(divider, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

}  // namespace

CLI::Option* AddRead(CLI::App& app, const std::string& group, const std::string& names,
                     const std::string& help, std::function<Status(const std::string& text)> read) {
  // CLI11 has only exceptions to say that a value is wrong; Parse catches them.
  const std::string first =
      names.substr(names.find("--"), names.find(',', names.find("--")) - names.find("--"));
  CLI::Option* option = app.add_option_function<std::string>(
      names,
      [first, read = std::move(read)](const std::string& text) {
        if (Status s = read(text); !s.ok()) throw CLI::ValidationError(first, s.message());
      },
      help);
  option->group(group);
  return option;
}

std::string EnvironmentName(const std::string& long_name) {
  std::string name = "HEADWAY_" + long_name;
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return name;
}

CLI::Option* AddSwitch(CLI::App& app, const std::string& group, const std::string& names,
                       bool* target, const std::string& help) {
  CLI::Option* option = app.add_flag(names, *target, help);
  option->group(group);
  return option;
}

CLI::Option* AddText(CLI::App& app, const std::string& group, const std::string& names,
                     std::string* target, const std::string& help) {
  CLI::Option* option = app.add_option(names, *target, help);
  option->group(group)->type_name("TEXT");
  return option;
}

CLI::Option* AddChoice(CLI::App& app, const std::string& group, const std::string& names,
                       std::string* target, const std::vector<std::string>& choices,
                       const std::string& help) {
  // Without a description the choices stay out of the option's line in --help.
  CLI::Option* option =
      app.add_option(names, *target, help)->check(CLI::IsMember(choices).description(""));
  return option->group(group)->type_name("NAME")->default_str(*target);
}

template <typename T>
CLI::Option* AddNumber(CLI::App& app, const std::string& group, const std::string& names, T* target,
                       const Bounds<std::type_identity_t<T>>& bounds, const std::string& help) {
  const auto read = [target, bounds](const std::string& text) {
    return ReadNumber<T>(text, bounds.low, bounds.high, target);
  };
  return AddRead(app, group, names, help, read)->type_name("N");
}
template CLI::Option* AddNumber(CLI::App&, const std::string&, const std::string&, int*,
                                const Bounds<int>&, const std::string&);
template CLI::Option* AddNumber(CLI::App&, const std::string&, const std::string&, int64_t*,
                                const Bounds<int64_t>&, const std::string&);
template CLI::Option* AddNumber(CLI::App&, const std::string&, const std::string&, uint64_t*,
                                const Bounds<uint64_t>&, const std::string&);
template CLI::Option* AddNumber(CLI::App&, const std::string&, const std::string&, float*,
                                const Bounds<float>&, const std::string&);
template CLI::Option* AddNumber(CLI::App&, const std::string&, const std::string&, double*,
                                const Bounds<double>&, const std::string&);

template <typename T>
CLI::Option* AddAuto(CLI::App& app, const std::string& group, const std::string& names, T* target,
                     std::type_identity_t<T> high, const std::string& help) {
  const auto read = [target, high](const std::string& text) {
    if (text != "auto") return ReadNumber<T>(text, 0, high, target);
    *target = 0;
    return OkStatus();
  };
  return AddRead(app, group, names, help, read)->type_name("N")->default_str("auto");
}
template CLI::Option* AddAuto(CLI::App&, const std::string&, const std::string&, int*, int,
                              const std::string&);
template CLI::Option* AddAuto(CLI::App&, const std::string&, const std::string&, int64_t*, int64_t,
                              const std::string&);

CLI::Option* AddSize(CLI::App& app, const std::string& group, const std::string& names,
                     int64_t* bytes, const std::string& help) {
  const auto read = [bytes](const std::string& text) {
    Result<int64_t> parsed = ParseSize(text);
    if (parsed.ok()) *bytes = *parsed;
    return parsed.status();
  };
  return AddRead(app, group, names, help, read)
      ->type_name("SIZE")
      ->default_str(*bytes == 0 ? "0" : FormatLimit(*bytes));
}

void DeleteApp::operator()(CLI::App* app) const { delete app; }

AppPointer NewApp(const std::string& name, const std::string& description,
                  const std::string& examples) {
  AppPointer app(new CLI::App(description, "headway " + name));
  app->formatter(NewHelpFormatter());
  app->set_help_flag("-h,--help", "print this")->group(kHelpGroup);
  app->set_help_all_flag("--help-all", "print all flags")->group(kHelpGroup);
  if (!examples.empty()) app->footer("Examples:\n" + examples);
  return app;
}

int WrongUsage(const CLI::App& app, const std::string& message, Console& console) {
  console.Say(fmt::format("headway: error: {}; see {} --help", NameVariables(app, message),
                          app.get_name()));
  return kExitUsage;
}

std::optional<int> Parse(CLI::App& app, const Args& args, Console& console) {
  // CLI11 throws what is wrong; nothing of it leaves this function.
  try {
    if (std::string wrong = ChooseVariables(app, args); !wrong.empty()) {
      return WrongUsage(app, wrong, console);
    }
    std::vector<std::string> reversed(args.rbegin(), args.rend());
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    return console.WriteResult(app.help());
  } catch (const CLI::CallForAllHelp&) {
    return console.WriteResult(app.help("", CLI::AppFormatMode::All));
  } catch (const CLI::RequiredError& error) {
    // Called as the usage line calls it.
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_required() && option->count() == 0) {
        return WrongUsage(app, NameOf(*option) + " is missing", console);
      }
    }
    return WrongUsage(app, error.what(), console);
  } catch (const CLI::ExcludesError&) {
    return WrongUsage(app, ExcludeEachOther(app), console);
  } catch (const CLI::ExtrasError&) {
    // CLI11's message has them in the wrong order.
    const std::string first = app.remaining().front();
    return WrongUsage(app,
                      first.starts_with('-') ? "there is no flag " + first
                                             : fmt::format("'{}' belongs to no flag", first),
                      console);
  } catch (const CLI::ParseError& error) {
    std::string message = error.what();
    std::replace(message.begin(), message.end(), '\n', ' ');
    if (const size_t at = message.find(": At Most 1 required"); at != std::string::npos) {
      message = message.substr(0, at) + " is given more than once";
    }
    // Which a parser of short flags takes for -n with the value gl.
    if (std::find(args.begin(), args.end(), "-ngl") != args.end())
      message += "; -ngl is --gpu-layers";
    return WrongUsage(app, message, console);
  }
  return std::nullopt;
}

std::string FormatLimit(int64_t bytes) {
  return bytes == kNoLimit ? "unlimited" : FormatBytes(bytes);
}

void AddOutputFlags(CLI::App& app, OutputFlags* flags) {
  AddSwitch(app, "Output", "--json", &flags->json, "print the result as one JSON object");
  AddSwitch(app, More("Output"), "--no-progress", &flags->no_progress, "do not show progress");
  AddSwitch(app, More("Output"), "-v,--verbose", &flags->verbose,
            "also say how the cache was cut, why, and how busy each lane was");
}

void AddTemplateFlag(CLI::App& app, const std::string& group, ChatOptions* options) {
  const auto read = [options](const std::string& text) {
    options->variables = text;
    return options->Validate();
  };
  AddRead(app, More(group), "--chat-template-kwargs",
          "JSON object whose members the chat template sees as "
          "variables, such as '{\"enable_thinking\": false}'",
          read)
      ->type_name("JSON");
}

void ChooseAtAnyLength(EngineOptions* options) {
  const bool selects = options->selector != EngineOptions{}.selector;
  if (selects && options->sparse_from == kSparseFromAuto) options->sparse_from = 0;
}

Result<std::vector<Workload>> ParseWorkloads(const std::string& text, int64_t repeat) {
  std::vector<Workload> workloads;
  for (std::string_view batch : Split(text, ',')) {
    Workload workload;
    for (std::string_view part : Split(batch, '+')) {
      Result<int64_t> length = ParseLength(part);
      if (!length.ok()) return length.status();
      workload.lengths.push_back(*length);
    }
    const std::vector<int64_t> once = workload.lengths;
    if (static_cast<int64_t>(once.size()) * repeat > kMaxSequences) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("a batch has at most {} sequences", kMaxSequences));
    }
    for (int64_t i = 1; i < repeat; ++i) {
      workload.lengths.insert(workload.lengths.end(), once.begin(), once.end());
    }
    workloads.push_back(std::move(workload));
  }
  return workloads;
}

}  // namespace headway::cli
