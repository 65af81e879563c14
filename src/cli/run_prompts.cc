#include "cli/run_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "cli/interrupt.h"
#include "cli/progress.h"
#include "engine/eval/json_lines.h"

namespace headway::cli {
namespace {

// Of the time of the best number of prompts: more of them take more memory.
constexpr double kWorthItsMemory = 0.95;

Result<PromptLine> ParsePromptLine(const Json& json, const std::string& where) {
  const auto wrong = [&](const std::string& what) {
    return Status(StatusCode::kInvalidArgument, where + what);
  };
  if (!json.is_string() && !json.is_object()) {
    return wrong(" is neither a JSON string nor an object");
  }
  PromptLine line;
  if (json.is_string()) {
    line.text = json.get<std::string>();
  } else {
    if (const auto others = eval::OtherKeys(json, {"prompt", "id", "max_tokens"});
        !others.empty()) {
      return wrong(": there is no key " + others[0] +
                   "; there are \"prompt\", \"id\" and \"max_tokens\"");
    }
    const auto prompt = json.find("prompt");
    if (prompt == json.end() || !prompt->is_string()) return wrong(": \"prompt\" must be a string");
    line.text = prompt->get<std::string>();
    if (const auto id = json.find("id"); id != json.end()) {
      // Lists within lists may be nested as deep as the file is long.
      if (id->is_structured()) return wrong(": \"id\" must be a string or a number");
      line.id = *id;
    }
    if (const auto most = json.find("max_tokens"); most != json.end()) {
      if (!most->is_number_unsigned() || most->get<uint64_t>() > uint64_t{kMaxCount}) {
        return wrong(
            fmt::format(": \"max_tokens\" must be a whole number from 0 to {}", kMaxCount));
      }
      line.max_tokens = most->get<int64_t>();
    }
  }
  if (Status s = CheckText(line.text, where + ": the prompt"); !s.ok()) return s;
  return line;
}

Json GenerationJson(int64_t index, const PromptLine& line, const Generation& made) {
  Json json = {{"index", index}};
  if (!line.id.is_null()) json["id"] = line.id;
  json["text"] = made.text;
  json["tokens"] = made.tokens;
  json["finish"] = FinishReasonName(made.finish);
  json["prompt_tokens"] = made.prompt_tokens;
  if (!made.notices.empty()) json["notices"] = made.notices;
  return json;
}

// Prints results in the order of the prompts, each as soon as those before it are there.
class InOrder {
 public:
  InOrder(const std::vector<PromptLine>& lines, Console& console)
      : lines_(lines), console_(console), ready_(lines.size()) {}

  void Add(size_t index, const Generation& made) {
    ready_[index] = Dump(GenerationJson(static_cast<int64_t>(index), lines_[index], made));
    for (; next_ < ready_.size() && !ready_[next_].empty(); ++next_) {
      written_ = written_ && console_.Write(ready_[next_]);
    }
  }
  bool written() const { return written_; }

