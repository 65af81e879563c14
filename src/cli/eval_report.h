// What eval commands print: approximations, and scores of questions with those of groups of them.
#ifndef HEADWAY_CLI_EVAL_REPORT_H_
#define HEADWAY_CLI_EVAL_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cli/report.h"
#include "engine/eval/approximation.h"
#include "engine/eval/question.h"

namespace headway::cli {

Json ApproximationsJson(const std::vector<eval::Approximation>& approximations);
// "kv-encoding (encoding int8), streaming-heads (pattern heads.tsv, sparsity 0.5)"
std::string ApproximationsText(const std::vector<eval::Approximation>& approximations);

// The questions of one command, answered.
struct Answers {
  std::vector<eval::Answered> results;
  std::vector<eval::Answered> exact;  // the same questions without what approximates, or empty
  std::vector<eval::Approximation> approximations;
  eval::Grouping grouping = eval::Grouping::kTogether;
  double seconds = 0.0;
  TierUse tiers;
};
std::string AnswersJson(const Answers& answers);
// A line for each question, a table of the groups where there are several, and the whole.
std::string AnswersText(const Answers& answers);

}  // namespace headway::cli

#endif  // HEADWAY_CLI_EVAL_REPORT_H_
