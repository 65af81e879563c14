#include "engine/draft_settings.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace headway {
namespace {

// What is wrong with the options; empty: nothing.
std::string Wrong(const std::function<void(EngineOptions&)>& change) {
  EngineOptions options;
  options.draft = "lookup";
  change(options);
  const Result<Settings> settings = ReadSettings(options);
  if (settings.ok()) return "";
  EXPECT_EQ(settings.status().message().find('\n'), std::string::npos);
  return settings.status().message();
}

TEST(DraftSettings, WhatIsGivenIsThere) {
  EngineOptions options;
  EXPECT_EQ(ReadSettings(options)->drafts.tokens, 0);
  EXPECT_EQ(DraftersOf(ReadSettings(options)->drafts), nullptr);
  options.draft = "lookup";
  EXPECT_EQ(ReadSettings(options)->drafts.tokens, 7);
  EXPECT_NE(DraftersOf(ReadSettings(options)->drafts), nullptr);
  options.draft_tokens = 3;
  EXPECT_EQ(ReadSettings(options)->drafts.tokens, 3);
  options.draft = "none";
  options.draft_acceptance = 0.5;
  EXPECT_EQ(ReadSettings(options)->drafts.by, DraftSettings::By::kRated);
  EXPECT_EQ(ReadSettings(options)->drafts.acceptance, 0.5);
}

TEST(DraftSettings, WhatMakesNoSenseIsRefused) {
  const auto names = [](const std::string& what,
                        const std::function<void(EngineOptions&)>& change) {
    EXPECT_NE(Wrong(change).find(what), std::string::npos) << what << ": " << Wrong(change);
  };
  EXPECT_EQ(Wrong([](EngineOptions&) {}), "");
  names("draft", [](EngineOptions& o) { o.draft = "guess"; });
  names("draft_tokens", [](EngineOptions& o) { o.draft_tokens = 0; });
  names("draft_tokens", [](EngineOptions& o) { o.draft_tokens = 16; });
  names("draft_tokens needs draft", [](EngineOptions& o) {
    o.draft = "none";
    o.draft_tokens = 3;
  });
  names("draft_acceptance", [](EngineOptions& o) { o.draft_acceptance = 0.5; });
  names("draft_acceptance", [](EngineOptions& o) {
    o.draft = "none";
    o.draft_acceptance = 1.5;
  });
  names("selector", [](EngineOptions& o) { o.selector = "pages"; });
  names("evict", [](EngineOptions& o) { o.evict = "snapkv"; });
  names("hgca", [](EngineOptions& o) { o.hgca = 1.0; });
  names("head_pattern", [](EngineOptions& o) { o.head_pattern = "x"; });
  names("self_extend", [](EngineOptions& o) { o.self_extend = "4:1024"; });
  names("tensor_parallel", [](EngineOptions& o) { o.tensor_parallel = 2; });
}

}  // namespace
}  // namespace headway
