// Exceptions of the libraries under Headway, such as std::bad_alloc, end as a Status. They are
// caught where a public function returns, at the bottom of every thread, and in main.
#ifndef HEADWAY_BASE_EXCEPTIONS_H_
#define HEADWAY_BASE_EXCEPTIONS_H_

#include <utility>

#include "headway/status.h"

namespace headway {

// What the exception that is being handled means. For a catch block alone.
Status StatusOfException() noexcept;

// Calls a function that returns a Status or a Result; what it throws becomes the Status.
template <typename Function>
auto Guarded(Function&& function) -> decltype(function()) {
  try {
    return std::forward<Function>(function)();
  } catch (...) {
    return StatusOfException();
  }
}

}  // namespace headway

#endif  // HEADWAY_BASE_EXCEPTIONS_H_
