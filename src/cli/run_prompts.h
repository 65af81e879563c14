// `headway run --prompts`: many prompts of unequal lengths, as many at a time as there are
// sequences.
#ifndef HEADWAY_CLI_RUN_PROMPTS_H_
#define HEADWAY_CLI_RUN_PROMPTS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/console.h"
#include "cli/flags.h"
#include "cli/generate.h"
#include "cli/prompt.h"
#include "cli/report.h"

namespace headway::cli {

struct RunFlags {
  ModelFlags model;
  PromptFlags prompt;
  SamplingFlags sampling;
  OutputFlags output;
  std::string prompts;
  int64_t parallel = 32;
  int64_t max_tokens = 128;
  int64_t context = 0;
  int64_t save_every = kSaveEvery;
  bool compare_resident = false;
};

Request RequestOf(const RunFlags& flags, std::vector<TokenId> prompt);

struct PromptLine {
  std::string text;
  Json id;                            // null: none was given
  std::optional<int64_t> max_tokens;  // else the flag's
};
// Lines of `name`, blank ones left out. kInvalidArgument names the first that is no prompt.
Result<std::vector<PromptLine>> ParsePromptLines(std::string_view jsonl, const std::string& name);

int RunPrompts(const RunFlags& flags, Console& console);

}  // namespace headway::cli

#endif  // HEADWAY_CLI_RUN_PROMPTS_H_
