#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>

#include "cli/commands.h"
#include "cli/generate.h"
#include "cli/help_formatter.h"
#include "cli/prompt.h"
#include "cli/report.h"
#include "engine/eval/retrieval.h"
#include "headway/refusal.h"

namespace headway::cli {
namespace {

constexpr const char* kExamples =
    R"(  headway chat models/demo
  headway chat models/demo --file book.txt --session book.session
  printf 'What is the pass key?\nAre you sure?\n' | headway chat models/demo)";

constexpr const char* kCommandsHelp =
    R"(  /reset   forget the conversation
  /save    keep it in the --session file now; the chat's end does so, too
  /exit    end; so do Ctrl-D, and Ctrl-C where a message is typed
  /help    say this
A line is a message; one that ends in \ goes on in the next line. Ctrl-C ends an
answer.)";

struct ChatFlags {
  ModelFlags model;
  SamplingFlags sampling;
  OutputFlags output;
  std::string system;
  std::string file;
  ChatOptions template_options;
  int64_t max_tokens = 512;
  int64_t context = 0;
};

void AddChatFlags(CLI::App& app, ChatFlags* flags) {
  AddModelFlags(app, &flags->model);
  const std::string group = "Conversation";
  AddText(app, group, "--system,--system-prompt", &flags->system, "system message")
      ->type_name("TEXT");
  AddText(app, group, "-f,--file", &flags->file, "document put before the first question")
      ->type_name("FILE");
  AddTemplateFlag(app, group, &flags->template_options);
  AddNumber(app, group, "-n,--n-predict,--predict,--max-tokens", &flags->max_tokens, {1, kMaxCount},
            "most tokens of an answer")
      ->default_str(std::to_string(flags->max_tokens));
  AddNumber(app, group, "-c,--ctx-size,--max-model-len", &flags->context, {0, kMaxCount},
            "tokens of the whole conversation; 0: as many as the model was trained for");
  AddSamplingFlags(app, &flags->sampling);
  AddGenerationConfigFlag(app, &flags->sampling);
  AddSwitch(app, More("Output"), "--no-progress", &flags->output.no_progress,
            "do not show progress");
  AddSwitch(app, More("Output"), "-v,--verbose", &flags->output.verbose,
            "also say what each answer took");
}

// The conversation so far and the context that holds its cache.
class Chat {
 public:
  Chat(const ChatFlags& flags, Engine& engine, Context& context, int64_t length,
       std::string document, Console& console)
      : flags_(flags),
        engine_(engine),
        context_(context),
        length_(length),
        document_(std::move(document)),
        console_(console) {
    Forget();
  }

  // Goes on with the conversation that the session was saved with, unless --system or --file say
  // that it began in another way.
  void Resume();

  // Reads and answers until /exit, the end of input, or Ctrl-C at the prompt.
  int Loop();

 private:
  void Forget();
  bool ReadTurn(std::string* text);
  // False when the chat is over.
  bool Obey(const std::string& command);
  Status Answer(const std::string& text);
  // What the session keeps of the conversation beside its cache.
  std::string Note() const;
  Status Save();

  const ChatFlags& flags_;
  Engine& engine_;
  Context& context_;
  const int64_t length_;
  const std::string document_;
  Console& console_;
  InterruptGuard interrupt_;
  std::vector<ChatMessage> messages_;
  bool changed_ = false;  // something is to be saved
  bool failed_ = false;
};

void Chat::Forget() {
  messages_.clear();
  if (!flags_.system.empty()) messages_.push_back({"system", flags_.system});
}

