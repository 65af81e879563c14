#include "cli/flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/bytes.h"
#include "cli/help_formatter.h"

namespace headway::cli {
namespace {

constexpr int64_t kMaxLength = int64_t{1} << 30;
constexpr int64_t kMaxSequences = 4096;

Result<int64_t> ParseSize(const std::string& text) {
  if (text == "unlimited") return kNoLimit;
  return ParseBytes(text);
}

Result<int64_t> ParseLength(std::string_view text) {
  int64_t length = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, length);
  if (at != end || error != std::errc() || length < 1 || length > kMaxLength) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("'{}' is not a number of tokens from 1 to {}", text, kMaxLength));
  }
  return length;
}

// Without what it would add to the option's line in --help.
CLI::Validator Quiet(const CLI::Validator& validator) {
  CLI::Validator quiet = validator;
  quiet.description("");
  return quiet;
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

namespace internal {

void SetEnvironmentName(CLI::Option* option) {
  if (option->get_lnames().empty()) return;
  std::string name = "HEADWAY_" + option->get_lnames().front();
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
  option->envname(name);
}

}  // namespace internal

std::unique_ptr<CLI::App> NewApp(const std::string& name, const std::string& description,
                                 const std::string& examples) {
  auto app = std::make_unique<CLI::App>(description, "headway " + name);
  app->formatter(std::make_shared<HelpFormatter>());
  app->set_help_flag("-h,--help", "print this")->group("Help");
  if (!examples.empty()) app->footer("Examples:\n" + examples);
  return app;
}

int WrongUsage(const CLI::App& app, const std::string& message, Console& console) {
  console.Say(fmt::format("headway: error: {}; see {} --help", message, app.get_name()));
  return kExitUsage;
}

std::optional<int> Parse(CLI::App& app, const Args& args, Console& console) {
  // CLI11 throws what is wrong; nothing of it leaves this function.
  try {
    std::vector<std::string> reversed(args.rbegin(), args.rend());
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    return console.Write(app.help()) ? kExitDone : kExitFailed;
  } catch (const CLI::ParseError& error) {
    std::string message = error.what();
    std::replace(message.begin(), message.end(), '\n', ' ');
    return WrongUsage(app, message, console);
  }
  return std::nullopt;
}

CLI::Option* AddSize(CLI::App& app, const std::string& group, const std::string& names,
                     int64_t* bytes, const std::string& help) {
  CLI::Option* option = app.add_option_function<std::string>(
      names,
      [bytes](const std::string& text) {
        Result<int64_t> parsed = ParseSize(text);
        if (!parsed.ok()) throw CLI::ValidationError(parsed.status().message());
        *bytes = *parsed;
      },
      help);
  option->group(group)->type_name("SIZE")->default_str(FormatLimit(*bytes));
  internal::SetEnvironmentName(option);
  return option;
}

std::string FormatLimit(int64_t bytes) {
  return bytes == kNoLimit ? "unlimited" : FormatBytes(bytes);
}

void AddModelFlags(CLI::App& app, ModelFlags* flags) {
  EngineOptions& engine = flags->engine;
  Add(app, "Model", "MODEL,-m,--model", &flags->model,
      "folder of a model as Hugging Face publishes them, or org/name found in the local Hugging "
      "Face cache")
      ->required()
      ->type_name("MODEL");

  const std::string memory = "Memory";
  AddSize(app, memory, "--kv-memory", &engine.kv_memory,
          "most that the fast tier may hold of the KV cache and its buffers, such as 8MiB");
  AddSize(app, memory, "--host-memory", &engine.host_memory,
          "most that host memory may hold of the KV cache behind the fast tier");
  AddSize(app, memory, "--disk-memory", &engine.disk_memory,
          "most that the disk may hold of it behind both");
  Add(app, memory, "--disk-path", &engine.disk_path,
      "directory for the disk's share; else TMPDIR, or /tmp")
      ->type_name("DIR");
  Add(app, memory, "--placement", &engine.placement,
      "where parts of the cache go: first-fit, lru, host-only or disk-only")
      ->check(Quiet(CLI::IsMember({"first-fit", "lru", "host-only", "disk-only"})))
      ->type_name("NAME")
      ->default_str(engine.placement);
  Add(app, memory, "-b,--chunk", &engine.chunk, "tokens of a prefill step; 0: the planner's choice")
      ->check(Quiet(CLI::Range(int64_t{0}, kMaxLength)))
      ->type_name("N");
  Add(app, memory, "--head-group", &engine.head_group,
      "KV heads that move together; 0: the planner's choice")
      ->check(Quiet(CLI::Range(0, 1 << 20)))
      ->type_name("N");
  Add(app, memory, "--segment", &engine.segment,
      "tokens that move together; 0: the planner's choice")
      ->check(Quiet(CLI::Range(int64_t{0}, kMaxLength)))
      ->type_name("N");
  Add(app, memory, "--page", &engine.page_slots, "tokens of a page")
      ->check(Quiet(CLI::Range(1, 4096)))
      ->type_name("N")
      ->default_str(std::to_string(engine.page_slots));
  Add(app, memory, "--session", &engine.session,
      "file that keeps the cache between runs: a prompt that begins like the last one continues "
      "from there")
      ->type_name("FILE");

  const std::string compute = "Computing";
  Add(app, compute, "-t,--threads", &engine.threads, "compute threads; 0: all cores")
      ->check(Quiet(CLI::Range(0, 1024)))
      ->type_name("N");
  Add(app, compute, "--device", &engine.device, "where to compute: cpu")
      ->type_name("NAME")
      ->default_str(engine.device);
  Add(app, compute, "--cpu-isa", &engine.isa,
      "instruction set of the CPU kernels: auto, amx, avx512 or avx2")
      ->check(Quiet(CLI::IsMember({"auto", "amx", "avx512", "avx2"})))
      ->type_name("NAME")
      ->default_str(engine.isa);
  Add(app, compute, "--trace", &engine.trace,
      "file for a trace of the lanes, to be opened in Perfetto or chrome://tracing")
      ->type_name("FILE");
}

void AddOutputFlags(CLI::App& app, OutputFlags* flags) {
  Add(app, "Output", "--json", &flags->json, "print the result as one JSON object");
  Add(app, "Output", "--no-progress", &flags->no_progress, "do not show progress");
}

void AddSamplingFlags(CLI::App& app, SamplingFlags* flags) {
  const std::string group = "Sampling";
  SamplingOptions& options = flags->options;
  const CLI::Validator positive = Quiet(CLI::Range(0.0, 1e9));
  const CLI::Validator share = Quiet(CLI::Range(0.0, 1.0));
  const CLI::Validator penalty = Quiet(CLI::Range(-100.0, 100.0));
  Add(app, group, "--temp,--temperature", &options.temperature,
      "temperature; 0 takes the likeliest token")
      ->check(positive)
      ->type_name("X");
  Add(app, group, "--top-k", &options.top_k, "keep the K likeliest tokens; 0: all")
      ->check(Quiet(CLI::Range(int64_t{0}, kMaxLength)))
      ->type_name("K");
  Add(app, group, "--top-p", &options.top_p, "keep the likeliest tokens that make up this share")
      ->check(share)
      ->type_name("P")
      ->default_str("1");
  Add(app, group, "--min-p", &options.min_p,
      "keep tokens at least this share as likely as the likeliest")
      ->check(share)
      ->type_name("P");
  Add(app, group, "--repeat-penalty,--repetition-penalty", &options.repetition_penalty,
      "divides logits of tokens seen before; 1: off")
      ->check(Quiet(CLI::Range(1e-3, 1e3)))
      ->type_name("X")
      ->default_str("1");
  Add(app, group, "--presence-penalty", &options.presence_penalty,
      "subtracted from logits of tokens generated before")
      ->check(penalty)
      ->type_name("X");
  Add(app, group, "--frequency-penalty", &options.frequency_penalty,
      "the same for each time that they were")
      ->check(penalty)
      ->type_name("X");
  Add(app, group, "-s,--seed", &options.seed, "of the random numbers")->type_name("N");
  Add(app, group, "--stop", &flags->stop, "text that ends generation; may be given several times")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  Add(app, group, "--ignore-eos", &flags->ignore_eos,
      "go on behind the model's end-of-text tokens");
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
