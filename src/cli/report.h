// What commands print about a run: tables for people, JSON for machines.
#ifndef HEADWAY_CLI_REPORT_H_
#define HEADWAY_CLI_REPORT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/console.h"
#include "headway/context.h"
#include "headway/options.h"
#include "headway/plan.h"

namespace headway::cli {

using Json = nlohmann::ordered_json;

// One line, with its newline; invalid UTF-8 (there should be none) is replaced, never thrown at.
std::string Dump(const Json& json);

// Columns as wide as their widest cell, two blanks between; the first column to the left, others to
// the right where `right` says so. Lines end with a newline. Widths count bytes.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows,
                        const std::vector<bool>& right);

// "16,102"
std::string FormatCount(int64_t count);

double TokensPerSecond(int64_t tokens, double seconds);

// A warning where the plan takes more RAM than the machine has, which unlimited budgets allow; else
// empty.
std::string MemoryWarning(const PlanReport& plan, int64_t ram_bytes);
int64_t RamBytes();
// Prints it for this machine.
void WarnOfMemory(const PlanReport& plan, Console& console);
// One line where the budgets' cut of the cache gives other bits than an all-resident run.
void SayCut(const PlanReport& plan, Console& console);

// "hgca      4,096 last tokens, and at most 30 % of those before, above 1 even shares; on the
// host"; empty without a window.
std::string SalienceLine(const PlanReport& plan);

// "selection pages: approximate from 3,329 tokens on, where a head attends to 3,328 keys of 65,536
// and to no others; prompts are read exactly"; empty where answers depend on no selection.
std::string SelectionLine(const PlanReport& plan);

// "eviction  snapkv: 1,024 of the prompt's tokens a head"; empty where nothing is evicted.
std::string EvictionLine(const PlanReport& plan);

// The lines of all that approximates, each of which leaves out keys.
std::vector<std::string> ApproximationLines(const PlanReport& plan);
void SayApproximations(const PlanReport& plan, Console& console);

// What each tier holds.
struct TierUse {
  int64_t bytes[3] = {};
};
// "1,234 of 5,678 drafts accepted".
std::string DraftsText(const Timings& timings);

TierUse TiersOf(const Context& context);

// Of all reads.
double FoundShare(const PageCacheReads& reads);
// Blocks of a list.
double ListedEach(const ListedBlocks& listed);
// Of all heads.
double ReadAllShare(const BoundedHeads& bounded);

// Lines: prefill, decode, tiers.
std::vector<std::string> RunSummary(const Generation& generation, const Timings& timings,
                                    const TierUse& tiers, const EngineOptions& limits);

Json TimingsJson(const Timings& timings);
// Of these, what is counted: drafts, and what was chosen and where it was found.
Json CountsJson(const Timings& timings);
Json BoundedJson(const BoundedHeads& bounded);
Json TiersJson(const TierUse& tiers);
Json EvictionJson(const EvictionReport& eviction);
Json PlanJson(const PlanReport& plan);
Json PredictionJson(const Prediction& prediction);
Json LanesJson(const std::vector<LaneReport>& lanes);
Json SamplingJson(const SamplingOptions& options);

}  // namespace headway::cli

#endif  // HEADWAY_CLI_REPORT_H_
