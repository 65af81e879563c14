// The flags of selection, an approximation.
#ifndef HEADWAY_CLI_SELECTION_FLAGS_H_
#define HEADWAY_CLI_SELECTION_FLAGS_H_

#include <string_view>

#include "headway/options.h"

namespace CLI {
class App;
}  // namespace CLI

namespace headway::cli {

// A selector.
inline constexpr const char* kInfiniteHip = "infinitehip";

// A policy that has it in prompts as well, with the intervals of one of the published presets.
struct HipPreset {
  const char* policy;
  const char* hip_refresh;
  int sparse_refresh;
};
inline constexpr HipPreset kHipPresets[] = {
    {kInfiniteHip, "16,8", 4}, {"infinitehip-fast", "32,16", 8}, {"infinitehip-flash", "96,24", 8}};

// The preset of that name; null: it is none.
const HipPreset* HipPresetOf(std::string_view policy);

// Behind --policy.
void AddSelectionFlags(CLI::App& app, EngineOptions& engine);

}  // namespace headway::cli

#endif  // HEADWAY_CLI_SELECTION_FLAGS_H_
