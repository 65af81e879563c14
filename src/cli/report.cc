#include "cli/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/bytes.h"
#include "cli/flags.h"
#include "cli/option_flags.h"

namespace headway::cli {
namespace {

constexpr const char* kTiers[3] = {"device", "host", "disk"};

std::string SpeedLine(const char* phase, int64_t tokens, double seconds) {
  return fmt::format("{:<8} {:>9} tokens in {:>8.2f} s {:>8.1f} tok/s", phase, FormatCount(tokens),
                     seconds, TokensPerSecond(tokens, seconds));
}

}  // namespace

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string FormatTable(const std::vector<std::vector<std::string>>& rows,
                        const std::vector<bool>& right) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string table;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - row[i].size(), ' ');
      const bool to_right = i < right.size() && right[i];
      line += (i == 0 ? "" : "  ") + (to_right ? blanks + row[i] : row[i] + blanks);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    table += line + "\n";
  }
  return table;
}

std::string FormatCount(int64_t count) {
  std::string digits = std::to_string(count);
  const size_t first = count < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

double TokensPerSecond(int64_t tokens, double seconds) {
  return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0;
}

double FoundShare(const PageCacheReads& reads) {
  return static_cast<double>(reads.found) / static_cast<double>(std::max<int64_t>(reads.all(), 1));
}

double ListedEach(const ListedBlocks& listed) {
  return static_cast<double>(listed.blocks) /
         static_cast<double>(std::max<int64_t>(listed.lists, 1));
}

double ReadAllShare(const BoundedHeads& bounded) {
  return static_cast<double>(bounded.read_all) /
         static_cast<double>(std::max<int64_t>(bounded.heads, 1));
}

std::string DraftsText(const Timings& timings) {
  return fmt::format("{} of {} drafts accepted", FormatCount(timings.accepted_drafts),
                     FormatCount(timings.drafted_tokens));
}

TierUse TiersOf(const Context& context) {
  TierUse use;
  for (int tier = 0; tier < 3; ++tier) use.bytes[tier] = context.TierBytes(tier);
  return use;
}

namespace {

// What lists of a `list` chose, and found.
void AddReadsText(const ListedBlocks& listed, const PageCacheReads& cache, std::string_view list,
                  std::vector<std::string>* lines) {
  if (listed.lists > 0) {
    lines->push_back(
        fmt::format("          {:.1f} of {:.1f} blocks were chosen for a {}", ListedEach(listed),
                    static_cast<double>(listed.among) / static_cast<double>(listed.lists), list));
  }
  if (cache.all() > 0) {
    lines->push_back(
        fmt::format("          {:.1f} % of the chosen keys in host memory were found on the GPU",
                    100.0 * FoundShare(cache)));
  }
}

Json ListedJson(const ListedBlocks& listed) {
  return {{"lists", listed.lists},
          {"blocks", listed.blocks},
          {"among", listed.among},
          {"blocks_of_a_list", ListedEach(listed)}};
}

Json PageCacheJson(const PageCacheReads& cache) {
  return {{"found", cache.found},
          {"brought", cache.brought},
          {"passed", cache.passed},
          {"bytes", cache.bytes},
          {"found_share", FoundShare(cache)}};
}

}  // namespace

std::vector<std::string> RunSummary(const Generation& generation, const Timings& timings,
                                    const TierUse& tiers, const EngineOptions& limits) {
  std::vector<std::string> lines;
  std::string prefill = SpeedLine("prefill", timings.prefill_tokens, timings.prefill_seconds);
  if (generation.reused_tokens > 0) {
    prefill += fmt::format("  ({} in the cache)", FormatCount(generation.reused_tokens));
  }
  lines.push_back(prefill);
  AddReadsText(timings.prompts.listed, timings.prompts.page_cache, "layer, head and 64 tokens",
               &lines);
  lines.push_back(SpeedLine("decode", timings.decode_tokens, timings.decode_seconds) +
                  "  (ended by: " + FinishReasonName(generation.finish) + ")");
  if (timings.drafted_tokens > 0) {
    lines.push_back("          " + DraftsText(timings));
  }
  if (timings.host_share > 0.0) {
    lines.push_back(fmt::format("          the CPU attended to {:.1f} % of what host memory holds",
                                100.0 * timings.host_share));
  }
  AddReadsText(timings.listed, timings.page_cache, "layer and head", &lines);
  if (timings.disk_pages.read > 0) {
    lines.push_back(fmt::format("          {} of chosen pages were read from disk",
                                FormatBytes(timings.disk_pages.bytes)));
  }
  if (timings.demoted.steps > 0) {
    lines.push_back(fmt::format("          {} of what heads let go of were read",
                                FormatBytes(timings.demoted.bytes)));
  }
  if (timings.bounded.heads > 0) {
    lines.push_back(fmt::format("          {:.1f} % of heads read all before the window",
                                100.0 * ReadAllShare(timings.bounded)));
  }
  int64_t total = 0;
  for (int64_t bytes : tiers.bytes) total += bytes;
  lines.push_back(fmt::format("KV cache  {:>9}", FormatBytes(total)));
  const int64_t budgets[3] = {limits.kv_memory, limits.host_memory, limits.disk_memory};
  for (int tier = 0; tier < 3; ++tier) {
    const double share =
        total > 0 ? 100.0 * static_cast<double>(tiers.bytes[tier]) / static_cast<double>(total)
                  : 0.0;
    const bool of_session = tier == 2 && budgets[tier] == 0 && !limits.session.empty();
    lines.push_back(fmt::format("  {:<7} {:>9}  {:5.1f} %  limit {}", kTiers[tier],
                                FormatBytes(tiers.bytes[tier]), share,
                                of_session ? "unlimited" : FormatLimit(budgets[tier])));
  }
  return lines;
}

std::string MemoryWarning(const PlanReport& plan, int64_t ram_bytes) {
  if (ram_bytes <= 0 || plan.memory_bytes <= ram_bytes) return "";
  return fmt::format(
      "at full length this takes {} of RAM, and the system shows {}; give --kv-memory, "
      "--host-memory and --disk-memory, or a shorter context",
      FormatBytes(plan.memory_bytes), FormatBytes(ram_bytes));
}

int64_t RamBytes() { return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE); }

