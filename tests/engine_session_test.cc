// Sessions by the public API: that they go on, under which settings, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/test_dir.h"
#include "headway/engine.h"
#include "support/api.h"

namespace headway {
namespace {

TEST(EngineSession, ASessionContinuesInAnotherRunAndSurvivesRefusal) {
  const TestDir dir;
  EngineOptions options;
  options.session = dir.File("s.session");
  std::vector<TokenId> prompt = Quoting(*Open(kDemo), 900, 5);
  {
    std::unique_ptr<Engine> engine = Open(kDemo, options);
    Result<std::unique_ptr<Context>> context = engine->NewContext({{800}});
    ASSERT_TRUE(context.ok()) << context.status().message();
    ASSERT_TRUE(GenerateOne(**context, RequestOf({prompt.begin(), prompt.begin() + 700}, 4)).ok());
    ASSERT_TRUE((*context)->SaveSession().ok());
  }
  // Another model's session is refused, and untouched.
  {
    std::unique_ptr<Engine> other = Open(kGolden + "llama2", options);
    Result<std::unique_ptr<Context>> context = other->NewContext({{800}});
    ASSERT_FALSE(context.ok());
    EXPECT_NE(context.status().message().find("another"), std::string::npos)
        << context.status().message();
  }
  std::unique_ptr<Engine> engine = Open(kDemo, options);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{1000}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  EXPECT_EQ((*context)->SessionTokens(), 640);  // 703 are cached, ten whole pages
  Result<Generation> result = GenerateOne(**context, RequestOf(prompt, 6));
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->reused_tokens, 640);
  EXPECT_EQ(result->tokens, Fresh(kDemo, {}, RequestOf(prompt, 6)).tokens);
}

// A copy of the demo model whose session is refused once it was changed, with what differs.
TEST(EngineSession, ASessionOfAChangedModelIsRefusedByWhatChanged) {
  namespace fs = std::filesystem;
  const TestDir dir;
  const std::string model = dir.File("model");
  fs::copy(kDemo, model);
  EngineOptions options;
  options.session = dir.File("s.session");
  const Request request = RequestOf(Quoting(*Open(kDemo), 300, 5), 2);
  {
    std::unique_ptr<Engine> engine = Open(model, options);
    Result<std::unique_ptr<Context>> context = engine->NewContext({{400}});
    ASSERT_TRUE(context.ok()) << context.status().message();
    ASSERT_TRUE(GenerateOne(**context, request).ok());
    ASSERT_TRUE((*context)->SaveSession().ok());
  }
  const auto refusal = [&] {
    std::unique_ptr<Engine> engine = Open(model, options);
    EXPECT_EQ(PlanModel(model, options, {{400}}, Explain::kNo).ok(), engine->Plan({{400}}).ok());
    return engine->NewContext({{400}}).status().message();
  };
  const auto size = fs::file_size(options.session);
  EXPECT_EQ(refusal(), "");
  const std::string weights = model + "/model.safetensors";
  for (const double where : {0.1, 0.5, 0.77, 0.999}) {
    const auto at =
        static_cast<std::streamoff>(where * static_cast<double>(fs::file_size(weights)));
    std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
    const auto modified = fs::last_write_time(weights);
    file.seekg(at);
    const int byte = file.get();
    for (const int other : {byte ^ 1, byte}) {
      file.seekp(at);
      file.put(static_cast<char>(other));
      file.flush();
      fs::last_write_time(weights, modified);
      const std::string message = refusal();
      EXPECT_EQ(message.find("was made with other weights; give another session file") !=
                    std::string::npos,
                other != byte)
          << message;
    }
  }
  std::string config;
  std::getline(std::ifstream(model + "/config.json"), config, '\0');
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = config;
    const size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    std::ofstream(model + "/config.json") << changed;
    return refusal();
  };
  EXPECT_NE(with("\"rms_norm_eps\": ", "\"rms_norm_eps\": 0.5, \"unused\": ")
                .find("the model now has 0.5; give another session file"),
            std::string::npos);
  EXPECT_NE(with("500000.0", "500001.0")
                .find("was made with rope_theta 500000, the model now has 500001; give another"),
            std::string::npos);
  EXPECT_EQ(with("}", ", \"temperature\": 0.5}"), "");
  EXPECT_EQ(fs::file_size(options.session), size);
}

