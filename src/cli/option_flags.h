// What the library calls options, the command line calls flags.
#ifndef HEADWAY_CLI_OPTION_FLAGS_H_
#define HEADWAY_CLI_OPTION_FLAGS_H_

#include <string>

#include "headway/refusal.h"
#include "headway/status.h"

namespace headway::cli {

// "--kv-memory"
std::string FlagOf(Option option);

// A message, or that of a status, with flags.
std::string Worded(const Message& message);
std::string Worded(const Status& status);

}  // namespace headway::cli

#endif  // HEADWAY_CLI_OPTION_FLAGS_H_
