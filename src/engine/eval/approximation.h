// What of an engine's options makes its output an approximation, and the same without it.
#ifndef HEADWAY_ENGINE_EVAL_APPROXIMATION_H_
#define HEADWAY_ENGINE_EVAL_APPROXIMATION_H_

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "headway/options.h"

namespace headway::eval {

// The same options with all that approximates left out. What is compared with them runs beside or
// behind it, so that they also have no session and no trace, which are files of one run.
EngineOptions ExactOptions(EngineOptions options);

struct Approximation {
  using Value = std::variant<std::string, int64_t, double>;
  std::string name;
  std::vector<std::pair<std::string, Value>> parameters;  // those that the options give
};

// Those that the options ask for. Empty: the output is exact.
std::vector<Approximation> ApproximationsOf(const EngineOptions& options);

}  // namespace headway::eval

#endif  // HEADWAY_ENGINE_EVAL_APPROXIMATION_H_
