#include "cli/selection_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/App.hpp>
#include <map>
#include <string>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/report.h"
#include "cli/test_console.h"

namespace headway::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kDemo = HEADWAY_SOURCE_DIR "/models/demo";

// How wrong usage is refused; empty where it is not.
std::string Refused(Args args) {
  args.insert(args.begin(), "m");
  const auto app = NewApp("test", "A test.", "");
  ModelFlags flags;
  AddModelFlags(*app, &flags);
  TestConsole test;
  return Parse(*app, args, test.console()).has_value() ? test.err() : "";
}

TEST(SelectionFlags, HelpHasTheirDefaults) {
  const auto app = NewApp("test", "A test.", "");
  ModelFlags flags;
  AddModelFlags(*app, &flags);
  const std::map<std::string, std::string> defaults = {
      {"--sparse-keys", "2048"},
      {"--sparse-sink", "256"},
      {"--sparse-recent", "1024"},
      {"--sparse-share", "0"},
      {"--sparse-top-p", "0"},
      {"--sparse-least", "64"},
      {"--sparse-epsilon", "0"},
      {"--sparse-delta", "0.05"},
      {"--sparse-block",
       "16, in very long contexts on GPUs up to 64; with infinitehip 8, with infllm 64"},
      {"--sparse-looks", "1"},
      {"--sparse-refresh", "1, with --policy infinitehip 4, -fast and -flash 8"},
      {"--sparse-candidates-refresh", "1"},
      {"--sparse-from", "with pages as long as that is predicted to be as fast, else 0"},
      {"--sparse-cache", "what some steps choose"},
      {"--hip-stages", "256:32768,32:8192"},
      {"--hip-refresh", "none, with --policy infinitehip 16,8, -fast 32,16 and -flash 96,24"},
      {"--hip-outer-keys", "4096"}};
  for (const auto& [name, text] : defaults) {
    EXPECT_EQ(app->get_option(name)->get_default_str(), text) << name;
  }
}

TEST(SelectionFlags, APolicyWithASelectorGoesWithNoOther) {
  EXPECT_THAT(Refused({"--policy", "infinitehip", "--selector", "quest"}),
              HasSubstr("--selector: quest does not go with --policy infinitehip"));
  EXPECT_THAT(Refused({"--policy", "infinitehip-flash", "--selector", "quest"}),
              HasSubstr("quest does not go with --policy infinitehip-flash"));
  EXPECT_THAT(Refused({"--selector", "none", "--policy=infinitehip"}), HasSubstr("--selector"));
  EXPECT_EQ(Refused({"--policy", "infinitehip", "--selector", "infinitehip"}), "");
  EXPECT_EQ(Refused({"--policy", "auto", "--selector", "quest"}), "");
}

struct Ran {
  int status = -1;
  std::string out, err;
};
Ran RunWith(const Args& more) {
  std::string prompt;
  for (int i = 0; i < 40; ++i) prompt += "Once upon a time there was a king. ";
  Args args = {"run", kDemo, "-p", prompt, "-n", "8", "--ignore-eos", "--threads", "1"};
  args.insert(args.end(), more.begin(), more.end());
  TestConsole test;
  const int status = Main(args, test.console());
  return {status, test.out(), test.err()};
}

const Args kFewKeys = {"--sparse-keys", "64", "--sparse-sink", "64", "--sparse-recent", "64"};
Args With(Args args, const Args& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(SelectionFlags, RunsSayThatAnswersAreApproximate) {
  const Ran ran = RunWith(With(kFewKeys, {"--selector", "quest"}));
  EXPECT_EQ(ran.status, kExitDone) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("selection quest: approximate from 193 tokens on, where a head "
                                 "attends to 192 keys of "));
  // Four of the sink, four that are chosen, and three of recent keys, the others of which are in
  // the open page.
  EXPECT_THAT(ran.err, HasSubstr(" 11.0 of 24.0 blocks"));
  const Ran json = RunWith(With(kFewKeys, {"--selector", "quest", "--json"}));
  EXPECT_EQ(json.status, kExitDone) << json.err;
  const Json parsed = Json::parse(json.out);
  EXPECT_EQ(parsed["plan"]["selection"]["whole"], 192);
  EXPECT_EQ(parsed["timings"]["listed_blocks"]["blocks_of_a_list"], 11.0);
  // What the budget holds is exact, as are drafts that are verified.
  EXPECT_THAT(RunWith({"--sparse"}).err, HasSubstr("selection pages: exact, since"));
  EXPECT_THAT(RunWith(With(kFewKeys, {"--draft", "sparse"})).err, Not(HasSubstr("selection ")));
}

TEST(SelectionFlags, WhatNothingReadsIsRefusedByName) {
  const Ran without = RunWith({"--sparse-keys", "64"});
  EXPECT_EQ(without.status, kExitFailed);
  EXPECT_THAT(without.err, HasSubstr("--sparse-keys needs --sparse or --draft sparse\n"));
  EXPECT_THAT(RunWith({"--sparse", "--hip-stages", "64:128"}).err,
              HasSubstr("--hip-stages: only infinitehip reads it"));
  EXPECT_THAT(RunWith({"--policy", "infinitehip", "--hip-stages", "64"}).err,
              HasSubstr("error: --hip-stages: '64' are not up to two pairs"));
}

}  // namespace
}  // namespace headway::cli
