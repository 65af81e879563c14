#include "engine/eval/retrieval_generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/random.h"
#include "engine/eval/haystack.h"
#include "headway/refusal.h"

namespace headway::eval {
namespace {

constexpr int64_t kShortestContext = 256;
constexpr int64_t kLongestContext = int64_t{1} << 24;
constexpr int64_t kMaxCount = 100'000;
constexpr int64_t kPassageTokens = 8;  // of its start, and at least of what follows

using Words = std::vector<std::string>;

Status Refused(Message message) {
  return Status(StatusCode::kInvalidArgument, Refusal{std::move(message)});
}

const Words& Adjectives() {
  static const auto* const words = new Words{
      "bitter", "bold",   "brave", "bright", "broad",   "calm",  "clean",  "clever", "cold",
      "cool",   "dark",   "deep",  "dry",    "early",   "faint", "fair",   "fine",   "fresh",
      "gentle", "golden", "grand", "green",  "heavy",   "high",  "humble", "kind",   "large",
      "lively", "lonely", "long",  "mild",   "narrow",  "noble", "old",    "open",   "pale",
      "plain",  "proud",  "quiet", "quick",  "rapid",   "red",   "round",  "sharp",  "silent",
      "simple", "small",  "soft",  "steady", "strange", "sweet", "tall",   "tender", "thin",
      "vast",   "warm",   "white", "wide",   "wild",    "young"};
  return *words;
}

const Words& Nouns() {
  static const auto* const words = new Words{
      "anchor",  "apple",  "arrow", "bell",     "boat",   "book",  "bridge",  "bucket",  "candle",
      "castle",  "clock",  "cloud", "coat",     "crown",  "door",  "eagle",   "engine",  "falcon",
      "feather", "field",  "flame", "forest",   "garden", "gate",  "hammer",  "harbor",  "horse",
      "island",  "jacket", "jewel", "kettle",   "ladder", "lamp",  "lantern", "letter",  "market",
      "meadow",  "mirror", "moon",  "mountain", "needle", "nest",  "ocean",   "orchard", "paper",
      "pencil",  "plate",  "queen", "rabbit",   "ring",   "river", "road",    "shadow",  "ship",
      "star",    "stone",  "table", "temple",   "tower",  "tree",  "valley",  "wagon",   "wheel",
      "window",  "wolf",   "yard"};
  return *words;
}

// A fact and where it goes: behind the piece at this share of the document.
struct Fact {
  double at = 0.0;
  std::string text;
};

// A line but for its length.
struct Draft {
  std::vector<Fact> facts;  // ascending
  std::string question;     // of a passage: without the passage's start
  std::vector<std::string> answer;
  bool passage = false;
  uint64_t passage_seed = 0;
};

std::string Digits(Random& random, int count) {
  std::string digits;
  for (int i = 0; i < count; ++i) digits += static_cast<char>('0' + random.Below(10));
  return digits;
}

const std::string& Pick(Random& random, const Words& words) {
  return words[static_cast<size_t>(random.Below(static_cast<int64_t>(words.size())))];
}

// `count` different strings from `draw`.
Words DrawDifferent(int64_t count, const std::function<std::string()>& draw) {
  Words drawn;
  std::set<std::string> seen;
  while (static_cast<int64_t>(drawn.size()) < count) {
    std::string next = draw();
    if (seen.insert(next).second) drawn.push_back(std::move(next));
  }
  return drawn;
}

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

Draft DraftNeedle(Random& random) {
  const Words keys = DrawDifferent(1 + random.Below(4), [&] {
    return Pick(random, Adjectives()) + "-" + Pick(random, Nouns());
  });
  Draft draft;
  Words texts;
  for (const std::string& key : keys) {
    const std::string number = Digits(random, 7);
    texts.push_back(fmt::format(" One of the special magic numbers for {} is: {}.", key, number));
    if (draft.answer.empty()) draft.answer = {number};
  }
  HideAmongOthers(random, &texts);
  draft.facts = Scatter(random, texts);
  draft.question =
      fmt::format("What is the special magic number for {} mentioned in the text?", keys[0]);
  return draft;
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
Draft DraftVariables(Random& random) {
  const std::string letters = "ABCDEFGHJKLMNPQRSTUVWXYZ";
  const auto letter = [&] {
    return letters[static_cast<size_t>(random.Below(static_cast<int64_t>(letters.size())))];
  };
  Draft draft;
  draft.answer = DrawDifferent(2 + random.Below(3), [&] {
    return std::string{letter(), letter()};
  });
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

Draft MakeDraft(RetrievalKind kind, Random& random) {
  switch (kind) {
    case RetrievalKind::kNeedle:
      return DraftNeedle(random);
    case RetrievalKind::kPasskey:
      return DraftPasskey(random);
    case RetrievalKind::kPlace:
      return DraftPlace(random);
    case RetrievalKind::kVariables:
      return DraftVariables(random);
    case RetrievalKind::kPassage:
      break;
  }
  Draft draft;
  draft.question = "Continue the passage of the text that reads:";
  draft.passage = true;
  draft.passage_seed = random.Next();
  return draft;
}

// Whole words from `at` on, each with the space before it, until they have kPassageTokens tokens.
// Empty where a line ends before.
Result<std::string_view> TakeWords(std::string_view text, size_t at, const TextMeasure& measure) {
  size_t end = at;
  while (true) {
    const size_t next = text.find_first_of(" \n", end + 1);
    if (end >= text.size() || text[end] != ' ' || next == std::string_view::npos ||
        next == end + 1) {
      return std::string_view();
    }
    end = next;
    const std::string_view words = text.substr(at, end - at);
    // No token is longer than its text: short text need not be measured.
    if (static_cast<int64_t>(words.size()) < kPassageTokens) continue;
    Result<int64_t> tokens = measure.tokens(words);
    if (!tokens.ok()) return tokens.status();
    if (*tokens >= kPassageTokens) return words;
  }
}

// Picks a passage of line->context whose start is found nowhere else in it.
Status AskForPassage(const Draft& draft, const TextMeasure& measure, RetrievalLine* line) {
  Random random(draft.passage_seed);
  const std::string_view text = line->context;
  for (int attempt = 0; attempt < 1000 && !text.empty(); ++attempt) {
    const size_t begin =
        text.find(' ', static_cast<size_t>(random.Below(static_cast<int64_t>(text.size()))));
    if (begin == std::string_view::npos) continue;
    Result<std::string_view> head = TakeWords(text, begin, measure);
    if (!head.ok()) return head.status();
    if (head->empty() || text.find(*head) != begin ||
        text.find(*head, begin + 1) != std::string_view::npos) {
      continue;
    }
    Result<std::string_view> tail = TakeWords(text, begin + head->size(), measure);
    if (!tail.ok()) return tail.status();
    if (tail->empty()) continue;
    line->question = draft.question + std::string(*head);
    line->answer = {std::string(tail->substr(1))};
    return OkStatus();
  }
  return Refused(
      {"the haystack has no passage of two times 8 tokens whose start is unambiguous; take a "
       "longer ",
       Option::kPromptLength, " or another ", Option::kHaystack});
}

// The draft with the first `count` pieces as its document.
Result<RetrievalLine> Assemble(const Draft& draft, std::span<const std::string> pieces,
                               int64_t count, const TextMeasure& measure) {
  RetrievalLine line;
  line.question = draft.question;
  line.answer = draft.answer;
  size_t fact = 0;
  for (int64_t i = 0; i < count; ++i) {
    std::string_view piece = pieces[static_cast<size_t>(i)];
    // A document does not begin with white space, nor a line with a blank.
    if (line.context.empty())
      piece.remove_prefix(std::min(piece.find_first_not_of(" \r\n\t"), piece.size()));
    if (line.context.ends_with('\n') && piece.starts_with(' ')) piece.remove_prefix(1);
    line.context += piece;
    for (; fact < draft.facts.size(); ++fact) {
      if (draft.facts[fact].at * static_cast<double>(count) >= static_cast<double>(i + 1)) break;
      line.context += draft.facts[fact].text;
    }
  }
  while (line.context.ends_with('\n')) line.context.pop_back();
  if (!draft.passage) return line;
  if (Status s = AskForPassage(draft, measure, &line); !s.ok()) return s;
  return line;
}

// The longest document of these pieces with which the prompt has at most `length` tokens. Tokens
// of the pieces are measured one by one for a first guess, the prompt as a whole from there on.
Result<RetrievalLine> Fit(const Draft& draft, std::span<const std::string> pieces,
                          std::span<const int64_t> piece_tokens, int64_t length,
                          const TextMeasure& measure) {
  int64_t low = 0, high = static_cast<int64_t>(pieces.size()) + 1;  // fits; does not, or not there
  int64_t tokens = 0, guess = 0;
  while (guess + 1 < high && tokens + piece_tokens[static_cast<size_t>(guess)] <= length) {
    tokens += piece_tokens[static_cast<size_t>(guess++)];
  }
  if (guess + 1 == high && tokens + 64 < length) {
    return Refused(
        {fmt::format("the haystack has about {} tokens, and {} are needed; take a shorter ", tokens,
                     length),
         Option::kPromptLength, " or a longer ", Option::kHaystack});
  }
  RetrievalLine best;
  // What the question and the template take is found out by the first miss.
  for (int64_t count = std::max<int64_t>(guess, 1); low + 1 < high;) {
    Result<RetrievalLine> line = Assemble(draft, pieces, count, measure);
    if (!line.ok()) return line.status();
    Result<int64_t> prompt = measure.prompt_tokens(*line);
    if (!prompt.ok()) return prompt.status();
    int64_t off = *prompt - length;
    if (off > 0) {
      high = count;
      while (off > 0 && count > low + 1) off -= piece_tokens[static_cast<size_t>(--count)];
    } else {
      low = count;
      best = std::move(*line);
      while (off < 0 && count < high - 1) off += piece_tokens[static_cast<size_t>(count++)];
    }
    if (count <= low) count = low + 1;
    if (count >= high) count = high - 1;
  }
  if (low == 0) {
    return Refused({"a ", Option::kPromptLength,
                    fmt::format(" of {} tokens is too short to hide a fact in", length)});
  }
  return best;
}

Result<std::vector<int64_t>> MeasurePieces(const std::vector<std::string>& pieces,
                                           const TextMeasure& measure) {
  std::vector<int64_t> tokens;
  for (const std::string& piece : pieces) {
    Result<int64_t> count = measure.tokens(piece);
    if (!count.ok()) return count.status();
    tokens.push_back(*count);
  }
  return tokens;
}

// A piece to begin with, such that enough tokens are left behind it.
size_t DrawStart(Random& random, std::span<const int64_t> piece_tokens, int64_t length) {
  int64_t behind = 0;
  size_t last = piece_tokens.size();
  while (last > 0 && behind < length + 64) behind += piece_tokens[--last];
  return static_cast<size_t>(random.Below(static_cast<int64_t>(last) + 1));
}

Status Check(const RetrievalRequest& request) {
  if (request.count < 1 || request.count > kMaxCount) {
    return Refused({fmt::format("{} lines; 1 to {} can be generated", request.count, kMaxCount)});
  }
  if (request.length < kShortestContext || request.length > kLongestContext) {
    return Refused({"a ", Option::kPromptLength,
                    fmt::format(" of {} tokens; {} to {} are possible", request.length,
                                kShortestContext, kLongestContext)});
  }
  if (request.kinds.empty()) return Refused({"no retrieval kind"});
  return OkStatus();
}

}  // namespace

const char* RetrievalKindName(RetrievalKind kind) {
  switch (kind) {
    case RetrievalKind::kNeedle:
      return "needle";
    case RetrievalKind::kPasskey:
      return "passkey";
    case RetrievalKind::kPlace:
      return "place";
    case RetrievalKind::kVariables:
      return "variables";
    case RetrievalKind::kPassage:
      return "passage";
  }
  return "?";
}

std::vector<RetrievalKind> AllRetrievalKinds() {
  return {RetrievalKind::kNeedle, RetrievalKind::kPasskey, RetrievalKind::kPlace,
          RetrievalKind::kVariables, RetrievalKind::kPassage};
}

Result<std::vector<RetrievalKind>> ParseRetrievalKinds(std::string_view names) {
  std::vector<RetrievalKind> kinds;
  for (size_t at = 0; at <= names.size();) {
    const size_t end = std::min(names.find(',', at), names.size());
    const std::string_view name = names.substr(at, end - at);
    at = end + 1;
    const std::vector<RetrievalKind> all = AllRetrievalKinds();
    const auto found = std::find_if(all.begin(), all.end(), [&](RetrievalKind kind) {
      return name == RetrievalKindName(kind);
    });
    if (found == all.end()) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("unknown kind '{}'; there are needle, passkey, place, variables, "
                                "passage, divided by commas",
                                name));
    }
    kinds.push_back(*found);
  }
  return kinds;
}

TextMeasure MeasureOf(const Engine& engine, const ChatOptions& options) {
  TextMeasure measure;
  measure.tokens = [&engine](std::string_view text) -> Result<int64_t> {
    Result<std::vector<TokenId>> tokens = engine.Encode(text, {.add_special_tokens = false});
    if (!tokens.ok()) return tokens.status();
    return static_cast<int64_t>(tokens->size());
  };
  measure.prompt_tokens = [&engine, options](const RetrievalLine& line) -> Result<int64_t> {
    Result<std::vector<TokenId>> tokens = RetrievalPrompt(engine, line, options);
    if (!tokens.ok()) return tokens.status();
    return static_cast<int64_t>(tokens->size());
  };
  return measure;
}

Result<std::vector<RetrievalLine>> GenerateRetrieval(const RetrievalRequest& request,
                                                     const TextMeasure& measure) {
  if (Status s = Check(request); !s.ok()) return s;
  Random root(request.seed);
  const bool given = !request.haystack.empty();
  Haystack haystack;
  std::vector<int64_t> piece_tokens;
  std::vector<RetrievalLine> lines;
  for (int64_t i = 0; i < request.count; ++i) {
    Random random(root.Next());
    if (i == 0 || !given) {
      // English has some 4 to 5 bytes a token; 8 is enough for any tokenizer that deserves the
      // name.
      haystack = given ? Haystack::FromText(request.haystack)
                       : Haystack::Generate(request.length * 8, random.Next());
      Result<std::vector<int64_t>> measured = MeasurePieces(haystack.pieces(), measure);
      if (!measured.ok()) return measured.status();
      piece_tokens = std::move(*measured);
    }
    const size_t kind = static_cast<size_t>(i) % request.kinds.size();
    const Draft draft = MakeDraft(request.kinds[kind], random);
    const size_t start = given ? DrawStart(random, piece_tokens, request.length) : 0;
    Result<RetrievalLine> line =
        Fit(draft, std::span(haystack.pieces()).subspan(start),
            std::span(piece_tokens).subspan(start), request.length, measure);
    if (!line.ok()) return line.status();
    line->id = fmt::format("{}-{}", RetrievalKindName(request.kinds[kind]), i);
    lines.push_back(std::move(*line));
  }
  return lines;
}

}  // namespace headway::eval
