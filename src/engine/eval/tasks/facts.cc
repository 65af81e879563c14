#include "engine/eval/tasks/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/eval/tasks/words.h"

namespace headway::eval {
namespace {

constexpr int64_t kRulerNeedles = 4;    // keys, values and queries
constexpr int64_t kRulerVariables = 5;  // a chain of four assignments from another variable

// Gives the texts random places, in their order.
std::vector<Fact> Scatter(Random& random, const Words& texts) {
  std::vector<double> places;
  for (size_t i = 0; i < texts.size(); ++i) places.push_back(random.Uniform());
  std::sort(places.begin(), places.end());
  std::vector<Fact> facts;
  for (size_t i = 0; i < texts.size(); ++i) facts.push_back({places[i], texts[i]});
  return facts;
}

// The first fact is the one asked for: moves it to a random place among the others.
void HideAmongOthers(Random& random, Words* texts) {
  std::swap((*texts)[0],
            (*texts)[static_cast<size_t>(random.Below(static_cast<int64_t>(texts->size())))]);
}

Words DrawKeys(Random& random, int64_t count) {
  return DrawDifferent(count,
                       [&] { return Pick(random, Adjectives()) + "-" + Pick(random, Nouns()); });
}

std::string NumberFact(const std::string& key, const std::string& number) {
  return fmt::format(" One of the special magic numbers for {} is: {}.", key, number);
}

// There are some four million.
std::string DrawLongKey(Random& random) {
  return Pick(random, Adjectives()) + "-" + Pick(random, Nouns()) + "-" + Digits(random, 3);
}

// The first of `keys` is asked for, each with a number of its own.
Draft DraftKeys(Random& random, const Words& keys) {
  Draft draft;
  Words texts;
  for (const std::string& key : keys) {
    const std::string number = Digits(random, 7);
    texts.push_back(NumberFact(key, number));
    if (draft.answer.empty()) draft.answer = {number};
  }
  HideAmongOthers(random, &texts);
  draft.facts = Scatter(random, texts);
  draft.question =
      fmt::format("What is the special magic number for {} mentioned in the text?", keys[0]);
  return draft;
}

// All numbers are asked for, of one key or one number of each of several keys.
Draft DraftNumbers(Random& random, const Words& keys, const std::string& asked) {
  Draft draft;
  draft.answer = DrawDifferent(kRulerNeedles, [&] { return Digits(random, 7); });
  Words texts;
  for (size_t i = 0; i < draft.answer.size(); ++i) {
    texts.push_back(NumberFact(keys[i % keys.size()], draft.answer[i]));
  }
  draft.facts = Scatter(random, texts);
  draft.question =
      fmt::format("What are all the special magic numbers for {} mentioned in the text?", asked);
  return draft;
}

Draft DraftMultiValue(Random& random) {
  const Words keys = DrawKeys(random, 1);
  return DraftNumbers(random, keys, keys[0]);
}

Draft DraftMultiQuery(Random& random) {
  const Words keys = DrawKeys(random, kRulerNeedles);
  return DraftNumbers(random, keys,
                      fmt::format("{}, {}, {} and {}", keys[0], keys[1], keys[2], keys[3]));
}

Draft DraftPasskey(Random& random) {
  const std::string key = Digits(random, 5);
  Draft draft;
  draft.facts = Scatter(
      random, {fmt::format(" The pass key is {0}. Remember it. {0} is the pass key.", key)});
  draft.question = "What is the pass key?";
  draft.answer = {key};
  return draft;
}

Draft DraftPlace(Random& random) {
  const Words keys = DrawDifferent(4 + random.Below(9),
                                   [&] { return Pick(random, Nouns()) + "-" + Digits(random, 3); });
  Draft draft;
  Words texts;
  for (const std::string& key : keys) {
    const std::string place = Pick(random, Adjectives()) + " " + Pick(random, Nouns());
    texts.push_back(fmt::format("\nThe {} is stored in the {}.\n", key, place));
    if (draft.answer.empty()) draft.answer = {place};
  }
  HideAmongOthers(random, &texts);
  draft.facts = Scatter(random, texts);
  draft.question = fmt::format("Where is the {} stored?", keys[0]);
  return draft;
}

// A chain of variables: VAR a = 12345, VAR b = VAR a, ... Names are two capitals, without I and O,
// which look like digits.
Draft DraftVariables(Random& random, int64_t count) {
  const std::string letters = "ABCDEFGHJKLMNPQRSTUVWXYZ";
  const auto letter = [&] {
    return letters[static_cast<size_t>(random.Below(static_cast<int64_t>(letters.size())))];
  };
  Draft draft;
  draft.answer = DrawDifferent(count, [&] { return std::string{letter(), letter()}; });
  const std::string value = Digits(random, 5);
  Words texts;
  for (size_t i = 0; i < draft.answer.size(); ++i) {
    const std::string from = i == 0 ? value : "VAR " + draft.answer[i - 1];
    texts.push_back(fmt::format("\nVAR {} = {}\n", draft.answer[i], from));
  }
  draft.facts = Scatter(random, texts);
  draft.question =
      fmt::format("Find all variables that are assigned the value {} in the text.", value);
  return draft;
}

Draft DraftPassage(Random& random) {
  Draft draft;
  draft.question = "Continue the passage of the text that reads:";
  draft.passage = true;
  draft.passage_seed = random.Next();
  return draft;
}

Draft MakeDraft(RetrievalTask task, Random& random) {
  switch (task) {
    case RetrievalTask::kNeedle:
      return DraftKeys(random, DrawKeys(random, 1 + random.Below(4)));
    case RetrievalTask::kPasskey:
      return DraftPasskey(random);
    case RetrievalTask::kPlace:
      return DraftPlace(random);
    case RetrievalTask::kVariables:
      return DraftVariables(random, 2 + random.Below(3));
    case RetrievalTask::kPassage:
      return DraftPassage(random);
    case RetrievalTask::kSingle:
      return DraftKeys(random, DrawKeys(random, 1));
    case RetrievalTask::kMultiKey:
      return DraftKeys(random, DrawKeys(random, kRulerNeedles));
    case RetrievalTask::kMultiKeyFull:
      return DraftKeys(random, {DrawLongKey(random)});
    case RetrievalTask::kMultiValue:
      return DraftMultiValue(random);
    case RetrievalTask::kMultiQuery:
      return DraftMultiQuery(random);
    case RetrievalTask::kTracking:
      return DraftVariables(random, kRulerVariables);
    case RetrievalTask::kCommonWords:
    case RetrievalTask::kFrequentWords:
    case RetrievalTask::kQuestions:
      break;
  }
  HEADWAY_CHECK(false);
  return {};
}

}  // namespace

std::vector<std::string> OtherFacts(const Draft& draft, int64_t count, Random& random) {
  const Words keys = DrawDifferent(count, [&] { return DrawLongKey(random); });
  std::vector<std::string> facts;
  for (const std::string& key : keys) {
    if (draft.question.find(" " + key + " ") != std::string::npos) continue;
    facts.push_back(NumberFact(key, Digits(random, 7)));
  }
  return facts;
}

Draft DraftFacts(RetrievalTask task, std::optional<double> depth, Random& random) {
  Draft draft = MakeDraft(task, random);
  // A place of 1 would be behind all pieces.
  if (depth.has_value() && HasDepth(task)) draft.facts.front().at = std::min(*depth, 1.0 - 1e-9);
  return draft;
}

}  // namespace headway::eval
