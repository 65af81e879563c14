// Texts as metrics compare them: cut in words or characters, what does not count left out.
#ifndef HEADWAY_ENGINE_EVAL_METRIC_TEXT_H_
#define HEADWAY_ENGINE_EVAL_METRIC_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headway::eval {

// ASCII letters in lower case; others stay as they are.
std::string LowerCase(std::string_view text);
std::string_view Trimmed(std::string_view text);  // without white space (ASCII) at its ends

// What a comparison counts: words or characters.
using Units = std::vector<std::string>;

// Words of a short answer as SQuAD normalises them: lower case, without ASCII punctuation and
// without the articles a, an, the.
Units AnswerWords(std::string_view text);
// Characters of a short answer: lower case, without white space, ASCII and Chinese punctuation.
Units AnswerCharacters(std::string_view text);
// Runs of letters and digits in lower case, as ROUGE counts them. What is not ASCII is a letter.
Units RougeWords(std::string_view text);
Units Characters(std::string_view text);  // as they are
Units Numbers(std::string_view text);     // runs of digits, without leading zeros

// The harmonic mean of precision and recall of the units, each counted as often as it is there. 0
// where nothing is common.
double OverlapF1(const Units& output, const Units& answer);
// Units of the longest common subsequence.
int64_t CommonSubsequence(const Units& a, const Units& b);

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_METRIC_TEXT_H_
