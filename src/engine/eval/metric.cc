#include "engine/eval/metric.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "base/check.h"
#include "engine/eval/metric_text.h"

namespace headway::eval {
namespace {

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool IsLetter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

double Share(int64_t part, size_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

double ContainsShare(const Expected& expected, std::string_view output) {
  int64_t found = 0;
  for (const std::string& answer : expected.answers) found += Contains(output, answer) ? 1 : 0;
  return Share(found, expected.answers.size());
}

double ContainsFoldedShare(const Expected& expected, std::string_view output) {
  const std::string folded = LowerCase(output);
  int64_t found = 0;
  for (const std::string& answer : expected.answers) {
    found += Contains(folded, LowerCase(answer)) ? 1 : 0;
  }
  return Share(found, expected.answers.size());
}

double ContainsAny(const Expected& expected, std::string_view output) {
  return ContainsFoldedShare(expected, output) > 0.0 ? 1.0 : 0.0;
}

// The best that an answer scores by itself.
template <double (*kOne)(std::string_view output, std::string_view answer)>
double Best(const Expected& expected, std::string_view output) {
  double best = 0.0;
  for (const std::string& answer : expected.answers) best = std::max(best, kOne(output, answer));
  return best;
}

double F1(std::string_view output, std::string_view answer) {
  return OverlapF1(AnswerWords(output), AnswerWords(answer));
}

double F1Chinese(std::string_view output, std::string_view answer) {
  return OverlapF1(AnswerCharacters(output), AnswerCharacters(answer));
}

// Twice the common units over those of both: an F1, and the ratio of indel similarity.
double SubsequenceRatio(const Units& a, const Units& b) {
  return Share(2 * CommonSubsequence(a, b), a.size() + b.size());
}

double Rouge(std::string_view output, std::string_view answer) {
  return SubsequenceRatio(RougeWords(output), RougeWords(answer));
}

double RougeChinese(std::string_view output, std::string_view answer) {
  return SubsequenceRatio(AnswerCharacters(output), AnswerCharacters(answer));
}

double NumberShare(std::string_view output, std::string_view answer) {
  const Units numbers = Numbers(output), wanted = Numbers(answer);
  if (wanted.empty()) return 0.0;
  return Share(std::count(numbers.begin(), numbers.end(), wanted.front()), numbers.size());
}

// The first line that is neither a comment nor the fence of a block of code.
std::string_view FirstCodeLine(std::string_view output) {
  while (output.starts_with('\n')) output.remove_prefix(1);
  for (size_t at = 0; at <= output.size();) {
    const size_t end = std::min(output.find('\n', at), output.size());
    const std::string_view line = output.substr(at, end - at);
    if (!Contains(line, "`") && !Contains(line, "#") && !Contains(line, "//")) return line;
    at = end + 1;
  }
  return "";
}

double Code(std::string_view output, std::string_view answer) {
  const double ratio = SubsequenceRatio(Characters(FirstCodeLine(output)), Characters(answer));
  return std::round(100.0 * ratio) / 100.0;
}

// Words divided by white space and by the punctuation in `dividers`.
Units WordsBetween(std::string_view text, std::string_view dividers) {
  Units words(1);
  for (const char c : text) {
    if (Trimmed({&c, 1}).empty() || Contains(dividers, {&c, 1})) {
      if (!words.back().empty()) words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

double Word(std::string_view output, std::string_view answer) {
  const Units words = WordsBetween(output, ":\"'.,?!{}");
  return std::find(words.begin(), words.end(), answer) != words.end() ? 1.0 : 0.0;
}

double FirstInteger(std::string_view output, std::string_view answer) {
  const size_t begin = output.find_first_of("0123456789");
  if (begin == std::string_view::npos) return 0.0;
  const size_t end = output.find_first_not_of("0123456789", begin);
  return output.substr(begin, end == std::string_view::npos ? end : end - begin) == answer ? 1.0
                                                                                           : 0.0;
}

// Digits, and decimals where digits follow the point.
std::optional<double> FirstNumberOf(std::string_view text) {
  const size_t begin = text.find_first_of("0123456789");
  if (begin == std::string_view::npos) return std::nullopt;
  size_t end = begin;
  while (end < text.size() && IsDigit(text[end])) ++end;
  if (end + 1 < text.size() && text[end] == '.' && IsDigit(text[end + 1])) {
    for (++end; end < text.size() && IsDigit(text[end]);) ++end;
  }
  double value = 0.0;
  const auto read = std::from_chars(text.data() + begin, text.data() + end, value);
  if (read.ec != std::errc()) return std::nullopt;
  return value;
}

// ∞Bench compares whole parts where the answer is a whole number.
double FirstNumber(std::string_view output, std::string_view answer) {
  const std::optional<double> got = FirstNumberOf(output), wanted = FirstNumberOf(answer);
  if (!got.has_value() || !wanted.has_value()) return 0.0;
  const double value = Contains(answer, ".") ? *got : std::trunc(*got);
  return value == *wanted ? 1.0 : 0.0;
}

double LastInteger(std::string_view output, std::string_view answer) {
  const Units words = WordsBetween(output, ".`'\":");
  return !words.empty() && words.back() == Trimmed(answer) ? 1.0 : 0.0;
}

double LeadingNumbers(const Expected& expected, std::string_view output) {
  const Units numbers = Numbers(output);
  size_t same = 0;
  for (const std::string& answer : expected.answers) {
    const Units wanted = Numbers(answer);
    if (same == numbers.size() || wanted.empty() || numbers[same] != wanted.front()) break;
    ++same;
  }
  return Share(static_cast<int64_t>(same), expected.answers.size());
}

// A label that is part of the right one does not count as named beside it.
double ClassScore(const Expected& expected, std::string_view output) {
  double best = 0.0;
  for (const std::string& answer : expected.answers) {
    int64_t named = 0;
    bool right = false;
    for (const std::string& label : expected.classes) {
      if (!Contains(output, label)) continue;
      right = right || label == answer;
      named += label == answer || !Contains(answer, label) ? 1 : 0;
    }
    if (right) best = std::max(best, 1.0 / static_cast<double>(named));
  }
  return best;
}

double Choice(const Expected& expected, std::string_view output) {
  const char letter = ChosenLetter(output, expected.classes);
  return letter != 0 && expected.answers.front() == std::string(1, letter) ? 1.0 : 0.0;
}

struct Row {
  Metric metric;
  const char* name;
  double (*score)(const Expected& expected, std::string_view output);
};

constexpr Row kRows[] = {
    {Metric::kContains, "contains", ContainsShare},
    {Metric::kContainsFolded, "contains-folded", ContainsFoldedShare},
    {Metric::kContainsAny, "contains-any", ContainsAny},
    {Metric::kF1, "qa-f1", Best<F1>},
    {Metric::kF1Chinese, "qa-f1-zh", Best<F1Chinese>},
    {Metric::kRouge, "rouge-l", Best<Rouge>},
    {Metric::kRougeChinese, "rouge-l-zh", Best<RougeChinese>},
    {Metric::kNumberShare, "number-share", Best<NumberShare>},
    {Metric::kCode, "code-similarity", Best<Code>},
    {Metric::kWord, "word", Best<Word>},
    {Metric::kFirstInteger, "first-integer", Best<FirstInteger>},
    {Metric::kFirstNumber, "first-number", Best<FirstNumber>},
    {Metric::kLastInteger, "last-integer", Best<LastInteger>},
    {Metric::kLeadingNumbers, "leading-numbers", LeadingNumbers},
    {Metric::kClass, "classification", ClassScore},
    {Metric::kChoice, "choice", Choice},
};

const Row& RowOf(Metric metric) {
  const Row* row = std::find_if(std::begin(kRows), std::end(kRows),
                                [&](const Row& r) { return r.metric == metric; });
  HEADWAY_CHECK(row != std::end(kRows));
  return *row;
}

// The letter of one of `count` options that stands at `at`, alone; 0 where none does.
char LetterAt(std::string_view text, size_t at, size_t count) {
  if (at >= text.size() || text[at] < 'A') return 0;
  if (static_cast<size_t>(text[at] - 'A') >= count) return 0;
  const bool alone =
      (at == 0 || !IsLetter(text[at - 1])) && (at + 1 == text.size() || !IsLetter(text[at + 1]));
  return alone ? text[at] : 0;
}

}  // namespace

const char* MetricName(Metric metric) { return RowOf(metric).name; }

std::optional<Metric> MetricOf(std::string_view name) {
  for (const Row& row : kRows) {
    if (name == row.name) return row.metric;
  }
  return std::nullopt;
}

std::string MetricNames() {
  std::string names;
  for (const Row& row : kRows) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

double ScoreOutput(const Expected& expected, std::string_view output) {
  if (expected.part == OutputPart::kFirstLine) {
    while (output.starts_with('\n')) output.remove_prefix(1);
    output = output.substr(0, output.find('\n'));
  }
  return RowOf(expected.metric).score(expected, output);
}

// From what is said most plainly to what is only mentioned: "B", "(B)" or "B. ..." at the
// beginning; what follows "answer is" and the like; the one option whose text is there; the first
// letter that stands alone.
char ChosenLetter(std::string_view output, const std::vector<std::string>& options) {
  const std::string_view text = Trimmed(output);
  const size_t first = text.starts_with('(') ? 1 : 0;
  if (const char letter = LetterAt(text, first, options.size()); letter != 0) {
    if (first + 1 == text.size() || Contains(".):,\n", text.substr(first + 1, 1))) return letter;
  }
  const std::string lower = LowerCase(text);
  for (const std::string_view lead : {"answer is", "answer:", "option is"}) {
    const size_t found = lower.find(lead);
    if (found == std::string::npos) continue;
    size_t at = std::min(lower.find_first_not_of(" :*\"'(\n", found + lead.size()), lower.size());
    if (lower.substr(at).starts_with("option ")) at += 7;
    if (const char letter = LetterAt(text, at, options.size()); letter != 0) return letter;
  }
  char named = 0;
  int count = 0;
  for (size_t i = 0; i < options.size(); ++i) {
    const std::string option = LowerCase(Trimmed(options[i]));
    if (option.empty() || !Contains(lower, option)) continue;
    named = static_cast<char>('A' + i);
    ++count;
  }
  if (count == 1) return named;
  for (size_t at = 0; at < text.size(); ++at) {
    if (const char letter = LetterAt(text, at, options.size()); letter != 0) return letter;
  }
  return 0;
}

}  // namespace headway::eval
