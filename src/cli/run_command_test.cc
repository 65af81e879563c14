// What `run` and `chat` take from the model's folder and from flags, on the demo model.
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
using ::testing::HasSubstr;
using ::testing::Not;

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

class RunCommandTest : public ::testing::Test {
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

TEST_F(RunCommandTest, TheDemoIsGreedyAndSaysNothing) {
  const Ran ran = Run({});
  EXPECT_EQ(ran.json()["sampling"]["temperature"], 0);
  EXPECT_THAT(ran.err, Not(HasSubstr("generation_config.json")));
}

TEST_F(RunCommandTest, SamplesAsTheModelProposes) {
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

TEST_F(RunCommandTest, AProposalWithoutDoSampleIsGreedy) {
  Replace("generation_config.json", R"({"temperature": 0.6, "top_p": 0.9})");
  const Ran ran = Run({});
  EXPECT_THAT(ran.err, Not(HasSubstr("generation_config.json")));
  EXPECT_EQ(ran.json()["sampling"]["temperature"], 0);
  // Who samples anyway samples as the model was meant to.
  EXPECT_EQ(Run({"--temp", "0.8"}).json()["sampling"]["top_p"], 0.9);
  Replace("generation_config.json", R"({"do_sample": true})");
  EXPECT_EQ(Run({}).json()["sampling"]["temperature"], 1);
}

TEST_F(RunCommandTest, AProposalThatMakesNoSenseIsNamed) {
  Replace("generation_config.json", R"({"do_sample": true, "top_p": 0.0})");
  const Ran ran = Run({});
  EXPECT_EQ(ran.status, kExitFailed);
  EXPECT_THAT(ran.err, HasSubstr("top_p is 0, but must be in (0, 1]; --generation-config none"));
  EXPECT_EQ(Run({"--top-p", "1"}).status, kExitDone);
}

TEST_F(RunCommandTest, ChatAndManyPromptsTakeTheProposalToo) {
  Replace("generation_config.json", R"({"do_sample": true, "temperature": 0.9})");
  const Ran chat = Call({"chat", dir_.path(), "-n", "2", "-c", "256"}, "Hello\n");
  EXPECT_EQ(chat.status, kExitDone);
  EXPECT_THAT(chat.err, HasSubstr("generation_config.json says: temperature 0.9; --temp 0"));
  const Ran prompts = Call({"run", dir_.path(), "--prompts", "-", "-n", "12", "--seed", "3"},
                           "\"Once upon a time\"\n");
  EXPECT_THAT(prompts.err, HasSubstr("generation_config.json says: temperature 0.9; --temp 0"));
  EXPECT_EQ(prompts.json()["tokens"], Tokens({"--seed", "3"}));
}

}  // namespace
}  // namespace headway::cli
