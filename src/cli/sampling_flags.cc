#include <fmt/format.h>

#include <CLI/App.hpp>
#include <limits>

#include "cli/flags.h"
#include "cli/help_formatter.h"

namespace headway::cli {

void AddSamplingFlags(CLI::App& app, SamplingFlags* flags) {
  const std::string group = More("Sampling");
  SamplingOptions& options = flags->options;
  AddNumber(app, "Sampling", "--temp,--temperature", &options.temperature, {0.0f, 1e6f},
            "temperature; 0 takes the likeliest token")
      ->type_name("X");
  AddNumber(app, group, "--top-k", &options.top_k, {0, 1 << 30},
            "keep the K likeliest tokens; 0: all")
      ->type_name("K");
  AddNumber(app, group, "--top-p", &options.top_p, {1e-6f, 1.0f},
            "keep the likeliest tokens that make up this share")
      ->type_name("P")
      ->default_str("1");
  AddNumber(app, group, "--min-p", &options.min_p, {0.0f, 1.0f},
            "keep tokens at least this share as likely as the likeliest")
      ->type_name("P");
  AddNumber(app, group, "--repeat-penalty,--repetition-penalty", &options.repetition_penalty,
            {0.01f, 100.0f}, "divides logits of tokens seen before; 1: off")
      ->type_name("X")
      ->default_str("1");
  AddNumber(app, group, "--presence-penalty", &options.presence_penalty, {-2.0f, 2.0f},
            "subtracted from logits of tokens generated before")
      ->type_name("X");
  AddNumber(app, group, "--frequency-penalty", &options.frequency_penalty, {-2.0f, 2.0f},
            "the same for each time that they were")
      ->type_name("X");
  AddNumber(app, group, "-s,--seed", &options.seed, {0, std::numeric_limits<uint64_t>::max()},
            "of the random numbers");
  CLI::Option* stop = app.add_option("--stop", flags->stop,
                                     "text that ends generation; may be given several times");
  stop->group(group)->type_name("TEXT")->allow_extra_args(false);
  AddSwitch(app, group, "--ignore-eos", &flags->ignore_eos,
            "go on behind the model's end-of-text tokens");
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

}  // namespace headway::cli