std::string Chat::Note() const {
  if (messages_.empty() || messages_.back().role == "system") return "";
  Json list = Json::array();
  for (const ChatMessage& message : messages_) {
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  return Dump(list);
}

void Chat::Resume() {
  const int64_t tokens = context_.SessionTokens();
  std::vector<ChatMessage> saved;
  const Json list = Json::parse(context_.SessionNote(), nullptr, /*allow_exceptions=*/false);
  for (const Json& item : list.is_array() ? list : Json::array()) {
    if (!item.is_object() || !item.contains("role") || !item.contains("content")) return;
    if (!item["role"].is_string() || !item["content"].is_string()) return;
    saved.push_back({item["role"], item["content"]});
  }
  if (saved.empty()) {
    if (tokens > 0) {
      console_.Say(
          fmt::format("headway: note: the session holds the cache of {} tokens; what "
                      "begins like them is not computed again",
                      tokens));
    }
    return;
  }
  const bool with_system = saved.front().role == "system";
  const std::string& first = saved[with_system && saved.size() > 1 ? 1 : 0].content;
  const bool other_system =
      !flags_.system.empty() && !(with_system && saved.front().content == flags_.system);
  if (other_system || !first.starts_with(document_)) {
    console_.Say("headway: note: the conversation in " + flags_.model.engine.session +
                 " began with another --system or --file; this is a new one");
    return;
  }
  messages_ = std::move(saved);
  console_.Say(
      fmt::format("headway: note: the conversation in {} goes on behind its {} messages; "
                  "/reset forgets them",
                  flags_.model.engine.session, messages_.size() - (with_system ? 1 : 0)));
}

bool Chat::ReadTurn(std::string* text) {
  text->clear();
  std::string line;
  const char* prompt = "> ";
  while (true) {
    if (console_.in_is_terminal()) console_.Write(prompt);
    if (!console_.ReadLine(&line)) return false;
    if (!line.ends_with('\\')) break;
    line.pop_back();
    *text += line + "\n";
    prompt = ". ";
  }
  *text += line;
  return true;
}

Status Chat::Save() {
  if (flags_.model.engine.session.empty()) {
    return Status(StatusCode::kInvalidArgument, "there is no session file; start with --session");
  }
  if (Status s = context_.SaveSession(Note()); !s.ok()) {
    return s.Within({"the session was not saved: "});
  }
  return OkStatus();
}

bool Chat::Obey(const std::string& command) {
  if (command == "/exit" || command == "/quit") return false;
  if (command == "/reset" || command == "/clear") {
    Forget();
    changed_ = true;
  } else if (command == "/help") {
    console_.Say(kCommandsHelp);
  } else if (command == "/save") {
    if (Status s = Save(); s.ok()) {
      console_.Say("headway: saved in " + flags_.model.engine.session);
    } else {
      failed_ = true;
      console_.Fail(s);
    }
  } else {
    console_.Say("headway: there is no " + command + "; see /help");
  }
  return true;
}

Status Chat::Answer(const std::string& text) {
  if (Status s = CheckText(text, "the message"); !s.ok()) return s;
  const bool first = messages_.empty() || messages_.back().role == "system";
  std::vector<ChatMessage> messages = messages_;
  messages.push_back(
      {"user", first && !document_.empty() ? eval::AskAbout(document_, text) : text});
  Result<std::vector<TokenId>> prompt = EncodePrompt(
      engine_, {.text = "", .messages = messages, .template_options = flags_.template_options});
  if (!prompt.ok()) return prompt.status();
  const auto tokens = static_cast<int64_t>(prompt->size());
  if (tokens >= length_) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("with this message the conversation has {} tokens, and the context "
                              "holds {}; /reset, or start again with a larger --ctx-size",
                              tokens, length_));
  }
  Request request;
  request.prompt = std::move(*prompt);
  request.max_tokens = flags_.max_tokens;
  request.sampling = flags_.sampling.options;
  request.stop = flags_.sampling.stop;
  request.ignore_eos = flags_.sampling.ignore_eos;
  const GenerateView view{
      .stream_text = true, .progress = flags_.output.progress(), .note = Note()};
  Result<Generation> made =
      GenerateShown(context_, request, view, flags_.model.engine, interrupt_, console_);
  if (!made.ok()) return made.status();
  console_.Write("\n");
  SayNotices(*made, console_);
  changed_ = true;
  if (made->finish == FinishReason::kCancelled) {
    console_.Say(made->text.empty() ? "headway: interrupted; the message is forgotten"
                                    : "headway: interrupted");
  }
  if (made->finish == FinishReason::kLength) {
    console_.Say("headway: note: the answer was ended at --n-predict tokens");
  }
  const Timings timings = context_.timings();
  if (flags_.output.verbose) {
    console_.Say(fmt::format(
        "headway: {} tokens of the conversation were in the cache; prefill {} at {:.1f} tok/s, "
        "decode {} at {:.1f} tok/s",
        made->reused_tokens, timings.prefill_tokens,
        TokensPerSecond(timings.prefill_tokens, timings.prefill_seconds), timings.decode_tokens,
        TokensPerSecond(timings.decode_tokens, timings.decode_seconds)));
  }
  if (made->finish == FinishReason::kCancelled && made->text.empty()) return OkStatus();
  messages_ = std::move(messages);
  messages_.push_back({"assistant", made->text});
  return OkStatus();
}

