// Statuses of settings that cannot be: what an error of a request says, and to which options.
#ifndef HEADWAY_ENGINE_REFUSED_H_
#define HEADWAY_ENGINE_REFUSED_H_

#include <utility>

#include "headway/refusal.h"
#include "headway/status.h"

namespace headway {

// The settings contradict one another, or the model, or are out of range.
inline Status Wrong(Message message) {
  return Status(StatusCode::kInvalidArgument, Refusal{std::move(message)});
}

// They make sense, and no path does it.
inline Status Unsupported(Message message) {
  return Status(StatusCode::kUnsupported, Refusal{std::move(message)});
}

}  // namespace headway

#endif  // HEADWAY_ENGINE_REFUSED_H_
