// The flags of selection, an approximation.
#ifndef HEADWAY_CLI_SELECTION_FLAGS_H_
#define HEADWAY_CLI_SELECTION_FLAGS_H_

#include "headway/options.h"

namespace CLI {
class App;
}  // namespace CLI

namespace headway::cli {

// A selector, and the policy that has it in prompts as well.
inline constexpr const char* kInfiniteHip = "infinitehip";

// Behind --policy.
void AddSelectionFlags(CLI::App& app, EngineOptions& engine);

}  // namespace headway::cli

#endif  // HEADWAY_CLI_SELECTION_FLAGS_H_
