// The flags that commands share, and how a command line is read. Every flag is also an environment
// variable, HEADWAY_ and a long name of it; the command line wins, also over the variable of a flag
// that excludes one that it has (CLI::Option::excludes).
#ifndef HEADWAY_CLI_FLAGS_H_
#define HEADWAY_CLI_FLAGS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "cli/console.h"
#include "cli/progress.h"
#include "headway/engine.h"

// CLI11 takes seconds to compile: sources that call it include <CLI/App.hpp> themselves.
namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace headway::cli {

// The arguments behind the command's name.
using Args = std::vector<std::string>;

struct DeleteApp {
  void operator()(CLI::App* app) const;
};
using AppPointer = std::unique_ptr<CLI::App, DeleteApp>;

// An empty command line of "headway run" or the like, with --help.
AppPointer NewApp(const std::string& name, const std::string& description,
                  const std::string& examples);

// Reads `args` and the environment into what the app's options are bound to. The exit status when
// there is nothing left to do: help was printed, or the usage was wrong and that was said.
std::optional<int> Parse(CLI::App& app, const Args& args, Console& console);

// HEADWAY_KV_MEMORY of "kv-memory".
std::string EnvironmentName(const std::string& long_name);

// "headway: error: MESSAGE; see headway run --help"; kExitUsage. A flag in the message is called by
// its variable where that gave it.
int WrongUsage(const CLI::App& app, const std::string& message, Console& console);

// An option of a group of --help whose text goes to `read`.
CLI::Option* AddRead(CLI::App& app, const std::string& group, const std::string& names,
                     const std::string& help, std::function<Status(const std::string& text)> read);

// Each adds an option of a group of --help. What cannot be read is
// wrong usage, and names the flag.
CLI::Option* AddSwitch(CLI::App& app, const std::string& group, const std::string& names,
                       bool* target, const std::string& help);
CLI::Option* AddText(CLI::App& app, const std::string& group, const std::string& names,
                     std::string* target, const std::string& help);
CLI::Option* AddChoice(CLI::App& app, const std::string& group, const std::string& names,
                       std::string* target, const std::vector<std::string>& choices,
                       const std::string& help);
// int, int64_t, uint64_t, float or double, within bounds.
template <typename T>
struct Bounds {
  T low, high;
};
template <typename T>
CLI::Option* AddNumber(CLI::App& app, const std::string& group, const std::string& names, T* target,
                       const Bounds<std::type_identity_t<T>>& bounds, const std::string& help);
// A number from 1 on, or auto, which is 0 in *target; int or int64_t.
template <typename T>
CLI::Option* AddAuto(CLI::App& app, const std::string& group, const std::string& names, T* target,
                     std::type_identity_t<T> high, const std::string& help);
// A size such as 8MiB, or "unlimited".
CLI::Option* AddSize(CLI::App& app, const std::string& group, const std::string& names,
                     int64_t* bytes, const std::string& help);

// "unlimited" or "8.0 MiB".
std::string FormatLimit(int64_t bytes);

struct ModelFlags {
  std::string model;
  EngineOptions engine;
};
void AddModelFlags(CLI::App& app, ModelFlags* flags);
// Of what evaluates a selection: unless the user says otherwise it chooses however short a text is,
// also where reading all would be as fast.
void ChooseAtAnyLength(EngineOptions* options);
// Of what generates so many tokens behind a prompt at most: unless the user says otherwise, a
// sequence whose prompt is cut down has room for no more. One that is a session may go on later.
void MakeRoomFor(int64_t tokens, EngineOptions* options);

struct OutputFlags {
  bool json = false;
  bool no_progress = false;
  bool verbose = false;

  ProgressMeter::Shown progress() const {
    return no_progress ? ProgressMeter::Shown::kNo : ProgressMeter::Shown::kYes;
  }
  // Where a status line can be drawn over, and nowhere else.
  ProgressMeter::Shown progress_on(const Console& console) const {
    return console.err_is_terminal() ? progress() : ProgressMeter::Shown::kNo;
  }
};
void AddOutputFlags(CLI::App& app, OutputFlags* flags);

struct SamplingFlags {
  SamplingOptions options;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  std::string generation_config = "none";
};
void AddSamplingFlags(CLI::App& app, SamplingFlags* flags);
// --generation-config, on by default: for commands that call TakeSamplingDefaults.
void AddGenerationConfigFlag(CLI::App& app, SamplingFlags* flags);
// Options that neither a flag nor its variable gave become what generation_config.json proposes,
// each on its own, and `err` is told which. kInvalidArgument where the file makes no sense.
Status TakeSamplingDefaults(const CLI::App& app, const ModelInfo& info, SamplingFlags* flags,
                            Console& console);

// --chat-template-kwargs.
void AddTemplateFlag(CLI::App& app, const std::string& group, ChatOptions* options);

// Batches written as "8192,4096+2048": one sequence of 8192 tokens, then two of unequal lengths.
// Each is repeated `repeat` times within its batch.
Result<std::vector<Workload>> ParseWorkloads(const std::string& text, int64_t repeat);

// The largest number of tokens, or of whatever else, that a flag takes.
inline constexpr int64_t kMaxCount = kMaxLength;

}  // namespace headway::cli

#endif  // HEADWAY_CLI_FLAGS_H_
