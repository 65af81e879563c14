#include "engine/eval/tasks/word_lists.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "engine/eval/tasks/fit.h"
#include "engine/eval/tasks/words.h"

namespace headway::eval {
namespace {

constexpr int64_t kCommon = 10;         // words that are asked for
constexpr int64_t kCommonTimes = 30;    // at most, that each is there
constexpr int64_t kOftener = 10;        // than the others
constexpr int64_t kFrequent = 3;        // words that are asked for
constexpr double kZetaOf2 = 1.6449341;  // the sum of 1/k²

Status TooShort(const char* what) {
  return RefusedTask({"a longer ", Option::kPromptLength, " is needed for ", what});
}

// Indices of words, `times[i]` of i, in a random order.
std::vector<size_t> Deal(const std::vector<int64_t>& times, Random& random) {
  std::vector<size_t> order;
  for (size_t i = 0; i < times.size(); ++i) {
    order.insert(order.end(), static_cast<size_t>(times[i]), i);
  }
  Shuffle(random, &order);
  return order;
}

Words DrawWords(Random& random, size_t count) {
  return DrawDifferent(static_cast<int64_t>(count), [&] { return MadeUpWord(random); });
}

}  // namespace

Result<RetrievalLine> ListCommonWords(int64_t count, uint64_t seed) {
  // Half of a list that is too short for 30 times.
  const int64_t common_times = std::min(kCommonTimes, count / (2 * kCommon));
  const int64_t other_times = std::max<int64_t>(1, common_times / kOftener);
  if (common_times < 2) return TooShort("common-words");
  std::vector<int64_t> times(kCommon, common_times);
  for (int64_t left = count - kCommon * common_times; left > 0; left -= times.back()) {
    times.push_back(std::min(left, other_times));
  }
  Random random(seed);
  const Words words = DrawWords(random, times.size());
  RetrievalLine line;
  line.context = "A numbered list of words, of which some come up more often than the others:";
  int64_t number = 0;
  for (const size_t index : Deal(times, random)) {
    line.context += fmt::format("\n{}. {}", ++number, words[index]);
  }
  line.question = fmt::format("Which {} words come up most often in the list?", kCommon);
  line.answer.assign(words.begin(), words.begin() + kCommon);
  return line;
}

Result<RetrievalLine> ListFrequentWords(int64_t count, uint64_t seed) {
  std::vector<int64_t> times;
  for (int64_t left = count; left > 0; left -= times.back()) {
    const auto rank = static_cast<double>(times.size() + 1);
    const double share = static_cast<double>(count) / (kZetaOf2 * rank * rank);
    times.push_back(std::clamp<int64_t>(std::llround(share), 1, left));
  }
  if (std::ssize(times) <= kFrequent || times[kFrequent - 1] <= times[kFrequent]) {
    return TooShort("frequent-words");
  }
  Random random(seed);
  const Words words = DrawWords(random, times.size());
  RetrievalLine line;
  line.context = "A coded text, whose words come up more or less often:\n";
  for (const size_t index : Deal(times, random)) line.context += " " + words[index];
  line.question = fmt::format("Which {} words come up most often in the coded text?", kFrequent);
  line.answer.assign(words.begin(), words.begin() + kFrequent);
  return line;
}

}  // namespace headway::eval