 private:
  const std::vector<PromptLine>& lines_;
  Console& console_;
  std::vector<std::string> ready_;
  size_t next_ = 0;
  bool written_ = true;
};

Result<std::vector<Request>> RequestsOf(const RunFlags& flags, const Engine& engine,
                                        const std::vector<PromptLine>& lines) {
  std::vector<Request> requests;
  for (const PromptLine& line : lines) {
    PromptText text{line.text, {}, flags.prompt.template_options};
    if (!flags.prompt.system.empty()) text.messages.push_back({"system", flags.prompt.system});
    if (flags.prompt.chat) text.messages.push_back({"user", line.text});
    Result<std::vector<TokenId>> prompt = EncodePrompt(engine, text);
    if (!prompt.ok()) return prompt.status();
    Request request = RequestOf(flags, std::move(*prompt));
    request.max_tokens = line.max_tokens.value_or(flags.max_tokens);
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace

Result<std::vector<PromptLine>> ParsePromptLines(std::string_view jsonl, const std::string& name) {
  std::vector<PromptLine> lines;
  const auto take = [&lines](const Json& json, const std::string& where) {
    Result<PromptLine> line = ParsePromptLine(json, where);
    if (line.ok()) lines.push_back(std::move(*line));
    return line.status();
  };
  if (Status s = eval::ForEachJsonLine(jsonl, name, take); !s.ok()) return s;
  if (lines.empty()) return Status(StatusCode::kInvalidArgument, name + " has no prompts");
  return lines;
}

Workload WorkloadOf(const std::vector<PromptSize>& sizes, int64_t context, int64_t parallel) {
  Workload workload;
  for (const PromptSize& size : sizes) {
    workload.lengths.push_back(context > 0 ? context
                                           : std::max<int64_t>(size.prompt + size.generated, 1));
  }
  if (static_cast<int64_t>(sizes.size()) > parallel) {
    const int64_t longest = *std::max_element(workload.lengths.begin(), workload.lengths.end());
    workload.lengths.assign(static_cast<size_t>(parallel), longest);
  }
  return workload;
}

int64_t FastestParallel(const std::vector<PromptSize>& sizes, int64_t context, int64_t ram_bytes,
                        const std::function<Result<PlanReport>(const Workload&)>& plan_of) {
  const auto all = static_cast<int64_t>(sizes.size());
  double generated = 0.0;
  for (const PromptSize& size : sizes) generated += static_cast<double>(size.generated);
  std::vector<int64_t> numbers;
  const int64_t most = std::min(all, kMostParallel);
  for (int64_t n = 1; n < most; n *= 2) numbers.push_back(n);
  numbers.push_back(most);
  int64_t fastest = 1;
  double least = std::numeric_limits<double>::max();
  for (size_t i = 0; i < numbers.size(); ++i) {
    const int64_t parallel = numbers[i];
    const Result<PlanReport> plan = plan_of(WorkloadOf(sizes, context, parallel));
    if (!plan.ok() || (parallel > 1 && !MemoryWarning(*plan, ram_bytes).empty())) {
      // Larger numbers do not fit either, but all may: each is then as long as its own.
      if (i + 2 < numbers.size()) i = numbers.size() - 2;
      continue;
    }
    const Prediction& prediction = plan->prediction;
    if (prediction.machine.empty()) {
      if (parallel > kParallelUnknown) break;
      fastest = parallel;
      continue;
    }
    // As if all were alike and the last round were full.
    const double rounds = static_cast<double>(all) / static_cast<double>(parallel);
    const double steps = generated / static_cast<double>(all);
    const double seconds =
        rounds * (prediction.prefill.seconds + steps * prediction.decode.seconds);
    if (seconds > least * kWorthItsMemory) continue;
    least = seconds;
    fastest = parallel;
  }
  return fastest;
}

int RunPrompts(const CLI::App& app, RunFlags flags, Console& console) {
  Result<std::string> text = ReadText(flags.prompts, console);
  if (!text.ok()) return console.Fail(text.status());
  Result<std::vector<PromptLine>> lines =
      ParsePromptLines(*text, flags.prompts == "-" ? "standard input" : flags.prompts);
  if (!lines.ok()) return console.Fail(lines.status());
  int64_t most = flags.max_tokens;
  for (const PromptLine& line : *lines) most = std::max(most, line.max_tokens.value_or(0));
  MakeRoomFor(most, &flags.model.engine);
  Result<std::unique_ptr<Engine>> engine = Engine::Open(flags.model.model, flags.model.engine);
  if (!engine.ok()) return console.Fail(engine.status());
  if (Status s = TakeSamplingDefaults(app, (*engine)->info(), &flags.sampling, console); !s.ok()) {
    return console.Fail(s);
  }
  Result<std::vector<Request>> requests = RequestsOf(flags, **engine, *lines);
  if (!requests.ok()) return console.Fail(requests.status());
  std::vector<PromptSize> sizes;
  for (const Request& request : *requests) {
    sizes.push_back({static_cast<int64_t>(request.prompt.size()), request.max_tokens});
  }
  int64_t parallel = flags.parallel;
  if (parallel == 0) {
    // Unasked not all of what others want a part of, too.
    parallel = FastestParallel(sizes, flags.context, RamBytes() / 4 * 3,
                               [&](const Workload& workload) { return (*engine)->Plan(workload); });
  }
  const Workload workload = WorkloadOf(sizes, flags.context, parallel);
  const int64_t longest = *std::max_element(workload.lengths.begin(), workload.lengths.end());
  Result<std::unique_ptr<Context>> context = (*engine)->NewContext(workload);
  if (!context.ok()) return console.Fail(context.status());
  WarnOfLength((*engine)->info(), longest, (*context)->plan(), flags.model.engine, console);
  WarnOfMemory((*context)->plan(), console);
  SayCut((*context)->plan(), console);
  const InterruptGuard interrupt;
  InOrder results(*lines, console);
  ProgressMeter meter(console, flags.model.engine, flags.output.progress());
  Hooks hooks;
  hooks.cancel = interrupt.flag();
  hooks.on_text = [&](int, std::string_view) { return results.written(); };
  hooks.on_done = [&](int request, const Generation& made) {
    if (made.finish != FinishReason::kCancelled) results.Add(static_cast<size_t>(request), made);
  };
  hooks.on_progress = [&](const Progress& progress) { meter.Show(progress); };
  Result<std::vector<Generation>> made = (*context)->Generate(*requests, hooks);
  console.ClearStatusLine();
  if (!made.ok()) return console.Fail(made.status());
  if (!results.written()) {
    return console.Fail(Status(StatusCode::kIo, "cannot write to standard output"));
  }
  const Timings timings = (*context)->timings();
  console.Say(fmt::format(
      "prompts   {}, {} at a time: {} tokens read at {:.1f} tok/s, {} made at {:.1f} tok/s",
      requests->size(), workload.lengths.size(), FormatCount(timings.prefill_tokens),
      TokensPerSecond(timings.prefill_tokens, timings.prefill_seconds),
      FormatCount(timings.decode_tokens),
      TokensPerSecond(timings.decode_tokens, timings.decode_seconds)));
  SayApproximations((*context)->plan(), console);
  if (!interrupt.raised()) return kExitDone;
  console.Say("headway: interrupted; the lines above are complete, the rest was not done");
  return kExitFailed;
}

}  // namespace headway::cli