// The session's file stays what it was until there is another that was saved.
TEST(EngineSession, ASessionThatDoesNotFitIsReadAgainWhereThatIsAsked) {
  const TestDir dir;
  EngineOptions options;
  options.session = dir.File("s.session");
  options.head_group = 4;
  options.segment = 1024;
  const std::vector<TokenId> prompt = Quoting(*Open(kDemo), 2000, 5);
  const auto run = [&](int64_t n, bool save) -> Result<Generation> {
    std::unique_ptr<Engine> engine = Open(kDemo, options);
    Result<std::unique_ptr<Context>> context = engine->NewContext({{2100}});
    if (!context.ok()) return context.status();
    Result<Generation> made = GenerateOne(**context, RequestOf(prompt, n));
    EXPECT_TRUE(!made.ok() || !save || (*context)->SaveSession("a note").ok());
    EXPECT_EQ((*context)->SessionNote(), n > 6 ? "a note" : "");
    return made;
  };
  ASSERT_TRUE(run(6, true).ok());
  options.head_group = 0;
  options.segment = 0;
  const auto smallest = [&] {
    EngineOptions none = options;
    none.session.clear();
    Result<PlanReport> plan = Open(kDemo, none)->Plan({{2100}});
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return plan->smallest_kv_memory;
  };
  options.kv_memory = smallest();
  const Result<Generation> refused = run(7, true);
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfBudget);
  const std::string& message = refused.status().message();
  for (const std::string& part :
       {"session " + options.session + " fixes how the cache is cut (head group 4, segment 1024)",
        std::string("kv_memory "), std::string("session_recut")}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  EXPECT_EQ(message.find('\n'), std::string::npos);
  // What does not fit with any cut is not the session's fault.
  options.session_recut = true;
  const int64_t kv_memory = std::exchange(options.kv_memory, 4096);
  EXPECT_EQ(run(7, true).status().message().find("session"), std::string::npos);
  options.kv_memory = kv_memory;

  std::string before, after;
  const auto bytes = [&] {
    std::ostringstream text;
    text << std::ifstream(options.session, std::ios::binary).rdbuf();
    return text.str();
  };
  before = bytes();
  Result<Generation> made = run(7, false);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(made->reused_tokens, 0);
  EXPECT_EQ(bytes(), before) << "nothing was saved";
  made = run(7, true);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_NE(bytes(), before);
  const Result<Generation> again = run(7, true);  // the flag does no harm once it fits
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->reused_tokens, 1984);
  EXPECT_EQ(again->tokens, made->tokens);
  for (const auto& file : std::filesystem::directory_iterator(dir.path())) {
    EXPECT_EQ(file.path(), options.session);
  }
}

// A session is cut as when it was made, also while no page of it is full.
TEST(EngineSession, ASessionOfAFewTokensContinuesUnderOtherSettings) {
  const TestDir dir;
  EngineOptions options;
  options.session = dir.File("few.session");
  const std::vector<TokenId> prompt = Quoting(*Open(kDemo), 300, 5);
  options.segment = 128;
  {
    std::unique_ptr<Engine> engine = Open(kDemo, options);
    Result<std::unique_ptr<Context>> context = engine->NewContext({{100}});
    ASSERT_TRUE(context.ok()) << context.status().message();
    ASSERT_TRUE(GenerateOne(**context, RequestOf({prompt.begin(), prompt.begin() + 20}, 4)).ok());
    ASSERT_TRUE((*context)->SaveSession().ok());
  }
  options.segment = 0;
  std::unique_ptr<Engine> engine = Open(kDemo, options);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{400}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  EXPECT_EQ((*context)->plan().segment, 128);
  EXPECT_EQ(GenerateOne(**context, RequestOf(prompt, 6))->tokens,
            Fresh(kDemo, {}, RequestOf(prompt, 6)).tokens);
}

