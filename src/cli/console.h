// Console: where a command reads and writes. Results go to `out`; all else (progress, warnings,
// summaries, errors) to `err`, where a terminal shows one status line that is replaced in place.
#ifndef HEADWAY_CLI_CONSOLE_H_
#define HEADWAY_CLI_CONSOLE_H_

#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>

#include "headway/status.h"

namespace headway::cli {

// What main returns.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

// All that is left of a file, a pipe or a terminal, at most `most` bytes. kInvalidArgument when
// there is more or it is a directory or a device, some of which never end. `name` is for messages.
Result<std::string> ReadStream(std::FILE* in, const std::string& name, size_t most);

class Console {
 public:
  Console(std::FILE* in, std::FILE* out, std::FILE* err);
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  bool in_is_terminal() const { return in_is_terminal_; }
  bool out_is_terminal() const { return out_is_terminal_; }
  bool err_is_terminal() const { return err_is_terminal_; }
  int columns() const;  // of the terminal that shows `err`; 80 where there is none

  // Flushed at once. False when nobody reads `out` any more, or its disk is full.
  bool Write(std::string_view text);
  // A command's whole result; returns the exit status.
  int WriteResult(std::string_view text);
  // A line on `err`; the newline is added.
  void Say(std::string_view line);
  void Warn(std::string_view line);  // "headway: warning: ..."
  // "headway: error: ..."; returns kExitFailed, so that a command can `return console.Fail(s)`.
  int Fail(const Status& status);

  // The status line. Anything else written takes it away first. Only for terminals.
  void SetStatusLine(std::string_view line);
  void ClearStatusLine();

  // The next line of `in`, without its newline. False at the end of it, or when a signal came.
  bool ReadLine(std::string* line);
  Result<std::string> ReadAll(size_t most) { return ReadStream(in_, "standard input", most); }

 private:
  void ClearLocked();

  std::FILE* const in_;
  std::FILE* const out_;
  std::FILE* const err_;
  bool in_is_terminal_ = false;
  bool out_is_terminal_ = false;
  bool err_is_terminal_ = false;
  std::mutex mutex_;  // lines come from any thread, through the log
  bool status_shown_ = false;
};

}  // namespace headway::cli

#endif  // HEADWAY_CLI_CONSOLE_H_
