#include "cli/flags.h"

#include <fmt/format.h>

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

// An option whose text goes to `read`.
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

template <typename T>
Status ReadNumber(const std::string& text, T low, T high, T* target) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  // A NaN is in no range.
  if (at == end && error == std::errc() && value >= low && value <= high) {
    *target = value;
    return OkStatus();
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("'{}' is not a {} from {} to {}", text,
                            std::is_floating_point_v<T> ? "number" : "whole number", low, high));
}

// A share from 0 to 1; off is 0, and auto, the default, is `automatic`.
void AddShare(CLI::App& app, const std::string& group, const std::string& name, double* target,
              double automatic, const std::string& help) {
  AddRead(app, group, name, help,
          [target, automatic](const std::string& text) {
            if (text == "off") {
              *target = 0.0;
            } else if (text == "auto") {
              *target = automatic;
            } else if (!ReadNumber<double>(text, 0.0, 1.0, target).ok()) {
              return Status(StatusCode::kInvalidArgument,
                            fmt::format("'{}' is none of off, auto and a share from 0 to 1", text));
            }
            return OkStatus();
          })
      ->type_name("SHARE")
      ->default_str("auto");
}

// A number from 1 on, or auto, which is 0 in *target.
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

}  // namespace

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
  const auto read = [target, choices](const std::string& text) {
    if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("'{}' is none of {}", text, fmt::join(choices, ", ")));
    }
    *target = text;
    return OkStatus();
  };
  return AddRead(app, group, names, help, read)->type_name("NAME")->default_str(*target);
}

template <typename T>
CLI::Option* AddNumber(CLI::App& app, const std::string& group, const std::string& names, T* target,
                       std::type_identity_t<T> low, std::type_identity_t<T> high,
                       const std::string& help) {
  const auto read = [target, low, high](const std::string& text) {
    return ReadNumber<T>(text, low, high, target);
  };
  return AddRead(app, group, names, help, read)->type_name("N");
}
template CLI::Option* AddNumber(CLI::App&, const std::string&, const std::string&, int*, int, int,
                                const std::string&);
template CLI::Option* AddNumber(CLI::App&, const std::string&, const std::string&, int64_t*,
                                int64_t, int64_t, const std::string&);
template CLI::Option* AddNumber(CLI::App&, const std::string&, const std::string&, uint64_t*,
                                uint64_t, uint64_t, const std::string&);
template CLI::Option* AddNumber(CLI::App&, const std::string&, const std::string&, float*, float,
                                float, const std::string&);
template CLI::Option* AddNumber(CLI::App&, const std::string&, const std::string&, double*, double,
                                double, const std::string&);

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

