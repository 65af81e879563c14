#include "engine/draft_settings.h"

#include <memory>
#include <string>

#include "engine/drafts/lookup.h"
#include "engine/drafts/rated.h"
#include "engine/refused.h"
#include "engine/salience_settings.h"

namespace headway {
namespace {

constexpr int64_t kDefaultTokens = 7;
constexpr int64_t kMostTokens = 15;

// What chooses keys by a step's queries does so a token at a time. What is kept of a prompt was
// chosen before.
Status CheckTogether(const Settings& settings) {
  const bool sparse = settings.drafts.by == DraftSettings::By::kSparse;
  const struct {
    bool given;
    Option option;
    const char* value = "";
  } others[] = {{settings.selection.approximates(), Option::kSelector},
                {settings.eviction.demotion.demotes(), Option::kEvicted, " demote"},
                {settings.eviction.evicts() && sparse, Option::kEvict},
                {settings.salience.chooses(), AskedForBy(settings.salience)},
                {settings.streaming_heads.has_value() && sparse, Option::kHeadPattern},
                {settings.self_extend.on(), Option::kSelfExtend}};
  for (const auto& other : others) {
    if (other.given) {
      return Unsupported({Option::kDraft, sparse ? " sparse and " : " and ", other.option,
                          other.value + std::string(" do not go together yet")});
    }
  }
  return OkStatus();
}

}  // namespace

Status ReadDrafts(const EngineOptions& options, Settings* settings) {
  const EngineOptions absent;
  DraftSettings& drafts = settings->drafts;
  const bool rated = options.draft_acceptance != absent.draft_acceptance;
  if (options.draft == "lookup") {
    drafts.by = DraftSettings::By::kLookup;
  } else if (options.draft == kSparseDrafts) {
    drafts.by = DraftSettings::By::kSparse;
  } else if (options.draft.empty()) {
    return Wrong({Option::kDraft, " is one of none, lookup, sparse, or the folder of a model"});
  } else if (options.draft != absent.draft) {
    drafts.by = DraftSettings::By::kModel;
    drafts.model = options.draft;
  }
  if (rated) {
    if (drafts.by == DraftSettings::By::kLookup) {
      return Wrong({Option::kDraftAcceptance, " makes drafts of its own; leave out ",
                    Option::kDraft, " lookup"});
    }
    if (!(options.draft_acceptance >= 0.0 && options.draft_acceptance <= 1.0)) {
      return Wrong({Option::kDraftAcceptance, " is a probability, 0 to 1"});
    }
    drafts.acceptance = options.draft_acceptance;
  }
  const bool counted = options.draft_tokens != absent.draft_tokens;
  if (drafts.by == DraftSettings::By::kNone && !rated) {
    return counted ? Wrong({Option::kDraftTokens, " needs ", Option::kDraft}) : OkStatus();
  }
  drafts.tokens = counted ? options.draft_tokens : kDefaultTokens;
  if (drafts.tokens < 1 || drafts.tokens > kMostTokens) {
    return Wrong({Option::kDraftTokens, " is 1 to " + std::to_string(kMostTokens) + " tokens"});
  }
  return CheckTogether(*settings);
}

NewDrafter DraftersOf(const DraftSettings& settings) {
  if (settings.acceptance.has_value()) {
    return [right = *settings.acceptance] { return std::make_unique<RatedDrafter>(right); };
  }
  if (settings.by != DraftSettings::By::kLookup) return nullptr;
  return [] { return std::make_unique<LookupDrafter>(); };
}

}  // namespace headway