void WarnOfMemory(const PlanReport& plan, Console& console) {
  const std::string warning = MemoryWarning(plan, RamBytes());
  if (!warning.empty()) console.Warn(warning);
}

void SayCut(const PlanReport& plan, Console& console) {
  if (!plan.cut_notice.empty()) console.Say("headway: note: " + Worded(plan.cut_notice));
}

std::string SelectionLine(const PlanReport& plan) {
  if (!plan.selection.has_value()) return "";
  const SelectionReport& selection = *plan.selection;
  if (selection.whole >= selection.length && !selection.reach) {
    return fmt::format("selection {}: exact, since all keys of up to {} tokens are read",
                       selection.selector, FormatCount(selection.length));
  }
  const auto always = selection.sink + selection.recent;
  std::string keys = FormatCount(std::min(always + selection.keys, selection.length));
  if (selection.top_p > 0.0) {
    keys = FormatCount(always + selection.least) + " to " + keys;
  } else if (selection.epsilon > 0.0) {
    keys += " or more";
  }
  const std::string from =
      selection.reach ? "" : fmt::format(" from {} tokens on", FormatCount(selection.whole + 1));
  return fmt::format(
      "selection {}: approximate{}, where a head attends to {} keys of {} and to no others; "
      "prompts "
      "are read {}",
      selection.selector, from, keys, FormatCount(selection.length),
      selection.prompts ? "so, too" : "exactly");
}

std::string EvictionLine(const PlanReport& plan) {
  if (!plan.eviction.has_value()) return "";
  const EvictionReport& eviction = *plan.eviction;
  const std::string kept = eviction.budget > 0 ? FormatCount(eviction.budget)
                                               : fmt::format("{:.4g} %", 100.0 * eviction.share);
  std::string text =
      fmt::format("eviction  {}: {} of the prompt's tokens a head{}", eviction.method, kept,
                  eviction.profiled ? ", as the profile shares them out" : "");
  if (eviction.demoted_keys > 0) {
    text += fmt::format("; up to {} of the others are read in a step, by summaries",
                        FormatCount(eviction.demoted_keys));
  }
  return text;
}

std::string SalienceLine(const PlanReport& plan) {
  if (!plan.salience.has_value()) return "";
  const SalienceReport& salience = *plan.salience;
  const std::string chosen =
      salience.reselect > 0
          ? fmt::format("chosen by summaries every {} steps", FormatCount(salience.reselect))
          : fmt::format("above {:.4g} even shares", salience.beta);
  const std::string bound =
      salience.epsilon > 0.0
          ? fmt::format("; all where more than {:.4g} % may be left out", 100.0 * salience.epsilon)
          : "";
  const std::string where = !salience.on_host ? "device"
                            : salience.by_cores < 1.0
                                ? fmt::format(
                                      "host, {:.0f} % of them by its cores and the rest "
                                      "over the bus",
                                      100.0 * salience.by_cores)
                                : "host";
  return fmt::format(
      "hgca      {} last tokens, and at most {:.4g} % of those before, {}; on the {}{}",
      FormatCount(salience.window), 100.0 * salience.most, chosen, where, bound);
}

