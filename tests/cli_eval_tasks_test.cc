// The tasks that `eval retrieval` makes and the files that `eval file` reads, on the demo model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "support/cli.h"

namespace headway {
namespace {

using ::testing::HasSubstr;

TEST_F(Cli, RetrievalPrintsATableOfTasksAndLengths) {
  const Args base = {"eval",     "retrieval", kModel,    "--tasks", "passkey,niah-single",
                     "--length", "400,1k",    "--lines", "2",       "--seed",
                     "3"};
  const Json made = RunJson(base);
  ASSERT_EQ(made["groups"].size(), 4u);
  EXPECT_EQ(made["groups"][3]["labels"]["task"], "niah-single");
  EXPECT_EQ(made["groups"][3]["labels"]["length"], "1024");
  EXPECT_EQ(made["groups"][3]["lines"], 1);
  EXPECT_EQ(made["results"][2]["id"], "passkey-0-1024");
  EXPECT_GE(made["results"][2]["prompt_tokens"], 1000);
  EXPECT_LE(made["results"][2]["prompt_tokens"], 1024);
  EXPECT_GE(made["groups"][0]["score"], 1.0);

  // What is written is read as it was made, and is scored likewise.
  Args write = base;
  write.insert(write.end(), {"--write", dir_.File("lines")});
  EXPECT_EQ(Run(write).status, 0);
  const Json read = RunJson({"eval", "file", kModel, "--file", dir_.File("lines")});
  EXPECT_EQ(read["results"], made["results"]);
  EXPECT_EQ(read["groups"], made["groups"]);
  const Outcome table = Run({"eval", "file", kModel, "--file", dir_.File("lines")});
  EXPECT_THAT(table.out, HasSubstr("task         length  lines   score\n"));
}

TEST_F(Cli, RetrievalComparesWithExact) {
  const Args base = {"eval",    "retrieval", kModel,   "--tasks", "passkey",  "--length", "600",
                     "--lines", "2",         "--seed", "5",       "--depths", "0,50"};
  const Json exact = RunJson(base);
  EXPECT_EQ(exact["results"][1]["labels"]["depth"], "50 %");
  EXPECT_FALSE(exact.contains("exact_score"));
  Args few = base;
  few.insert(few.end(), {"--selector", "pages", "--sparse-keys", "16", "--sparse-sink", "16",
                         "--sparse-recent", "16", "--compare"});
  const Json compared = RunJson(few);
  EXPECT_EQ(compared["exact_score"], exact["score"]);
  EXPECT_EQ(compared["results"][0]["exact_output"], exact["results"][0]["output"]);
  EXPECT_EQ(compared["approximations"][0]["name"], "selection");
  EXPECT_TRUE(compared["groups"][0].contains("exact_score"));
  Args alone = base;
  alone.push_back("--compare");
  ExpectFailure(alone, 2,
                "--compare needs --sparse, --evict, --hgca, --kv-encoding or --head-pattern");
}

TEST_F(Cli, RetrievalRefusesTasksByName) {
  const auto with = [](const Args& more) {
    Args args = {"eval", "retrieval", kModel, "--lines", "1", "--length", "1k"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  ExpectFailure(with({"--tasks", "needles"}), 2, "--tasks: unknown task 'needles'; there are");
  ExpectFailure(with({"--tasks", "place", "--depths", "50"}), 2, "--depths needs one of");
  ExpectFailure(with({"--depths", "101"}), 2, "'101' is not a number from 0 to 100");
  ExpectFailure(with({"--tasks", "qa"}), 2, "the task qa needs --qa FILE");
  ExpectFailure(with({"--qa", "x"}), 2, "--qa needs the task qa");
  ExpectFailure({"eval", "retrieval", kModel, "--lines", "1", "--length", "4g"}, 2,
                "'4g' is not a number of tokens");
  WriteFile(dir_.File("squad"), "{\"data\": [{}]}");
  ExpectFailure(with({"--tasks", "qa", "--qa", dir_.File("squad")}), 1,
                "squad, article 1: \"paragraphs\" must be a list");
}

TEST_F(Cli, QuestionsAboutGivenTextsAreAsked) {
  std::string items;
  for (int i = 0; i < 12; ++i) {
    const std::string number = std::to_string(1000 + i);
    items += std::string(i == 0 ? "" : ",") + R"({"question": "Which number is of item )" + number +
             R"(?", "answer": ")" + number + R"(7", "supporting_facts": [["Item )" + number +
             R"(", 0]], "context": [["Item )" + number + R"(", ["The number is )" + number +
             "7.\"]]]}";
  }
  WriteFile(dir_.File("qa"), "[" + items + "]");
  EXPECT_EQ(Run({"eval", "retrieval", kModel, "--tasks", "qa", "--qa", dir_.File("qa"), "--length",
                 "256", "--lines", "2", "--write", dir_.File("lines")})
                .status,
            0);
  const Json line =
      Json::parse(ReadFile(dir_.File("lines")).substr(0, ReadFile(dir_.File("lines")).find('\n')),
                  nullptr, false);
  EXPECT_EQ(line["metric"], "contains-any");
  EXPECT_THAT(line["context"].get<std::string>(), HasSubstr(line["answer"][0].get<std::string>()));
}

TEST_F(Cli, RecallIsTheShareOfFarAttentionThatListsHold) {
  WriteFile(dir_.File("text"), Document(900)["context"]);
  const auto measure = [&](const Args& more) {
    Args args = {
        "eval",     "recall", kModel,          "--file", dir_.File("text"), "--context", "600",
        "--tokens", "12",     "--sparse-sink", "16",     "--sparse-recent", "32"};
    args.insert(args.end(), more.begin(), more.end());
    return RunJson(args);
  };
  const Json found = measure({"--sparse-keys", "64", "--windows", "2"});
  ASSERT_EQ(found["selectors"].size(), 2u);
  for (const Json& each : found["selectors"]) {
    EXPECT_EQ(each["steps"], 24);
    EXPECT_GT(each["recall"], 0.2);
    EXPECT_LE(each["recall"], each["oracle_of_layer"]);
    EXPECT_LE(each["oracle_of_head"], each["oracle_of_layer"]);
    EXPECT_LT(each["oracle_of_layer"], 1.0);
    // 4 of the 30 or so blocks between sink and recent keys.
    EXPECT_NEAR(each["far_blocks_read"].get<double>(), 4.0 / 31.0, 0.02);
    ASSERT_EQ(each["layers"].size(), 8u);
    for (const Json& layer : each["layers"]) {
      ASSERT_EQ(layer.size(), 4u);
      for (const Json& head : layer) {
        EXPECT_GE(head["recall"], 0.0);
        EXPECT_LE(head["recall"], 1.0 + 1e-6);
      }
    }
  }
  const Json &pages = found["selectors"][0], &quest = found["selectors"][1];
  EXPECT_EQ(pages["selector"], "pages");
  EXPECT_GT(pages["recall"], quest["recall"]);
  // A budget for each head lists no more than that head's oracle.
  EXPECT_LE(quest["recall"], quest["oracle_of_head"]);
  EXPECT_EQ(pages["far_attention"], quest["far_attention"]);
  EXPECT_GT(measure({"--sparse-keys", "160"})["selectors"][0]["recall"], pages["recall"]);
  // What infinitehip alone reads is no hindrance to the others.
  EXPECT_EQ(measure({"--sparse-keys", "64", "--selectors", "pages,infinitehip", "--hip-outer-keys",
                     "0", "--hip-stages", "64:128"})["selectors"]
                .size(),
            2u);
  // A budget that holds all keys leaves out nothing.
  EXPECT_EQ(measure({"--sparse-keys", "600"})["selectors"][0]["recall"], 1.0);

  const Args base = {"eval", "recall", kModel, "--file", dir_.File("text"), "--context", "600"};
  Args selector = base;
  selector.insert(selector.end(), {"--selectors", "none"});
  ExpectFailure(selector, 2, "--selectors: 'none' is no selector");
  Args unknown = base;
  unknown.insert(unknown.end(), {"--selectors", "best"});
  ExpectFailure(unknown, 1, "selector best");
}

// A document of several questions is read once.
TEST_F(Cli, FilesOfScBenchShareTheirContext) {
  const Json document = Document(500);
  Json line = {{"id", 1}, {"context", document["context"]}, {"multi_turns", Json::array()}};
  for (int i = 0; i < 2; ++i) {
    line["multi_turns"].push_back(
        {{"input", document["question"]}, {"answer", document["answer"]}});
  }
  const std::string path = dir_.File("scbench_passkey.jsonl");
  WriteFile(path, line.dump() + "\n");
  const Json found = RunJson({"eval", "file", kModel, "--file", path});
  EXPECT_EQ(found["score"], 1.0);
  ASSERT_EQ(found["results"].size(), 2u);
  EXPECT_FALSE(found["results"][0].contains("reused_tokens"));
  EXPECT_GT(found["results"][1]["reused_tokens"], 400);
  EXPECT_EQ(found["results"][1]["output"], found["results"][0]["output"]);
  EXPECT_EQ(found["groups"][1]["labels"]["turn"], "2");
}

TEST_F(Cli, FilesLoseTheirMiddleWhereAsked) {
  Json line = Document(900);
  const std::string path = dir_.File("own");
  WriteFile(path, line.dump() + "\n");
  const Args args = {"eval", "file", kModel, "--file", path, "--context", "300", "--json"};
  const Outcome outcome = Run(args);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("1 of 1 documents were longer than --context 300"));
  EXPECT_LE(outcome.json()["results"][0]["prompt_tokens"], 300);
  EXPECT_GE(outcome.json()["results"][0]["prompt_tokens"], 280);
  ExpectFailure({"eval", "file", kModel, "--file", path, "--context", "9"}, 1,
                "leaves no room for the document");
}

TEST_F(Cli, FilesAreRefusedByLine) {
  const Args args = {"eval", "file", kModel, "--file", "-"};
  ExpectFailure(args, 1, "standard input, line 1: is not a JSON object", "x\n");
  ExpectFailure(args, 1, "line 1: its keys are those of no format that is known", "{\"a\": 1}\n");
  Args named = args;
  named.insert(named.end(), {"--format", "longbench"});
  ExpectFailure(named, 1, "standard input, line 1: unknown task \"standard input\"",
                "{\"a\": 1}\n");
  ExpectFailure({"eval", "file", kModel, "--file", "-", "--format", "ruler"}, 2, "--format");
  ExpectFailure({"eval", "file", kModel}, 2, "--file is missing");
}

}  // namespace
}  // namespace headway
