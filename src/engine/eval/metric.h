// How an output is scored against what was expected: the metrics of RULER, LongBench, ∞Bench and
// SCBench, each a number from 0 to 1. Chinese is compared by characters, not by words, which takes
// no word segmenter: ∞Bench does the same, LongBench's own scores come from jieba's words.
#ifndef HEADWAY_ENGINE_EVAL_METRIC_H_
#define HEADWAY_ENGINE_EVAL_METRIC_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headway::eval {

enum class Metric {
  kContains,        // share of the answers that appear as they are written
  kContainsFolded,  // share that appear, in upper or lower case: RULER's string match
  kContainsAny,     // 1 where one of them appears, likewise: RULER's for questions
  // The best over the answers:
  kF1,            // F1 of words, normalised as SQuAD does
  kF1Chinese,     // F1 of characters
  kRouge,         // ROUGE-L: F1 of the longest common subsequence of words
  kRougeChinese,  // the same of characters
  kNumberShare,   // share of the output's numbers that are the answer's first number
  kCode,          // similarity of the first line of code, in whole percents
  kWord,          // 1 where the answer is a word of the output
  kFirstInteger,  // 1 where the first number is the answer
  kFirstNumber,   // the same, with decimals
  kLastInteger,   // 1 where the last word is the answer
  // Others:
  kLeadingNumbers,  // share of the answers, which are numbers, that the output begins with
  kClass,           // 1 / labels named, where the right one is among them
  kChoice,          // 1 where the letter chosen is the first answer
};

const char* MetricName(Metric metric);  // "contains", "qa-f1", ...
std::optional<Metric> MetricOf(std::string_view name);
std::string MetricNames();  // divided by commas

enum class OutputPart { kWhole, kFirstLine };

struct Expected {
  Metric metric = Metric::kContains;
  std::vector<std::string> answers;  // at least one
  std::vector<std::string> classes;  // all labels of a classification; the texts of choices A, B...
  OutputPart part = OutputPart::kWhole;
};

double ScoreOutput(const Expected& expected, std::string_view output);

// The letter that an output chooses among as many options; 0 where it chooses none.
char ChosenLetter(std::string_view output, const std::vector<std::string>& options);

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_METRIC_H_
