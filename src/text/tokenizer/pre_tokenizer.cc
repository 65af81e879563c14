#include "text/tokenizer/pre_tokenizer.h"

#include <fmt/format.h>

#include <utility>

#include "base/utf8.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/regex.h"
#include "text/tokenizer/text.h"
#include "text/unicode/unicode.h"

namespace headway::tok {

// One step: what it makes of one piece, which is not empty and no added token.
class PieceStep {
 public:
  virtual ~PieceStep() = default;
  // Appends the pieces that `piece` becomes.
  virtual Status Apply(const Piece& piece, PieceWork* work, std::vector<Piece>* pieces) const = 0;
  // True for the step that writes bytes as characters of the byte-level alphabet.
  virtual bool SpellsBytes() const { return false; }
};

namespace {

using Steps = std::vector<std::shared_ptr<const PieceStep>>;

// What becomes of the matches of a split.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// GPT-2's words (Radford et al., 2019), what ByteLevel cuts at unless it is told not to.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

void Keep(const Piece& piece, size_t begin, size_t end, std::vector<Piece>* pieces) {
  if (begin < end) pieces->push_back(piece.Slice(begin, end));
}

// Joins a match to its left neighbour: only the first of adjacent matches, the others stand alone.
void KeepMergedWithPrevious(const Piece& piece, const std::vector<Stretch>& stretches,
                            std::vector<Piece>* pieces) {
  for (size_t i = 0; i < stretches.size(); ++i) {
    const bool joins = i + 1 < stretches.size() && !stretches[i].match && stretches[i + 1].match;
    Keep(piece, stretches[i].begin, joins ? stretches[i + 1].end : stretches[i].end, pieces);
    if (joins) ++i;
  }
}

// The same to the right: the last of adjacent matches joins what follows it.
void KeepMergedWithNext(const Piece& piece, const std::vector<Stretch>& stretches,
                        std::vector<Piece>* pieces) {
  for (size_t i = 0; i < stretches.size(); ++i) {
    const bool joins = i + 1 < stretches.size() && stretches[i].match && !stretches[i + 1].match;
    Keep(piece, stretches[i].begin, joins ? stretches[i + 1].end : stretches[i].end, pieces);
    if (joins) ++i;
  }
}

void KeepContiguous(const Piece& piece, const std::vector<Stretch>& stretches,
                    std::vector<Piece>* pieces) {
  for (size_t i = 0; i < stretches.size();) {
    size_t next = i + 1;
    while (next < stretches.size() && stretches[next].match == stretches[i].match) ++next;
    Keep(piece, stretches[i].begin, stretches[next - 1].end, pieces);
    i = next;
  }
}

void KeepStretches(const Piece& piece, const std::vector<Stretch>& stretches,
                   SplitBehavior behavior, std::vector<Piece>* pieces) {
  switch (behavior) {
    case SplitBehavior::kIsolated:
    case SplitBehavior::kRemoved:
      for (const Stretch& stretch : stretches) {
        if (behavior == SplitBehavior::kRemoved && stretch.match) continue;
        Keep(piece, stretch.begin, stretch.end, pieces);
      }
      return;
    case SplitBehavior::kMergedWithPrevious:
      return KeepMergedWithPrevious(piece, stretches, pieces);
    case SplitBehavior::kMergedWithNext:
      return KeepMergedWithNext(piece, stretches, pieces);
    case SplitBehavior::kContiguous:
      return KeepContiguous(piece, stretches, pieces);
  }
}

// Every matching character is a match of its own.
template <typename Matches>
void FindCharacters(std::string_view text, const Matches& matches,
                    std::vector<Stretch>* stretches) {
  stretches->clear();
  size_t done = 0;
  for (size_t offset = 0; offset < text.size();) {
    const size_t begin = offset;
    if (!matches(NextCharacter(text, &offset))) continue;
    if (done < begin) stretches->push_back({.begin = done, .end = begin});
    stretches->push_back({.begin = begin, .end = offset, .match = true});
    done = offset;
  }
  if (done < text.size()) stretches->push_back({.begin = done, .end = text.size()});
}

Result<SplitBehavior> ReadBehavior(const JsonNode& node) {
  const Result<std::string> name = node.String("behavior");
  if (!name.ok()) return name.status();
  constexpr std::pair<std::string_view, SplitBehavior> kBehaviors[] = {
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous}};
  for (const auto& [known, behavior] : kBehaviors) {
    if (*name == known) return behavior;
  }
  return Status(StatusCode::kUnsupported,
                fmt::format("{}.behavior: {} is not supported", node.path(), Quoted(*name)));
}
class PatternSplit : public PieceStep {
 public:
  // What the pattern matches, or what lies between its matches.
  enum class Matches { kPattern, kBetween };
  PatternSplit(Regex pattern, SplitBehavior behavior, Matches matches)
      : pattern_(std::move(pattern)), behavior_(behavior), matches_(matches) {}

