// What Headway says beside its results: leveled lines to one sink of the process.
#ifndef HEADWAY_BASE_LOG_H_
#define HEADWAY_BASE_LOG_H_

#include <functional>
#include <string_view>

#include "headway/refusal.h"

namespace headway {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

const char* LogLevelName(LogLevel level);  // "debug", "info", "warning", "error"

// One line, without its newline. From any thread.
void Log(LogLevel level, std::string_view line);
void Log(LogLevel level, const Message& message);

using LogSink = std::function<void(LogLevel, std::string_view)>;

// Gets every line from now on, one at a time; must not log itself. An empty sink restores the
// default, which prints warnings and errors to stderr. Options in messages are said by `name`, or
// without it as EngineOptions calls them.
void SetLogSink(LogSink sink, Message::Namer name = {});

}  // namespace headway

#endif  // HEADWAY_BASE_LOG_H_