std::vector<std::string> ApproximationLines(const PlanReport& plan) {
  std::vector<std::string> lines = {SelectionLine(plan), EvictionLine(plan), SalienceLine(plan)};
  std::erase(lines, "");
  return lines;
}

void SayApproximations(const PlanReport& plan, Console& console) {
  for (const std::string& line : ApproximationLines(plan)) console.Say(line);
}

Json TimingsJson(const Timings& timings) {
  Json json = {
      {"prefill_tokens", timings.prefill_tokens},
      {"prefill_seconds", timings.prefill_seconds},
      {"prefill_tokens_per_second",
       TokensPerSecond(timings.prefill_tokens, timings.prefill_seconds)},
      {"decode_tokens", timings.decode_tokens},
      {"decode_seconds", timings.decode_seconds},
      {"decode_tokens_per_second", TokensPerSecond(timings.decode_tokens, timings.decode_seconds)},
  };
  json.update(CountsJson(timings));
  return json;
}

Json CountsJson(const Timings& timings) {
  const DiskPageReads& pages = timings.disk_pages;
  const DemotedReads& demoted = timings.demoted;
  return {{"host_share", timings.host_share},
          {"drafted_tokens", timings.drafted_tokens},
          {"accepted_drafts", timings.accepted_drafts},
          {"listed_blocks", ListedJson(timings.listed)},
          {"page_cache", PageCacheJson(timings.page_cache)},
          {"prompts",
           {{"listed_blocks", ListedJson(timings.prompts.listed)},
            {"page_cache", PageCacheJson(timings.prompts.page_cache)}}},
          {"disk_pages", {{"found", pages.found}, {"read", pages.read}, {"bytes", pages.bytes}}},
          {"demoted",
           {{"steps", demoted.steps}, {"choices", demoted.choices}, {"bytes", demoted.bytes}}},
          {"hgca_bound", BoundedJson(timings.bounded)}};
}

Json BoundedJson(const BoundedHeads& bounded) {
  return {{"heads", bounded.heads}, {"read_all", bounded.read_all}};
}

Json TiersJson(const TierUse& tiers) {
  Json json;
  for (int tier = 0; tier < 3; ++tier) json[kTiers[tier]] = tiers.bytes[tier];
  return json;
}

Json EvictionJson(const EvictionReport& eviction) {
  Json json = {{"method", eviction.method},
               {"budget", eviction.budget},
               {"share", eviction.share},
               {"window", eviction.window},
               {"pool", eviction.pool},
               {"pooling", eviction.pooling},
               {"sink", eviction.sink},
               {"safeguard", eviction.safeguard},
               {"steepness", eviction.steepness},
               {"future", eviction.future},
               {"profiled", eviction.profiled},
               {"room", eviction.room},
               {"kept_bytes", eviction.kept_bytes},
               {"sequence_bytes", eviction.sequence_bytes},
               {"evicted", eviction.demoted_keys > 0 ? "demote" : "drop"}};
  if (eviction.demoted_keys > 0) {
    json["evicted_keys"] = eviction.demoted_keys;
    json["evicted_refresh"] = eviction.demoted_refresh;
    json["demoted_bytes"] = eviction.demoted_bytes;
  }
  if (eviction.sequences > 0) {
    json["sequences"] = eviction.sequences;
    json["whole_sequences"] = eviction.whole_sequences;
  }
  return json;
}

namespace {

// Who attends for which heads.
Json RanksJson(const RanksReport& ranks) {
  return {{"assignment", ranks.assignment},
          {"profiled", ranks.profiled},
          {"keys", ranks.keys},
          {"busy", ranks.busy},
          {"busy_share", ranks.busy_share},
          {"static_busy_share", ranks.static_busy_share},
          {"copies", ranks.copies},
          {"heads", ranks.heads},
          {"shares", ranks.shares}};
}

Json MemoryJson(const std::vector<MemoryLine>& memory) {
  Json json = Json::array();
  for (const MemoryLine& line : memory) {
    json.push_back({{"tier", line.tier}, {"what", line.what}, {"bytes", line.bytes}});
  }
  return json;
}

}  // namespace