  Status Apply(const Piece& piece, PieceWork* work, std::vector<Piece>* pieces) const override {
    std::vector<Stretch>* stretches = work->stretches();
    Status status = pattern_.Split(piece.text, work->regex(), stretches);
    if (!status.ok()) return status;
    if (matches_ == Matches::kBetween) {
      for (Stretch& stretch : *stretches) stretch.match = !stretch.match;
    }
    KeepStretches(piece, *stretches, behavior_, pieces);
    return OkStatus();
  }

 private:
  Regex pattern_;
  SplitBehavior behavior_;
  Matches matches_;
};

class CharacterSplit : public PieceStep {
 public:
  CharacterSplit(bool (*matches)(char32_t), SplitBehavior behavior)
      : matches_(matches), behavior_(behavior) {}

  Status Apply(const Piece& piece, PieceWork* work, std::vector<Piece>* pieces) const override {
    FindCharacters(piece.text, matches_, work->stretches());
    KeepStretches(piece, *work->stretches(), behavior_, pieces);
    return OkStatus();
  }

 private:
  bool (*matches_)(char32_t);
  SplitBehavior behavior_;
};

// A space before what does not begin with one.
class PrefixSpace : public PieceStep {
 public:
  Status Apply(const Piece& piece, PieceWork* work, std::vector<Piece>* pieces) const override {
    pieces->push_back(piece);
    if (piece.text.front() != ' ') PrependTo(" ", &pieces->back(), work);
    return OkStatus();
  }
};

class SpellBytes : public PieceStep {
 public:
  Status Apply(const Piece& piece, PieceWork* work, std::vector<Piece>* pieces) const override {
    std::string text;
    AppendByteLevel(piece.text.substr(0, piece.from_start), &text);
    const size_t from_start = text.size();
    AppendByteLevel(piece.text.substr(piece.from_start), &text);
    pieces->push_back({.text = work->Keep(std::move(text)), .from_start = from_start});
    return OkStatus();
  }
  bool SpellsBytes() const override { return true; }
};

class Metaspace : public PieceStep {
 public:
  enum class Scheme { kFirst, kNever, kAlways };
  enum class Cut { kNone, kAtSpaces };
  Metaspace(std::string replacement, Scheme scheme, Cut cut)
      : replacement_(std::move(replacement)), scheme_(scheme), cut_(cut) {
    size_t offset = 0;
    character_ = NextCharacter(replacement_, &offset);
  }

  Status Apply(const Piece& piece, PieceWork* work, std::vector<Piece>* pieces) const override {
    Piece marked = piece;
    FindCharacters(
        marked.text, [](char32_t c) { return c == ' '; }, work->stretches());
    Status status = ReplaceMatches(*work->stretches(), replacement_, &marked, work);
    if (!status.ok()) return status;
    const bool wanted =
        scheme_ == Scheme::kAlways || (scheme_ == Scheme::kFirst && marked.from_start > 0);
    if (wanted && !marked.text.starts_with(replacement_)) PrependTo(replacement_, &marked, work);
    if (cut_ == Cut::kNone) {
      pieces->push_back(marked);
      return OkStatus();
    }
    FindCharacters(
        marked.text, [this](char32_t c) { return c == character_; }, work->stretches());
    KeepStretches(marked, *work->stretches(), SplitBehavior::kMergedWithNext, pieces);
    return OkStatus();
  }