TEST(EngineSession, ASessionInAnotherEncodingIsRefusedWithOneLine) {
  const TestDir dir;
  EngineOptions options;
  options.session = dir.File("e.session");
  options.kv_encoding = "int8";
  std::vector<TokenId> prompt = Quoting(*Open(kDemo), 300, 5);
  {
    std::unique_ptr<Engine> engine = Open(kDemo, options);
    Result<std::unique_ptr<Context>> context = engine->NewContext({{400}});
    ASSERT_TRUE(context.ok()) << context.status().message();
    ASSERT_TRUE(GenerateOne(**context, RequestOf(prompt, 4)).ok());
    ASSERT_TRUE((*context)->SaveSession().ok());
  }
  for (const char* encoding : {"none", "int4"}) {
    options.kv_encoding = encoding;
    Result<std::unique_ptr<Context>> context = Open(kDemo, options)->NewContext({{400}});
    ASSERT_FALSE(context.ok());
    const std::string& message = context.status().message();
    EXPECT_NE(message.find("use kv_encoding int8"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
  options.kv_encoding = "int8";
  std::unique_ptr<Engine> engine = Open(kDemo, options);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{400}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  EXPECT_EQ((*context)->SessionTokens(), 256);
}

// Pages of a session come up from disk before the first step, and are summarised then. Without
// encoding these are the summaries that they had: the answer is that of a run without a pause. A
// session that chosen keys were decoded into says so.
TEST(EngineSession, ASessionGoesOnWithASelection) {
  const TestDir dir;
  EngineOptions selecting;
  selecting.selector = "pages";
  selecting.sparse_from = 0;
  selecting.sparse_keys = 32;
  selecting.sparse_sink = 16;
  selecting.sparse_recent = 64;
  const Request request = RequestOf(Quoting(*Open(kDemo), 900, 5), 40);
  const Request part = RequestOf({request.prompt.begin(), request.prompt.begin() + 700}, 1);
  // Its prompt is cut at the same token.
  const Generation uninterrupted = [&] {
    const std::unique_ptr<Engine> engine = Open(kDemo, selecting);
    Result<std::unique_ptr<Context>> context = engine->NewContext({{1000}});
    EXPECT_TRUE(context.ok()) << context.status().message();
    EXPECT_TRUE(GenerateOne(**context, part).ok());
    return *GenerateOne(**context, request);
  }();
  EXPECT_EQ(uninterrupted.reused_tokens, 640);
  const Generation exact = Fresh(kDemo, {}, request);
  EXPECT_NE(uninterrupted.tokens, exact.tokens) << "the choice makes no difference";
  const auto run = [&](EngineOptions options, const Request& asked) {
    options.session = dir.File("s.session");
    const std::unique_ptr<Engine> engine = Open(kDemo, options);
    Result<std::unique_ptr<Context>> context = engine->NewContext({{1000}});
    EXPECT_TRUE(context.ok()) << context.status().message();
    Result<Generation> made = GenerateOne(**context, asked);
    EXPECT_TRUE(made.ok()) << made.status().message();
    EXPECT_TRUE((*context)->SaveSession().ok());
    return *made;
  };
  EXPECT_EQ(run({}, part).reused_tokens, 0);
  const Generation continued = run(selecting, request);
  EXPECT_EQ(continued.reused_tokens, 640);
  EXPECT_EQ(continued.tokens, uninterrupted.tokens);
  EXPECT_TRUE(continued.notices.empty());
  Result<Inspection> inspection = Inspect(dir.File("s.session"));
  ASSERT_TRUE(inspection.ok()) << inspection.status().message();
  EXPECT_TRUE(std::any_of(
      inspection->fields.begin(), inspection->fields.end(),
      [](const auto& line) { return line.second.find("chosen keys") != std::string::npos; }));
  const Generation after = run({}, request);
  EXPECT_EQ(after.reused_tokens, 896);
  ASSERT_EQ(after.notices.size(), 1u);
  EXPECT_NE(after.notices[0].find("selection"), std::string::npos) << after.notices[0];
}

// It is given up where that is asked for.
TEST(EngineSession, BringingUpASessionIsToldOfAndCancelled) {
  const TestDir dir;
  EngineOptions options;
  options.session = dir.File("s.session");
  options.segment = 128;
  const Request request = RequestOf(Quoting(*Open(kDemo), 900, 5), 4);
  std::unique_ptr<Engine> engine = Open(kDemo, options);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{1000}});
  ASSERT_TRUE(GenerateOne(**context, request).ok());
  ASSERT_TRUE((*context)->SaveSession().ok());
  context->reset();
  options.selector = "pages", options.sparse_from = 0;
  options.sparse_keys = 32;
  engine = Open(kDemo, options);
  context = engine->NewContext({{1000}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  std::atomic<bool> cancel = false;
  std::vector<int64_t> told;
  Hooks hooks;
  hooks.cancel = &cancel;
  hooks.on_progress = [&](const Progress& progress) {
    if (progress.phase != Progress::Phase::kRestore) return;
    told.push_back(progress.done);
    if (progress.done == 256) cancel = true;
  };
  Result<std::vector<Generation>> made = (*context)->Generate({&request, 1}, hooks);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ((*made)[0].finish, FinishReason::kCancelled);
  EXPECT_EQ(told, (std::vector<int64_t>{0, 128, 256}));
  cancel = false;
  told.clear();
  made = (*context)->Generate({&request, 1}, hooks);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ((*made)[0].reused_tokens, 896);
  EXPECT_EQ(told.at(0), 0);
}

// A context that reaches beyond the window of 512 tokens that its model was trained for. There are
// angles for three pages at a time, and four in a segment.
struct Reaching {
  Reaching() {
    options.selector = "pages";
    options.sparse_keys = 64;
    options.sparse_sink = 16;
    options.sparse_recent = 64;
    options.chunk = 128;
    options.segment = 256;
  }
  // Another process goes on: the context of before is gone.
  Context& Make() {
    context.reset();
    engine = Open(kGolden + "llama2", options);
    Result<std::unique_ptr<Context>> made = engine->NewContext({{1000}});
    EXPECT_TRUE(made.ok()) << made.status().message();
    context = std::move(*made);
    EXPECT_EQ(context->plan().selection->reach, options.reach != "off");
    return *context;
  }
  EngineOptions options;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Context> context;
};

TEST(EngineSession, ASessionGoesOnBeyondTheTrainedWindow) {
  const TestDir dir;
  const Request request = RequestOf(Tokens(900, 160, 3), 60);
  const Request part = RequestOf({request.prompt.begin(), request.prompt.begin() + 700}, 5);
  for (const int looks : {1, 2}) {
    Reaching reaching;
    reaching.options.sparse_looks = looks;
    Context& whole = reaching.Make();
    ASSERT_TRUE(GenerateOne(whole, part).ok());
    const Generation uninterrupted = *GenerateOne(whole, request);
    reaching.options.session = dir.File("s.session" + std::to_string(looks));
    Context& first = reaching.Make();
    ASSERT_TRUE(GenerateOne(first, part).ok());
    ASSERT_TRUE(first.SaveSession().ok());
    Context& second = reaching.Make();
    EXPECT_EQ(second.SessionTokens(), 704);
    const Result<Generation> continued = GenerateOne(second, request);
    ASSERT_TRUE(continued.ok()) << continued.status().message();
    EXPECT_EQ(continued->reused_tokens, uninterrupted.reused_tokens);
    EXPECT_EQ(continued->tokens, uninterrupted.tokens);
    EXPECT_TRUE(continued->notices.empty());
    // Keys of a context that does not reach are rotated by other angles.
    reaching.options.reach = "off";
    const Generation within = *GenerateOne(reaching.Make(), request);
    EXPECT_EQ(within.reused_tokens, 0);
    ASSERT_EQ(within.notices.size(), 1u);
    EXPECT_NE(within.notices[0].find("reached beyond the window"), std::string::npos)
        << within.notices[0];
  }
}

TEST(EngineSession, LogitsBeyondTheTrainedWindowAreThoseOfARunWithoutAPause) {
  const TestDir dir;
  const std::vector<TokenId> tokens = Tokens(950, 160, 4);
  const auto logits_of = [&](Context& context) {
    std::vector<float> all;
    const Context::ScorePart rest = {
        .begin = 704, .end = -1, .logits = [&](int64_t, std::span<const float> logits) {
          all.insert(all.end(), logits.begin(), logits.end());
        }};
    const Result<Context::ScoreResult> scored = context.Score(tokens, rest, {});
    EXPECT_TRUE(scored.ok()) << scored.status().message();
    return all;
  };
  const Context::ScorePart first = {.begin = 0, .end = 704, .logits = {}};
  Reaching reaching;
  ASSERT_TRUE(reaching.Make().Score(tokens, first, {}).ok());
  const std::vector<float> uninterrupted = logits_of(*reaching.context);
  EXPECT_EQ(uninterrupted.size(), 245u * 160);
  reaching.options.session = dir.File("s.session");
  ASSERT_TRUE(reaching.Make().Score(tokens, first, {}).ok());
  ASSERT_TRUE(reaching.context->SaveSession().ok());
  EXPECT_EQ(logits_of(reaching.Make()), uninterrupted);
}

// As many keys of encoded pages are read as without a pause. Which ones they are may differ: there
// the keys were summarised before they were rounded.
TEST(EngineSession, EncodedPagesOfASessionAreChosenFrom) {
  const TestDir dir;
  const std::vector<TokenId> prompt = Tokens(900, 160, 5);
  const auto bytes_read = [&](Context& context) {
    EXPECT_TRUE(GenerateOne(context, RequestOf(prompt, 1)).ok());
    context.ResetLanes();
    EXPECT_TRUE(GenerateOne(context, RequestOf(prompt, 40)).ok());
    const std::vector<LaneReport> lanes = context.Lanes();
    return std::find_if(lanes.begin(), lanes.end(),
                        [](const LaneReport& lane) { return lane.lane == "compute"; })
        ->bytes;
  };
  for (const std::string encoding : {"int8", "fp8", "int4"}) {
    for (const std::string reach : {"auto", "off"}) {
      Reaching reaching;
      reaching.options.kv_encoding = encoding;
      reaching.options.reach = reach;
      const Request part = RequestOf({prompt.begin(), prompt.begin() + 700}, 5);
      ASSERT_TRUE(GenerateOne(reaching.Make(), part).ok());
      const int64_t uninterrupted = bytes_read(*reaching.context);
      reaching.options.session = dir.File(encoding + reach);
      ASSERT_TRUE(GenerateOne(reaching.Make(), part).ok());
      ASSERT_TRUE(reaching.context->SaveSession().ok());
      EXPECT_EQ(bytes_read(reaching.Make()), uninterrupted) << encoding << ", reach " << reach;
    }
  }
}

TEST(EngineSession, ADamagedSessionIsRefused) {
  const TestDir dir;
  EngineOptions options;
  options.session = dir.File("bad.session");
  std::ofstream(options.session) << "this is a letter, not a session";
  std::unique_ptr<Engine> engine = Open(kDemo, options);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{100}});
  ASSERT_FALSE(context.ok());
  EXPECT_NE(context.status().message().find("bad.session"), std::string::npos);
  EXPECT_EQ(std::filesystem::file_size(options.session), 31u);
}

// What a process had saved when it was killed.
TEST(EngineSession, ASessionIsSavedWhileAPromptIsRead) {
  const TestDir dir;
  EngineOptions options;
  options.session = dir.File("s.session");
  options.chunk = 512;
  const Request request = RequestOf(Quoting(*Open(kDemo), 2000, 8), 8);
  {
    std::unique_ptr<Engine> engine = Open(kDemo, options);
    Result<std::unique_ptr<Context>> context = engine->NewContext({{2100}});
    ASSERT_TRUE(context.ok()) << context.status().message();
    Hooks hooks;
    hooks.on_progress = [&](const Progress& progress) {
      const Status saved = (*context)->SaveSession("on the way");
      EXPECT_TRUE(saved.ok()) << saved.message();
      if (progress.phase == Progress::Phase::kPrefill && progress.done == 1024) {
        std::filesystem::copy(options.session, dir.File("killed.session"));
      }
    };
    Result<std::vector<Generation>> made = (*context)->Generate({&request, 1}, hooks);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(made->front().tokens, Fresh(kDemo, {}, request).tokens);
  }
  options.session = dir.File("killed.session");
  std::unique_ptr<Engine> engine = Open(kDemo, options);
  Result<std::unique_ptr<Context>> context = engine->NewContext({{2100}});
  ASSERT_TRUE(context.ok()) << context.status().message();
  EXPECT_EQ((*context)->SessionTokens(), 1024);
  EXPECT_EQ((*context)->SessionNote(), "on the way");
  Result<Generation> again = GenerateOne(**context, request);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->reused_tokens, 1024);
  EXPECT_EQ(again->tokens, Fresh(kDemo, {}, request).tokens);
}

