// What `run` and `chat` share: one generation shown as it is made.
#ifndef HEADWAY_CLI_GENERATE_H_
#define HEADWAY_CLI_GENERATE_H_

#include <cstdint>
#include <string>

#include "cli/console.h"
#include "cli/flags.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "headway/context.h"
#include "headway/options.h"

namespace headway::cli {

inline constexpr int64_t kSaveEvery = 60;

struct GenerateView {
  bool stream_text = true;  // text to `out` as it comes
  ProgressMeter::Shown progress = ProgressMeter::Shown::kYes;
  // Seconds between saves of the session, where there is one, so that a run that is killed loses no
  // more. With this note.
  int64_t save_every = kSaveEvery;
  std::string note = {};
};

// Runs one request in slot 0. kIo when the text could not be written; a save that fails is a
// warning.
Result<Generation> GenerateShown(Context& context, const Request& request, const GenerateView& view,
                                 const EngineOptions& limits, const InterruptGuard& interrupt,
                                 Console& console);

// What the user must know about how it went: notices, and an end that was not asked for.
void SayNotices(const Generation& generation, Console& console);

}  // namespace headway::cli

#endif  // HEADWAY_CLI_GENERATE_H_