std::unique_ptr<CLI::App> NewApp(const std::string& name, const std::string& description,
                                 const std::string& examples) {
  auto app = std::make_unique<CLI::App>(description, "headway " + name);
  app->formatter(std::make_shared<HelpFormatter>());
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

void AddModelFlags(CLI::App& app, ModelFlags* flags) {
  EngineOptions& engine = flags->engine;
  AddText(app, "Model", "MODEL,-m,--model", &flags->model,
          "folder of a model as Hugging Face publishes them, or org/name found in the local "
          "Hugging Face cache")
      ->required()
      ->type_name("MODEL");

  const std::string memory = "Memory", more = More(memory);
  AddSize(app, memory, "--gpu-memory", &engine.gpu_memory,
          "most that may be on the GPU in all, weights and driver too, such as 17GiB; 0 takes what "
          "is free");
  AddRead(
      app, more, "--gpu-layers,--n-gpu-layers",
      "layers whose weights stay on the GPU; those of the others lie in host memory, or on disk "
      "where --host-memory is too small, and stream in each step; auto: as many as fit",
      [&engine](const std::string& text) {
        if (text == "auto") {
          engine.gpu_layers = -1;
        } else if (!ReadNumber<int>(text, 0, 1 << 20, &engine.gpu_layers).ok()) {
          return Status(StatusCode::kInvalidArgument,
                        fmt::format("'{}' is neither auto nor a number of layers", text));
        }
        return OkStatus();
      })
      ->type_name("N")
      ->default_str("auto");
  AddSize(app, memory, "--kv-memory", &engine.kv_memory,
          "most that the fast tier may hold of the KV cache and its buffers, such as 8MiB");
  AddSize(
      app, memory, "--host-memory", &engine.host_memory,
      "most that host memory may hold of the KV cache behind the fast tier, and of weights that "
      "stream; 0: nothing but the buffers that --disk-memory needs");
  AddSize(app, memory, "--disk-memory", &engine.disk_memory,
          "most that the disk may hold of it behind both");
  AddText(app, more, "--disk-path", &engine.disk_path,
          "directory for the disk's share; else TMPDIR, or /tmp")
      ->type_name("DIR");
  AddChoice(app, more, "--placement", &engine.placement,
            {"first-fit", "lru", "host-only", "disk-only"},
            "where parts of the cache go: first-fit, lru, host-only or disk-only");
  AddChoice(app, more, "--policy", &engine.policy, {"auto", "headinfer", "layerwise", "kvpr"},
            "how the cache moves: auto, or as a published method does, for comparison: headinfer "
            "(one head's whole cache at a time), layerwise (one layer's) or kvpr (recomputing a "
            "part of it)");
  AddChoice(app, more, "--kv-encoding", &engine.kv_encoding,
            {"none", "bf16", "f16", "int8", "fp8", "int4"},
            "how the cache's full pages are stored: none, in the model's dtype; int8, fp8 or int4, "
            "an approximation in a half or a quarter of the bytes");
  AddAuto(app, more, "-b,--chunk,--batch-size", &engine.chunk, kMaxCount,
          "tokens of a prefill step; auto: the planner's choice");
  AddAuto(app, more, "--head-group", &engine.head_group, 1 << 20,
          "KV heads that move together; auto: the most that leave half of the fast tier to pages");
  AddAuto(app, more, "--segment", &engine.segment, kMaxCount,
          "tokens that move together; auto: the planner's choice");
  AddNumber(app, more, "--page,--block-size", &engine.page_slots, 1, 4096, "tokens of a page")
      ->default_str(std::to_string(engine.page_slots));
  AddShare(
      app, more, "--host-attention", &engine.host_share, kHostShareAuto,
      "share of what decode would stream from host memory that CPU cores attend to there "
      "instead, at the same time: off, a number from 0 to 1, or auto, which beside a GPU begins "
      "with the planner's share and is corrected after each step");
  AddShare(
      app, more, "--recompute", &engine.recompute_share, kRecomputeAuto,
      "share of the tokens whose keys and values are recomputed from their layer's input, kept "
      "in host memory instead: off, a number from 0 to 1, or auto, which is what the machine's "
      "profile says is fastest");
  AddSwitch(app, more, "--freeze-plan", &engine.freeze_plan,
            "correct nothing while it runs: what began alike gives the same bits");
  const std::string streaming = More("Streaming heads (an approximation)");
  AddText(app, streaming, "--head-pattern", &engine.head_pattern,
          "file that says which KV heads keep sink and recent tokens only: DuoAttention's TSV or "
          "its folder, JSON, or what headway profile-heads makes; without it, all is exact")
      ->type_name("FILE");
  AddNumber(app, streaming, "--sparsity", &engine.sparsity, 0.0, 1.0,
            "share of the KV heads to stream, those with the lowest scores; without it, those "
            "below the file's threshold, or 0.5")
      ->type_name("X");
  AddNumber(app, streaming, "--sink-tokens", &engine.sink_tokens, 0, kMaxCount,
            "first tokens that streaming heads keep; without it, the file's, or 64");
  AddNumber(app, streaming, "--recent-tokens", &engine.recent_tokens, 1, kMaxCount,
            "last tokens that they see; without it, the file's, or 256");
  AddText(app, memory, "--session", &engine.session,
          "file that keeps the cache between runs: a prompt that begins like the last one "
          "continues from there")
      ->type_name("FILE");
  AddSwitch(app, memory, "--session-recut", &engine.session_recut,
            "where the session is cut for larger budgets than these, read the prompt again into a "
            "cut that fits; the first save replaces the file");

  const std::string compute = "Computing", more_compute = More(compute);
  AddNumber(app, more_compute, "-t,--threads", &engine.threads, 0, 1024,
            "compute threads; 0: all cores");
  AddText(app, compute, "--device", &engine.device,
          "where to compute: cpu, cuda, or cuda:N for GPU N")
      ->type_name("NAME")
      ->default_str(engine.device);
  AddText(app, more_compute, "--machine", &engine.machine,
          "profile to plan for: a shipped one, such as h200 or rtx-4090, or a file that headway "
          "probe -o wrote; without it, this machine's probe, or the profile shipped for its GPU")
      ->type_name("PROFILE");
  AddChoice(app, more_compute, "--cpu-isa", &engine.isa, {"auto", "amx", "avx512", "avx2"},
            "instruction set of the CPU kernels: auto, amx, avx512 or avx2");
  AddText(app, more_compute, "--trace", &engine.trace,
          "file for a trace of the lanes, to be opened in Perfetto or chrome://tracing")
      ->type_name("FILE");
}

void AddOutputFlags(CLI::App& app, OutputFlags* flags) {
  AddSwitch(app, "Output", "--json", &flags->json, "print the result as one JSON object");
  AddSwitch(app, More("Output"), "--no-progress", &flags->no_progress, "do not show progress");
  AddSwitch(app, More("Output"), "-v,--verbose", &flags->verbose,
            "also say how the cache was cut, why, and how busy each lane was");
}

void AddSamplingFlags(CLI::App& app, SamplingFlags* flags) {
  const std::string group = More("Sampling");
  SamplingOptions& options = flags->options;
  AddNumber(app, "Sampling", "--temp,--temperature", &options.temperature, 0.0f, 1e6f,
            "temperature; 0 takes the likeliest token")
      ->type_name("X");
  AddNumber(app, group, "--top-k", &options.top_k, 0, 1 << 30,
            "keep the K likeliest tokens; 0: all")
      ->type_name("K");
  AddNumber(app, group, "--top-p", &options.top_p, 1e-6f, 1.0f,
            "keep the likeliest tokens that make up this share")
      ->type_name("P")
      ->default_str("1");
  AddNumber(app, group, "--min-p", &options.min_p, 0.0f, 1.0f,
            "keep tokens at least this share as likely as the likeliest")
      ->type_name("P");
  AddNumber(app, group, "--repeat-penalty,--repetition-penalty", &options.repetition_penalty, 0.01f,
            100.0f, "divides logits of tokens seen before; 1: off")
      ->type_name("X")
      ->default_str("1");
  AddNumber(app, group, "--presence-penalty", &options.presence_penalty, -2.0f, 2.0f,
            "subtracted from logits of tokens generated before")
      ->type_name("X");
  AddNumber(app, group, "--frequency-penalty", &options.frequency_penalty, -2.0f, 2.0f,
            "the same for each time that they were")
      ->type_name("X");
  AddNumber(app, group, "-s,--seed", &options.seed, 0, std::numeric_limits<uint64_t>::max(),
            "of the random numbers");
  CLI::Option* stop = app.add_option("--stop", flags->stop,
                                     "text that ends generation; may be given several times");
  stop->group(group)->type_name("TEXT")->allow_extra_args(false);
  AddSwitch(app, group, "--ignore-eos", &flags->ignore_eos,
            "go on behind the model's end-of-text tokens");
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

void AddGenerationConfigFlag(CLI::App& app, SamplingFlags* flags) {
  flags->generation_config = "auto";
  AddChoice(app, More("Sampling"), "--generation-config", &flags->generation_config,
            {"auto", "none"},
            "where sampling comes from that no flag says: auto, the model's "
            "generation_config.json; none, greedy");
  for (const char* flag : {"--temp", "--top-k", "--top-p", "--min-p", "--repeat-penalty"}) {
    app.get_option(flag)->default_str("the model's");
  }
}

Status TakeSamplingDefaults(const CLI::App& app, const ModelInfo& info, SamplingFlags* flags,
                            Console& console) {
  if (flags->generation_config == "none") return OkStatus();
  SamplingOptions& options = flags->options;
  std::string taken;
  const auto take = [&](const char* flag, const char* name, const auto& proposed, auto* value) {
    if (app.count(flag) > 0 || *value == proposed) return;
    *value = proposed;
    taken += fmt::format("{}{} {}", taken.empty() ? "" : ", ", name, proposed);
  };
  const SamplingOptions& proposed = info.sampling;
  take("--temp", "temperature", proposed.temperature, &options.temperature);
  const bool samples = options.temperature > 0.0f;
  if (samples) {
    take("--top-k", "top-k", proposed.top_k, &options.top_k);
    take("--top-p", "top-p", proposed.top_p, &options.top_p);
    take("--min-p", "min-p", proposed.min_p, &options.min_p);
  }
  take("--repeat-penalty", "repeat penalty", proposed.repetition_penalty,
       &options.repetition_penalty);
  if (taken.empty()) return OkStatus();
  if (Status s = options.Validate(); !s.ok()) {
    return Status(s.code(), fmt::format("generation_config.json of {}: {}; --generation-config "
                                        "none leaves it out",
                                        info.folder, s.message()));
  }
  console.Say(fmt::format(
      "headway: note: {} as generation_config.json says: {}; {}", samples ? "sampling" : "greedy,",
      taken, samples ? "--temp 0 is greedy" : "--generation-config none leaves it out"));
  return OkStatus();
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
