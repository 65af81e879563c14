#include "cli/console.h"

#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/bytes.h"

namespace headway::cli {
namespace {

bool IsTerminal(std::FILE* file) {
  const int fd = fileno(file);
  return fd >= 0 && isatty(fd) == 1;
}

}  // namespace

Console::Console(std::FILE* in, std::FILE* out, std::FILE* err)
    : in_(in),
      out_(out),
      err_(err),
      in_is_terminal_(IsTerminal(in)),
      out_is_terminal_(IsTerminal(out)),
      err_is_terminal_(IsTerminal(err)) {}

int Console::columns() const {
  winsize size = {};
  if (!err_is_terminal_ || ioctl(fileno(err_), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) {
    return 80;
  }
  return size.ws_col;
}

void Console::ClearLocked() {
  if (!status_shown_) return;
  std::fputs("\r\x1b[K", err_);  // to the line's beginning, erase what follows
  std::fflush(err_);
  status_shown_ = false;
}

bool Console::Write(std::string_view text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ClearLocked();
  const bool written = std::fwrite(text.data(), 1, text.size(), out_) == text.size();
  return std::fflush(out_) == 0 && written;
}

int Console::WriteResult(std::string_view text) {
  if (Write(text)) return kExitDone;
  return Fail(Status(StatusCode::kIo, "cannot write to standard output"));
}

void Console::Say(std::string_view line) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ClearLocked();
  std::fwrite(line.data(), 1, line.size(), err_);
  std::fputc('\n', err_);
  std::fflush(err_);
}

void Console::Warn(std::string_view line) { Say("headway: warning: " + std::string(line)); }

int Console::Fail(const Status& status) {
  Say("headway: error: " + status.message());
  return kExitFailed;
}

void Console::SetStatusLine(std::string_view line) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!err_is_terminal_) return;
  std::fputc('\r', err_);
  std::fwrite(line.data(), 1, line.size(), err_);
  std::fputs("\x1b[K", err_);
  std::fflush(err_);
  status_shown_ = true;
}

void Console::ClearStatusLine() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ClearLocked();
}

bool Console::ReadLine(std::string* line) {
  char* buffer = nullptr;
  size_t capacity = 0;
  const ssize_t length = getline(&buffer, &capacity, in_);
  const bool read = length >= 0;
  if (read) {
    line->assign(buffer, static_cast<size_t>(length));
    if (line->ends_with('\n')) line->pop_back();
    if (line->ends_with('\r')) line->pop_back();
  }
  free(buffer);
  return read;
}

Result<std::string> Console::ReadAll(size_t most) {
  std::string text;
  char buffer[1 << 16];
  while (true) {
    const size_t count = std::fread(buffer, 1, sizeof buffer, in_);
    text.append(buffer, count);
    if (text.size() > most) {
      return Status(StatusCode::kInvalidArgument,
                    "standard input has more than " + FormatBytes(static_cast<int64_t>(most)));
    }
    if (count == sizeof buffer) continue;
    if (std::ferror(in_) != 0) {
      return Status(StatusCode::kIo,
                    std::string("cannot read standard input: ") + std::strerror(errno));
    }
    if (std::feof(in_) != 0) return text;
  }
}

}  // namespace headway::cli