// Its file takes every slab, also those that are read from faster tiers.
TEST(EngineSession, ASessionThatItsDiskCannotHoldIsRefusedBeforeWork) {
  const TestDir dir;
  EngineOptions options;
  options.session = dir.File("large.session");
  options.disk_memory = int64_t{1} << 30;
  Result<PlanReport> plan = Open(kDemo, options)->Plan({{2000}});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->slabs[2], 0);
  options.disk_memory = plan->smallest_disk_memory;
  {
    const std::unique_ptr<Engine> engine = Open(kDemo, options);
    Result<std::unique_ptr<Context>> context = engine->NewContext({{2000}});
    ASSERT_TRUE(context.ok()) << context.status().message();
    ASSERT_TRUE(GenerateOne(**context, RequestOf(Quoting(*engine, 1990, 2), 10)).ok());
    const Status saved = (*context)->SaveSession();
    EXPECT_TRUE(saved.ok()) << saved.message();
  }
  options.disk_memory -= 4096;
  options.session = dir.File("new.session");
  const Status refused = Open(kDemo, options)->NewContext({{2000}}).status();
  EXPECT_EQ(refused.code(), StatusCode::kOutOfBudget);
  EXPECT_NE(refused.message().find("disk_memory"), std::string::npos) << refused.message();
}

}  // namespace
}  // namespace headway
