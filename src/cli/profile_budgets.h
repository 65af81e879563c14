// headway profile-heads with --evict: the tokens that a method gives each head of texts.
#ifndef HEADWAY_CLI_PROFILE_BUDGETS_H_
#define HEADWAY_CLI_PROFILE_BUDGETS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cli/console.h"
#include "cli/flags.h"
#include "engine/eval/budget_profile.h"

namespace headway::cli {

struct BudgetFlags {
  ModelFlags model;
  OutputFlags output;
  std::string file;                // of the profile
  std::vector<std::string> texts;  // files; "-": standard input
  int64_t context = 0;             // first tokens of each
};

int ProfileBudgets(const BudgetFlags& flags, Console& console);

// A table of layers, and one of the similarities of texts where there are several.
std::string BudgetsText(const eval::BudgetProfile& profile);

}  // namespace headway::cli

#endif  // HEADWAY_CLI_PROFILE_BUDGETS_H_
