// `headway run --prompts`: many prompts of unequal lengths, as many at a time as there are
// sequences.
#ifndef HEADWAY_CLI_RUN_PROMPTS_H_
#define HEADWAY_CLI_RUN_PROMPTS_H_

#include <cstdint>
#include <functional>
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
  int64_t parallel = 0;  // requests at a time; 0: as many as are done soonest
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

// What a prompt takes: its own tokens and the most that are generated.
struct PromptSize {
  int64_t prompt = 0;
  int64_t generated = 0;
};
// As many sequences as run at a time, each as long as the longest needs; where all run at once,
// each as long as its own. `context` > 0 is the length of each.
Workload WorkloadOf(const std::vector<PromptSize>& sizes, int64_t context, int64_t parallel);
// How many of the prompts to run at a time so that the last one ends soonest, by the plans that
// `plan_of` makes: those that fit the budgets and, but for one prompt at a time, `ram_bytes`; more
// of them only where that is clearly faster. Where nothing is predicted kParallelUnknown, or fewer
// where so many do not fit.
inline constexpr int64_t kParallelUnknown = 32;
inline constexpr int64_t kMostParallel = 4096;
int64_t FastestParallel(const std::vector<PromptSize>& sizes, int64_t context, int64_t ram_bytes,
                        const std::function<Result<PlanReport>(const Workload&)>& plan_of);

// `app` has read `flags`.
int RunPrompts(const CLI::App& app, RunFlags flags, Console& console);

}  // namespace headway::cli

#endif  // HEADWAY_CLI_RUN_PROMPTS_H_
