#include "cli/console.h"

#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "cli/option_flags.h"

namespace headway::cli {
namespace {

const dev_t kNullDevice = makedev(1, 3);  // Linux's /dev/null, which ends at once

bool IsTerminal(std::FILE* file) {
  const int fd = fileno(file);
  return fd >= 0 && isatty(fd) == 1;
}

}  // namespace

Result<std::string> ReadStream(std::FILE* in, const std::string& name, size_t most) {
  const auto wrong = [](std::string what) {
    return Status(StatusCode::kInvalidArgument, std::move(what));
  };
  const std::string too_large = name + " has more than " + FormatBytes(static_cast<int64_t>(most));
  struct stat info = {};
  if (fstat(fileno(in), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return wrong(name + " is a directory; give a text file");
    const bool null = S_ISCHR(info.st_mode) && info.st_rdev == kNullDevice;
    if (S_ISBLK(info.st_mode) || (S_ISCHR(info.st_mode) && !null && !IsTerminal(in))) {
      return wrong(name + " is a device; give a text file");
    }
    if (S_ISREG(info.st_mode) && static_cast<uint64_t>(info.st_size) > most)
      return wrong(too_large);
  }
  std::string text;
  char buffer[1 << 16];
  while (true) {
    const size_t count = std::fread(buffer, 1, sizeof buffer, in);
    text.append(buffer, count);
    if (text.size() > most) return wrong(too_large);
    if (count == sizeof buffer) continue;
    if (std::ferror(in) != 0) {
      return Status(StatusCode::kIo, "cannot read " + name + ": " + std::strerror(errno));
    }
    if (std::feof(in) != 0) return text;
  }
}

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
  Say("headway: error: " + Worded(status));
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

}  // namespace headway::cli
