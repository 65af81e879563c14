// RULER's tasks of counting: which words of a long list come up most often.
#ifndef HEADWAY_ENGINE_EVAL_TASKS_WORD_LISTS_H_
#define HEADWAY_ENGINE_EVAL_TASKS_WORD_LISTS_H_

#include <cstdint>

#include "engine/eval/retrieval.h"
#include "headway/status.h"

namespace headway::eval {

// A numbered list of `count` made-up words. Ten of them are there up to 30 times each, the others a
// tenth as often; the ten are asked for.
Result<RetrievalLine> ListCommonWords(int64_t count, uint64_t seed);

// A text of `count` made-up words, the k-th of which is there in proportion to 1/k²; the first
// three are asked for.
Result<RetrievalLine> ListFrequentWords(int64_t count, uint64_t seed);

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_TASKS_WORD_LISTS_H_