int Chat::Loop() {
  if (console_.in_is_terminal()) console_.Say("/help says what can be typed");
  std::string text;
  while (true) {
    if (!ReadTurn(&text)) {
      if (console_.in_is_terminal()) console_.Write("\n");  // behind the prompt
      break;
    }
    if (text.find_first_not_of(" \t\n") == std::string::npos) continue;
    if (text.starts_with('/')) {
      if (!Obey(text)) break;
      continue;
    }
    if (Status s = Answer(text); !s.ok()) {
      console_.Fail(s);
      failed_ = true;
      if (s.code() == StatusCode::kIo) break;  // nobody reads any more, or the disk is gone
    }
    const bool stop = interrupt_.raised() && !console_.in_is_terminal();
    interrupt_.Clear();
    if (stop) break;
  }
  if (changed_ && !flags_.model.engine.session.empty()) {
    if (Status s = Save(); !s.ok()) return console_.Fail(s);
  }
  // Someone who types sees errors and goes on; a script must hear of them.
  return failed_ && !console_.in_is_terminal() ? kExitFailed : kExitDone;
}

Result<int64_t> ChatLength(const ChatFlags& flags, const Engine& engine) {
  if (flags.context > 0) return flags.context;
  const int64_t trained = engine.info().max_position;
  Result<int64_t> saved = engine.SessionTokens();
  if (!saved.ok()) return saved.status();
  if (trained <= 0) {
    return Status(StatusCode::kInvalidArgument,
                  "the model does not say how long its context is; give --ctx-size");
  }
  return std::max(*saved, trained);
}

Result<std::string> ReadDocument(const ChatFlags& flags, Console& console) {
  if (flags.file.empty()) return std::string();
  if (flags.file == "-") {
    return Status(StatusCode::kInvalidArgument,
                  "--file - cannot be used: the conversation comes from standard input");
  }
  Result<std::string> document = ReadText(flags.file, console);
  if (document.ok() && document->ends_with('\n')) document->pop_back();
  return document;
}

}  // namespace

int ChatCommand(const Args& args, Console& console) {
  ChatFlags flags;
  const auto app =
      NewApp("chat",
             std::string("Talks through the model's chat template. The cache of the conversation "
                         "is kept between messages, and with --session the conversation goes on "
                         "where the last chat ended.\n") +
                 kCommandsHelp,
             kExamples);
  AddChatFlags(*app, &flags);
  if (std::optional<int> status = Parse(*app, args, console)) return *status;
  Result<std::string> document = ReadDocument(flags, console);
  if (!document.ok()) return console.Fail(document.status());
  if (Status s = flags.system.empty() ? OkStatus() : CheckText(flags.system, "the system message");
      !s.ok()) {
    return console.Fail(s);
  }
  Result<std::unique_ptr<Engine>> engine = Engine::Open(flags.model.model, flags.model.engine);
  if (!engine.ok()) return console.Fail(engine.status());
  if (!(*engine)->info().has_chat_template) {
    return console.Fail(Status(StatusCode::kNotFound,
                               flags.model.model + " has no chat template; use headway run"));
  }
  if (Status s = TakeSamplingDefaults(*app, (*engine)->info(), &flags.sampling, console); !s.ok()) {
    return console.Fail(s);
  }
  Result<int64_t> length = ChatLength(flags, **engine);
  if (!length.ok()) return console.Fail(length.status());
  Result<std::unique_ptr<Context>> context = (*engine)->NewContext({{*length}});
  if (!context.ok()) return console.Fail(context.status());
  WarnOfLength((*engine)->info(), *length, (*context)->plan(), flags.model.engine, console);
  WarnOfMemory((*context)->plan(), console);
  SayCut((*context)->plan(), console);
  SayApproximations((*context)->plan(), console);
  Chat chat(flags, **engine, **context, *length, std::move(*document), console);
  chat.Resume();
  return chat.Loop();
}

}  // namespace headway::cli