 private:
  std::string replacement_;  // one character
  char32_t character_;
  Scheme scheme_;
  Cut cut_;
};

Status AddSplit(const JsonNode& node, Steps* steps) {
  Result<Regex> pattern = ReadPattern(node, "pattern");
  if (!pattern.ok()) return pattern.status();
  const Result<SplitBehavior> behavior = ReadBehavior(node);
  if (!behavior.ok()) return behavior.status();
  const Result<bool> invert = node.Bool("invert", false);
  if (!invert.ok()) return invert.status();
  const auto matches = *invert ? PatternSplit::Matches::kBetween : PatternSplit::Matches::kPattern;
  steps->push_back(std::make_shared<PatternSplit>(*std::move(pattern), *behavior, matches));
  return OkStatus();
}

Status AddByteLevel(const JsonNode& node, Steps* steps) {
  const Result<bool> prefix = node.Bool("add_prefix_space", true);
  if (!prefix.ok()) return prefix.status();
  const Result<bool> use_regex = node.Bool("use_regex", true);
  if (!use_regex.ok()) return use_regex.status();
  if (*prefix) steps->push_back(std::make_shared<PrefixSpace>());
  if (*use_regex) {
    Result<Regex> pattern = Regex::FromOniguruma(kGpt2Pattern);
    if (!pattern.ok()) return pattern.status();
    steps->push_back(std::make_shared<PatternSplit>(*std::move(pattern), SplitBehavior::kIsolated,
                                                    PatternSplit::Matches::kPattern));
  }
  steps->push_back(std::make_shared<SpellBytes>());
  return OkStatus();
}

Status AddMetaspace(const JsonNode& node, Steps* steps) {
  Result<std::string> replacement = MetaspaceReplacement(node);
  if (!replacement.ok()) return replacement.status();
  const Result<std::string> name = MetaspaceScheme(node);
  if (!name.ok()) return name.status();
  const Result<bool> split = node.Bool("split", true);
  if (!split.ok()) return split.status();
  const Metaspace::Scheme scheme = *name == "first"   ? Metaspace::Scheme::kFirst
                                   : *name == "never" ? Metaspace::Scheme::kNever
                                                      : Metaspace::Scheme::kAlways;
  const Metaspace::Cut cut = *split ? Metaspace::Cut::kAtSpaces : Metaspace::Cut::kNone;
  steps->push_back(std::make_shared<Metaspace>(*std::move(replacement), scheme, cut));
  return OkStatus();
}

Status AddDigits(const JsonNode& node, Steps* steps) {
  const Result<bool> each = node.Bool("individual_digits", false);
  if (!each.ok()) return each.status();
  steps->push_back(std::make_shared<CharacterSplit>(
      unicode::IsNumeric, *each ? SplitBehavior::kIsolated : SplitBehavior::kContiguous));
  return OkStatus();
}

Status AddPunctuation(const JsonNode& node, Steps* steps) {
  SplitBehavior behavior = SplitBehavior::kIsolated;
  if (!node.Member("behavior").IsNull()) {
    const Result<SplitBehavior> named = ReadBehavior(node);
    if (!named.ok()) return named.status();
    behavior = *named;
  }
  steps->push_back(std::make_shared<CharacterSplit>(unicode::IsPunctuation, behavior));
  return OkStatus();
}

Status AddStep(const JsonNode& node, const std::string& type, Steps* steps) {
  if (type == "Split") return AddSplit(node, steps);
  if (type == "ByteLevel") return AddByteLevel(node, steps);
  if (type == "Metaspace") return AddMetaspace(node, steps);
  if (type == "Digits") return AddDigits(node, steps);
  if (type == "Punctuation") return AddPunctuation(node, steps);
  if (type != "Whitespace" && type != "WhitespaceSplit") return UnsupportedType(node, type);
  steps->push_back(
      std::make_shared<CharacterSplit>(unicode::IsWhitespace, SplitBehavior::kRemoved));
  if (type == "Whitespace") {  // \w+|[^\w\s]+: runs of one kind
    steps->push_back(
        std::make_shared<CharacterSplit>(unicode::IsWordCharacter, SplitBehavior::kContiguous));
  }
  return OkStatus();
}

}  // namespace

Result<std::string> MetaspaceReplacement(const JsonNode& node) {
  Result<std::string> text = node.String("replacement");
  if (!text.ok()) return text;
  size_t end = 0;
  if (!text->empty()) NextCharacter(*text, &end);
  if (end == 0 || end != text->size()) {
    return node.Member("replacement").Corrupt("is not one character");
  }
  return text;
}

Result<std::string> MetaspaceScheme(const JsonNode& node) {
  std::string scheme = "always";
  const bool named = !node.Member("prepend_scheme").IsNull();
  if (named) {
    Result<std::string> name = node.String("prepend_scheme");
    if (!name.ok()) return name;
    scheme = *std::move(name);
    if (scheme != "first" && scheme != "never" && scheme != "always") {
      return Status(StatusCode::kUnsupported, fmt::format("{}.prepend_scheme: {} is not supported",
                                                          node.path(), Quoted(scheme)));
    }
  }
  const Result<bool> prefix = node.Bool("add_prefix_space", true);
  if (!prefix.ok()) return prefix.status();
  if (!*prefix) {
    if (named && scheme != "never") {
      return node.Corrupt("add_prefix_space contradicts prepend_scheme");
    }
    scheme = "never";
  }
  return scheme;
}

Result<PreTokenizer> PreTokenizer::FromJson(const JsonNode& node) {
  PreTokenizer result;
  if (node.IsNull()) return result;
  Status status = AddSteps(node, "pretokenizers", AddStep, &result.steps_);
  if (!status.ok()) return status;
  if (!result.steps_.empty() && result.steps_.back()->SpellsBytes()) {
    result.steps_.pop_back();
    result.word_text_ = WordText::kBytes;
  }
  return result;
}

Status PreTokenizer::Apply(PieceWork* work, std::vector<Piece>* pieces) const {
  std::vector<Piece> next;
  for (const std::shared_ptr<const PieceStep>& step : steps_) {
    next.clear();
    for (const Piece& piece : *pieces) {
      if (piece.added >= 0) {
        next.push_back(piece);
        continue;
      }
      Status status = step->Apply(piece, work, &next);
      if (status.ok()) status = work->CheckSize();
      if (!status.ok()) return status;
    }
    pieces->swap(next);
  }
  return OkStatus();
}

}  // namespace headway::tok
