// What commands take from the model's folder and from flags, on the demo model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/test_dir.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/test_console.h"

namespace headway::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kDemo = HEADWAY_SOURCE_DIR "/models/demo";

struct Ran {
  int status = -1;
  std::string out, err;

  Json json() const {
    Json parsed = Json::parse(out, nullptr, /*allow_exceptions=*/false);
    EXPECT_FALSE(parsed.is_discarded()) << out << err;
    return parsed;
  }
};

Ran Call(const Args& args, const std::string& input = "") {
  TestConsole test(input);
  const int status = Main(args, test.console());
  return {status, test.out(), test.err()};
}

class CommandsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto& entry : fs::directory_iterator(kDemo)) {
      fs::create_symlink(entry.path(), dir_.File(entry.path().filename().string()));
    }
  }
  // A file of the model in the place of the demo's.
  void Replace(const std::string& name, const std::string& text) {
    fs::remove(dir_.File(name));
    std::ofstream(dir_.File(name)) << text;
  }
  Ran Run(const Args& more) {
    Args args = {"run", dir_.path(), "-p", "Once upon a time", "-n", "12", "--json"};
    args.insert(args.end(), more.begin(), more.end());
    return Call(args);
  }
  Json Tokens(const Args& more) {
    const Ran ran = Run(more);
    EXPECT_EQ(ran.status, kExitDone) << ran.err;
    return ran.json()["tokens"];
  }

  TestDir dir_;
};

TEST_F(CommandsTest, TheDemoIsGreedyAndSaysNothing) {
  const Ran ran = Run({});
  EXPECT_EQ(ran.json()["sampling"]["temperature"], 0);
  EXPECT_THAT(ran.err, Not(HasSubstr("generation_config.json")));
}

TEST_F(CommandsTest, SamplesAsTheModelProposes) {
  const Json greedy = Tokens({});
  Replace("generation_config.json",
          R"({"do_sample": true, "temperature": 0.9, "top_k": 30, "top_p": 0.95,
              "repetition_penalty": 1.05})");
  const Ran ran = Run({"--seed", "7"});
  EXPECT_THAT(ran.err, HasSubstr("headway: note: sampling as generation_config.json says: "
                                 "temperature 0.9, top-k 30, top-p 0.95, repeat penalty 1.05; "
                                 "--temp 0 is greedy\n"));
  EXPECT_EQ(ran.json()["sampling"].dump(),
            R"({"temperature":0.9,"top_k":30,"top_p":0.95,"min_p":0,"repetition_penalty":1.05,)"
            R"("presence_penalty":0,"frequency_penalty":0,"seed":7})");
  EXPECT_EQ(Tokens({"--seed", "7", "--generation-config", "none", "--temp", "0.9", "--top-k", "30",
                    "--top-p", "0.95", "--repeat-penalty", "1.05"}),
            ran.json()["tokens"]);
  // Each value on its own gives way to a flag, one that turns it off, too.
  const Ran partly = Run({"--top-k", "0", "--temperature", "0.5"});
  EXPECT_THAT(partly.err, HasSubstr("says: top-p 0.95, repeat penalty 1.05; --temp 0"));
  EXPECT_EQ(partly.json()["sampling"]["temperature"], 0.5);
  EXPECT_EQ(partly.json()["sampling"]["top_k"], 0);
  // Greedy decoding has the penalty alone.
  const Ran cold = Run({"--temp", "0"});
  EXPECT_THAT(cold.err, HasSubstr("note: greedy, as generation_config.json says: repeat penalty "
                                  "1.05; --generation-config none leaves it out\n"));
  EXPECT_EQ(cold.json()["sampling"]["top_p"], 1);
  EXPECT_EQ(Tokens({"--generation-config", "none", "--repeat-penalty", "1.05"}),
            cold.json()["tokens"]);
  EXPECT_EQ(Tokens({"--temp", "0", "--repeat-penalty", "1"}), greedy);
  EXPECT_EQ(Tokens({"--generation-config", "none"}), greedy);
}

