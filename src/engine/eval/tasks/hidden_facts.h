// Documents of prose with facts hidden between its sentences.
#ifndef HEADWAY_ENGINE_EVAL_TASKS_HIDDEN_FACTS_H_
#define HEADWAY_ENGINE_EVAL_TASKS_HIDDEN_FACTS_H_

#include <cstdint>
#include <span>
#include <string>

#include "engine/eval/tasks/facts.h"
#include "engine/eval/tasks/fit.h"

namespace headway::eval {

// The draft with the first `count` pieces as its document.
Result<RetrievalLine> HideFacts(const Draft& draft, std::span<const std::string> pieces,
                                int64_t count, const TextMeasure& measure);

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_TASKS_HIDDEN_FACTS_H_
