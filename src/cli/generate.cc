#include "cli/generate.h"
#include "cli/option_flags.h"

#include <chrono>

#include <utility>

namespace headway::cli {

Result<Generation> GenerateShown(Context& context, const Request& request, const GenerateView& view,
                                 const EngineOptions& limits, const InterruptGuard& interrupt,
                                 Console& console) {
  ProgressMeter meter(console, limits, view.progress);
  bool written = true, started = false;
  Hooks hooks;
  hooks.cancel = interrupt.flag();
  if (view.stream_text) {
    hooks.on_text = [&](int, std::string_view text) {
      started = true;
      written = console.Write(text);
      return written;
    };
  }
  using Clock = std::chrono::steady_clock;
  const std::chrono::seconds save_every(view.save_every);
  Clock::time_point saved = Clock::now();
  bool saves = true;
  hooks.on_progress = [&](const Progress& progress) {
    if (saves && Clock::now() - saved >= save_every) {
      if (Status s = context.SaveSession(view.note); !s.ok()) {
        console.Warn("the session could not be saved on the way: " + Worded(s));
        saves = false;
      }
      saved = Clock::now();
    }
    // Text that streams is progress enough, and a status line on its terminal would wipe it away.
    if (started || (view.stream_text && progress.phase == Progress::Phase::kDecode)) return;
    meter.Show(progress);
  };
  Result<std::vector<Generation>> made = context.Generate({&request, 1}, hooks);
  console.ClearStatusLine();
  if (!made.ok()) return made.status();
  if (!written) {
    return Status(StatusCode::kIo, "cannot write to standard output; the text was cut there");
  }
  return std::move(made->front());
}

void SayNotices(const Generation& generation, Console& console) {
  for (const std::string& notice : generation.notices) console.Say("headway: note: " + notice);
  if (generation.finish == FinishReason::kContextFull) {
    console.Warn("the context is full, so the text ends here; raise --ctx-size for more");
  }
}

}  // namespace headway::cli
