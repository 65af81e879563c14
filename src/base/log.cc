#include "base/log.h"

#include <cstdio>
#include <mutex>
#include <utility>

namespace headway {
namespace {

// The process has one stderr, so it has one sink. Leaked on purpose: destructors of static objects
// may still log.
struct Logger {
  std::mutex mutex;
  LogSink sink;
  Message::Namer name;
};

Logger& TheLogger() {
  static Logger* const logger = new Logger;
  return *logger;
}

}  // namespace

const char* LogLevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "?";
}

void Log(LogLevel level, std::string_view line) {
  Logger& logger = TheLogger();
  const std::lock_guard<std::mutex> lock(logger.mutex);
  if (logger.sink) {
    logger.sink(level, line);
  } else if (level >= LogLevel::kWarning) {
    std::fprintf(stderr, "headway: %s: %.*s\n", LogLevelName(level), static_cast<int>(line.size()),
                 line.data());
  }
}

void Log(LogLevel level, const Message& message) {
  Message::Namer name;
  {
    Logger& logger = TheLogger();
    const std::lock_guard<std::mutex> lock(logger.mutex);
    name = logger.name;
  }
  Log(level, name ? message.Text(name) : message.Text());
}

void SetLogSink(LogSink sink, Message::Namer name) {
  Logger& logger = TheLogger();
  const std::lock_guard<std::mutex> lock(logger.mutex);
  logger.sink = std::move(sink);
  logger.name = std::move(name);
}

}  // namespace headway