Json PlanJson(const PlanReport& plan) {
  Json json = {{"chunk", plan.chunk},
               {"stretch", plan.stretch},
               {"head_group", plan.head_group},
               {"segment", plan.segment},
               {"kv_bytes", plan.kv_bytes},
               {"slab_bytes", plan.slab_bytes},
               {"kv_encoding", plan.kv_encoding},
               {"kv_bytes_per_token", plan.kv_bytes_per_token},
               {"host_share", plan.host_share},
               {"weight_layers", plan.weight_layers},
               {"streamed_weight_bytes", plan.streamed_weight_bytes},
               {"disk_layers", plan.disk_layers},
               {"disk_weight_bytes", plan.disk_weight_bytes},
               {"x_slabs", plan.x_slabs},
               {"recompute_share", plan.recompute_share}};
  for (int tier = 0; tier < 3; ++tier) json["slabs"][kTiers[tier]] = plan.slabs[tier];
  json["memory"] = MemoryJson(plan.memory);
  json["memory_bytes"] = plan.memory_bytes;
  json["reasons"] = plan.reasons;
  if (plan.selection.has_value()) {
    json["selection"] = {{"selector", plan.selection->selector},
                         {"keys", plan.selection->keys},
                         {"top_p", plan.selection->top_p},
                         {"least", plan.selection->least},
                         {"epsilon", plan.selection->epsilon},
                         {"delta", plan.selection->delta},
                         {"sink", plan.selection->sink},
                         {"recent", plan.selection->recent},
                         {"block", plan.selection->block},
                         {"looks", plan.selection->looks},
                         {"sketches", plan.selection->sketches},
                         {"levels", plan.selection->levels},
                         {"refresh", plan.selection->refresh},
                         {"candidates_refresh", plan.selection->candidates_refresh},
                         {"share", plan.selection->share},
                         {"prompts", plan.selection->prompts},
                         {"reach", plan.selection->reach},
                         {"reach_positions", plan.selection->reach_positions},
                         {"hip_positions", plan.selection->hip_positions},
                         {"from", plan.selection->from},
                         {"length", plan.selection->length},
                         {"whole", plan.selection->whole}};
  }
  if (plan.page_cache.has_value()) {
    const PageCacheReport& cache = *plan.page_cache;
    json["page_cache"] = {{"bytes", cache.bytes},
                          {"steps", cache.steps},
                          {"found_share", cache.found_share},
                          {"found_tokens", cache.found_tokens},
                          {"assumed_tokens", cache.assumed_tokens},
                          {"source", cache.found_tokens > 0 ? "measured" : "assumed"}};
  }
  if (plan.eviction.has_value()) json["eviction"] = EvictionJson(*plan.eviction);
  if (plan.salience.has_value()) {
    json["hgca"] = {{"beta", plan.salience->beta},         {"window", plan.salience->window},
                    {"alpha", plan.salience->alpha},       {"every", plan.salience->every},
                    {"most", plan.salience->most},         {"queries", plan.salience->queries},
                    {"reselect", plan.salience->reselect}, {"on_host", plan.salience->on_host},
                    {"by_cores", plan.salience->by_cores}, {"epsilon", plan.salience->epsilon},
                    {"delta", plan.salience->delta}};
  }
  if (plan.ranks.has_value()) json["ranks"] = RanksJson(*plan.ranks);
  if (!plan.layers_of_ranks.empty()) json["layers_of_ranks"] = plan.layers_of_ranks;
  json["cut_notice"] = Worded(plan.cut_notice);
  if (!plan.prediction.machine.empty()) json["prediction"] = PredictionJson(plan.prediction);
  return json;
}

Json PredictionJson(const Prediction& prediction) {
  const auto phase = [](const PhasePrediction& of) {
    Json json = {{"seconds", of.seconds},
                 {"tokens_per_second", of.tokens_per_second},
                 {"limit", of.limit},
                 {"lanes", Json::object()}};
    for (const auto& [lane, seconds] : of.lanes) json["lanes"][lane] = seconds;
    return json;
  };
  Json drafts = Json::array();
  for (const DraftPrediction& with : prediction.drafts) {
    drafts.push_back({{"accepted", with.accepted},
                      {"drafts", with.drafts},
                      {"tokens_per_second", with.tokens_per_second}});
  }
  return {{"machine", prediction.machine},
          {"origin", prediction.origin},
          {"prefill", phase(prediction.prefill)},
          {"decode", phase(prediction.decode)},
          {"drafts", drafts}};
}

Json LanesJson(const std::vector<LaneReport>& lanes) {
  Json json = Json::array();
  for (const LaneReport& lane : lanes) {
    json.push_back({{"lane", lane.lane},
                    {"busy_seconds", lane.busy_seconds},
                    {"bytes", lane.bytes},
                    {"flops", lane.flops}});
  }
  return json;
}

Json SamplingJson(const SamplingOptions& options) {
  // A float as it was typed: 0.6, not 0.6000000238418579.
  const auto number = [](float value) { return Json::parse(fmt::format("{}", value)); };
  return {{"temperature", number(options.temperature)},
          {"top_k", options.top_k},
          {"top_p", number(options.top_p)},
          {"min_p", number(options.min_p)},
          {"repetition_penalty", number(options.repetition_penalty)},
          {"presence_penalty", number(options.presence_penalty)},
          {"frequency_penalty", number(options.frequency_penalty)},
          {"seed", options.seed}};
}

}  // namespace headway::cli