TEST_F(CommandsTest, AProposalWithoutDoSampleIsGreedy) {
  Replace("generation_config.json", R"({"temperature": 0.6, "top_p": 0.9})");
  const Ran ran = Run({});
  EXPECT_THAT(ran.err, Not(HasSubstr("generation_config.json")));
  EXPECT_EQ(ran.json()["sampling"]["temperature"], 0);
  // Who samples anyway samples as the model was meant to.
  EXPECT_EQ(Run({"--temp", "0.8"}).json()["sampling"]["top_p"], 0.9);
  Replace("generation_config.json", R"({"do_sample": true})");
  EXPECT_EQ(Run({}).json()["sampling"]["temperature"], 1);
}

TEST_F(CommandsTest, AProposalThatMakesNoSenseIsNamed) {
  Replace("generation_config.json", R"({"do_sample": true, "top_p": 0.0})");
  const Ran ran = Run({});
  EXPECT_EQ(ran.status, kExitFailed);
  EXPECT_THAT(ran.err, HasSubstr("top_p is 0, but must be in (0, 1]; --generation-config none"));
  EXPECT_EQ(Run({"--top-p", "1"}).status, kExitDone);

  // It stands in the way of nobody who does not sample by it.
  Replace("generation_config.json", R"({"do_sample": true, "temperature": -1, "top_p": 1.5})");
  EXPECT_THAT(Run({}).err, HasSubstr("temperature is -1, but must be 0 (greedy) or more"));
  EXPECT_EQ(Run({"--temp", "0"}).status, kExitDone);
  EXPECT_EQ(Run({"--generation-config", "none"}).status, kExitDone);
  EXPECT_EQ(Call({"plan", dir_.path(), "-c", "100"}).status, kExitDone);
}

TEST_F(CommandsTest, AnEmptyProposalIsABrokenFile) {
  Replace("generation_config.json", "");
  EXPECT_THAT(Run({}).err, HasSubstr("generation_config.json: an empty file"));
}

TEST_F(CommandsTest, TheFlagOfThePenaltyTakesWhatTheSamplerTakes) {
  for (const char* penalty : {"0.005", "101"}) {
    EXPECT_EQ(Run({"--repeat-penalty", penalty}).status, kExitUsage) << penalty;
  }
  for (const char* penalty : {"0.01", "100"}) {
    EXPECT_EQ(Run({"--repeat-penalty", penalty}).status, kExitDone) << penalty;
  }
}

TEST_F(CommandsTest, ChatAndManyPromptsTakeTheProposalToo) {
  Replace("generation_config.json", R"({"do_sample": true, "temperature": 0.9})");
  const Ran chat = Call({"chat", dir_.path(), "-n", "2", "-c", "256"}, "Hello\n");
  EXPECT_EQ(chat.status, kExitDone);
  EXPECT_THAT(chat.err, HasSubstr("generation_config.json says: temperature 0.9; --temp 0"));
  const Ran prompts = Call({"run", dir_.path(), "--prompts", "-", "-n", "12", "--seed", "3"},
                           "\"Once upon a time\"\n");
  EXPECT_THAT(prompts.err, HasSubstr("generation_config.json says: temperature 0.9; --temp 0"));
  EXPECT_EQ(prompts.json()["tokens"], Tokens({"--seed", "3"}));
}

// A template that says what variables it sees by how long the prompt is.
constexpr const char* kTemplate =
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %} one two three four{% endif %}";

