// Prints --help and --help-all: usage, options in groups with their defaults, examples; wrapped to
// 80 columns. --help has what a first day needs, and no environment variables; a command whose
// options are few shows all at once.
#ifndef HEADWAY_CLI_HELP_FORMATTER_H_
#define HEADWAY_CLI_HELP_FORMATTER_H_

#include <memory>
#include <string>
#include <string_view>

namespace CLI {
class FormatterBase;
}  // namespace CLI

namespace headway::cli {

// `text` in lines of at most `width` bytes where its words allow it; each but the first begins with
// `indent` blanks. Newlines in `text` stay.
std::string Wrap(std::string_view text, size_t width, size_t indent);

// Of the options that ask for help.
inline constexpr const char* kHelpGroup = "Help";

// The name of a group for options of `group` that --help leaves to --help-all, where they stand
// among the others.
std::string More(const std::string& group);

std::shared_ptr<CLI::FormatterBase> NewHelpFormatter();

}  // namespace headway::cli

#endif  // HEADWAY_CLI_HELP_FORMATTER_H_