TEST_F(CommandsTest, TemplatesSeeTheirKeywordArguments) {
  Replace("chat_template.jinja", kTemplate);
  const Args thinks = {"--chat-template-kwargs", R"({"enable_thinking": true})"};
  const Args not_so = {"--chat-template-kwargs", R"({"enable_thinking": false, "more": [1]})"};
  const auto with = [](Args args, const Args& more) {
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  const int64_t plain = Run({"--chat"}).json()["prompt_tokens"];
  EXPECT_EQ(Run(with({"--chat"}, thinks)).json()["prompt_tokens"], plain);
  EXPECT_GT(Run(with({"--chat"}, not_so)).json()["prompt_tokens"], plain);
  EXPECT_GT(Run(with({"--ask", "Who?"}, not_so)).json()["prompt_tokens"],
            Run({"--ask", "Who?"}).json()["prompt_tokens"]);
  const Args prompts = {"run", dir_.path(), "--prompts", "-", "-n", "1", "--chat"};
  EXPECT_GT(Call(with(prompts, not_so), "\"Once upon a time\"").json()["prompt_tokens"], plain);
  const Args chat = {"chat", dir_.path(), "-n", "1", "-c", "8"};
  EXPECT_EQ(Call(with(chat, thinks), "Hi\n").status, kExitDone);
  EXPECT_THAT(Call(with(chat, not_so), "Hi there, and more\n").err,
              HasSubstr("the context holds 8"));
  const std::string line = R"({"context": "a", "question": "b", "answer": "c"})";
  const Args eval = {"eval", "retrieval", dir_.path(), "--jsonl", "-", "-n", "1", "--json"};
  EXPECT_GT(Call(with(eval, not_so), line).json()["prompt_tokens"],
            Call(eval, line).json()["prompt_tokens"]);
}

TEST_F(CommandsTest, WrongKeywordArgumentsAreWrongUsage) {
  const std::string deep =
      std::string("{\"a\": ") + std::string(50'000, '[') + std::string(50'000, ']') + "}";
  const std::pair<const char*, const char*> cases[] = {
      {"[1]", "--chat-template-kwargs: the template's variables are no JSON object such as"},
      {"{enable_thinking: false}", "are no JSON object"},
      {deep.c_str(), "--chat-template-kwargs: the template's variables are nested too deeply"},
      {R"({"messages": []})", "have messages, which Headway sets itself; leave it out"},
      {R"({"add_generation_prompt": false})", "have add_generation_prompt"}};
  for (const auto& [json, message] : cases) {
    const Ran ran = Run({"--chat", "--chat-template-kwargs", json});
    EXPECT_EQ(ran.status, kExitUsage) << json;
    EXPECT_THAT(ran.err, HasSubstr(message));
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  }
  EXPECT_THAT(Run({"--chat-template-kwargs", "{}"}).err, HasSubstr("needs --ask or --chat"));
}

TEST_F(CommandsTest, TheCommandLineBeatsVariablesThatItExcludes) {
  std::ofstream(dir_.File("text")) << "The old man";
  std::ofstream(dir_.File("prompts")) << "\"The old man\"\n";
  const Json expected = Call({"run", dir_.path(), "-p", "The old man", "-n", "4", "--json"}).json();
  const Args base = {"run", dir_.path(), "-n", "4", "--json"};
  const auto tokens = [&](Args more) {
    more.insert(more.begin(), base.begin(), base.end());
    const Ran ran = Call(more);
    EXPECT_EQ(ran.status, kExitDone) << ran.err;
    return ran.json()["tokens"];
  };
  const auto with = [](const char* name, const std::string& value, const auto& run) {
    setenv(name, value.c_str(), 1);
    run();
    unsetenv(name);
  };
  with("HEADWAY_PROMPT", "Another", [&] {
    EXPECT_EQ(tokens({"--file", dir_.File("text")}), expected["tokens"]);
    EXPECT_EQ(tokens({"--prompts", dir_.File("prompts")}), expected["tokens"]);
    EXPECT_NE(tokens({}), expected["tokens"]);
  });
  with("HEADWAY_FILE", dir_.File("absent"), [&] {
    EXPECT_EQ(tokens({"-p", "The old man"}), expected["tokens"]);
  });
  with("HEADWAY_PROMPTS", dir_.File("absent"), [&] {
    EXPECT_EQ(tokens({"-p", "The old man"}), expected["tokens"]);
    EXPECT_EQ(tokens({"-f", dir_.File("text")}), expected["tokens"]);
  });
  with("HEADWAY_SESSION", dir_.File("s.session"), [&] {
    EXPECT_EQ(tokens({"--prompts", dir_.File("prompts")}), expected["tokens"]);
  });
  with("HEADWAY_SYSTEM", "Be brief.", [&] {
    EXPECT_THAT(Run({}).err, HasSubstr("error: HEADWAY_SYSTEM needs --ask or --chat, which use"));
  });
}

TEST_F(CommandsTest, RetrievalNamesKeysThatItDoesNotRead) {
  const std::string line = R"({"context": "a", "question": "b", "answer": "c", "length": 3})";
  const Ran ran = Call({"eval", "retrieval", dir_.path(), "--jsonl", "-", "-n", "1"},
                       line + "\n" + line + "\n");
  EXPECT_EQ(ran.status, kExitDone) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("note: keys of standard input that are not read: \"length\"\n"));
}

TEST_F(CommandsTest, BenchPrintsEachRowAsItComes) {
  Args args = {"bench", "prefill", dir_.path(), "-c", "32,16+8", "-r", "1"};
  // What each flush writes.
  std::vector<std::string> pieces;
  const cookie_io_functions_t keep = {
      .read = nullptr,
      .write = [](void* to, const char* text, size_t size) -> ssize_t {
        static_cast<std::vector<std::string>*>(to)->emplace_back(text, size);
        return static_cast<ssize_t>(size);
      },
      .seek = nullptr,
      .close = nullptr};
  std::FILE* out = fopencookie(&pieces, "w", keep);
  ASSERT_NE(out, nullptr);
  {
    Console console(stdin, out, stderr);
    EXPECT_EQ(Main(args, console), kExitDone);
  }
  std::fclose(out);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_THAT(pieces[0], EndsWith("lanes busy\n"));
  EXPECT_THAT(pieces[1], StartsWith("     32      1  "));
  EXPECT_THAT(pieces[2], StartsWith("   16+8      2  "));
  // A context that does not fit is refused before one that does is measured.
  args[4] = "32,100000";
  args.insert(args.end(), {"--kv-memory", "1MiB", "--host-memory", "0"});
  const Ran refused = Call(args);
  EXPECT_EQ(refused.status, kExitFailed);
  EXPECT_EQ(refused.out, "");
}

TEST_F(CommandsTest, PerplexityBeginsWindowsAsTheTokenizerDoes) {
  std::string text;
  for (int i = 0; i < 20; ++i) text += "The old man looked at the sea and said nothing. ";
  const auto perplexity = [&](const Args& more) {
    Args args = {"eval", "perplexity", dir_.path(), "-f", "-", "-c", "32", "--json"};
    args.insert(args.end(), more.begin(), more.end());
    const Ran ran = Call(args, text);
    EXPECT_EQ(ran.status, kExitDone) << ran.err;
    Json json = ran.json();
    json.erase("seconds");
    return json;
  };
  const Json with = perplexity({}), without = perplexity({"--bos", "never"});
  EXPECT_EQ(with["bos"], 8186);
  EXPECT_TRUE(without["bos"].is_null());
  EXPECT_NE(with["perplexity"], without["perplexity"]);
  EXPECT_EQ(perplexity({"--bos", "always"}), with);
  // A tokenizer that puts nothing before a text, of a model that names a token for it.
  std::ifstream file(kDemo + "/tokenizer.json");
  Json tokenizer = Json::parse(file);
  tokenizer["post_processor"] = nullptr;
  Replace("tokenizer.json", tokenizer.dump());
  EXPECT_EQ(perplexity({}), without);
  EXPECT_EQ(perplexity({"--bos", "always"}), with);
}

}  // namespace
}  // namespace headway::cli
