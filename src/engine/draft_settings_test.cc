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
  EXPECT_EQ(ReadSettings(options)->drafts.acceptance, 0.5);
  EXPECT_NE(DraftersOf(ReadSettings(options)->drafts), nullptr);
}

// Chosen keys are those of drafts: with them nothing is an approximation.
TEST(DraftSettings, SparseDraftsChooseByPages) {
  EngineOptions options;
  options.draft = "sparse";
  options.sparse_keys = 512;
  options.sparse_top_p = 0.9;
  const Settings settings = *ReadSettings(options);
  EXPECT_EQ(settings.drafts.tokens, 7);
  EXPECT_EQ(DraftersOf(settings.drafts), nullptr);
  EXPECT_STREQ(SelectorName(settings.selection), "pages");
  EXPECT_EQ(settings.selection.keys, 512);
  EXPECT_TRUE(settings.selection.drafts());
  EXPECT_FALSE(settings.selection.approximates());
  options.draft_acceptance = 0.5;
  EXPECT_NE(DraftersOf(ReadSettings(options)->drafts), nullptr);
  EXPECT_TRUE(ReadSettings(options)->selection.drafts());
}

// What is none of the names is a model.
TEST(DraftSettings, AnotherModelDrafts) {
  EngineOptions options;
  options.draft = "models/small";
  const DraftSettings drafts = ReadSettings(options)->drafts;
  EXPECT_EQ(drafts.by, DraftSettings::By::kModel);
  EXPECT_EQ(drafts.model, "models/small");
  EXPECT_EQ(drafts.tokens, 7);
  EXPECT_EQ(DraftersOf(drafts), nullptr);
  options.draft_acceptance = 0.5;
  EXPECT_NE(DraftersOf(ReadSettings(options)->drafts), nullptr);
}

TEST(DraftSettings, WhatMakesNoSenseIsRefused) {
  const auto names = [](const std::string& what,
                        const std::function<void(EngineOptions&)>& change) {
    EXPECT_NE(Wrong(change).find(what), std::string::npos) << what << ": " << Wrong(change);
  };
  EXPECT_EQ(Wrong([](EngineOptions&) {}), "");
  names("draft", [](EngineOptions& o) { o.draft = ""; });
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
  for (const std::string draft : {"lookup", "sparse", "models/small"}) {
    const auto beside = [&](const std::string& what,
                            const std::function<void(EngineOptions&)>& change) {
      const auto both = [&](EngineOptions& o) {
        o.draft = draft;
        change(o);
      };
      names(what, both);
      names("draft", both);
    };
    beside("selector", [](EngineOptions& o) { o.selector = "pages"; });
    beside("evicted", [](EngineOptions& o) {
      o.evict = "snapkv";
      o.evicted = "demote";
    });
    beside("hgca", [](EngineOptions& o) { o.hgca = 1.0; });
    beside("self_extend", [](EngineOptions& o) { o.self_extend = "4:1024"; });
  }
  names("evict", [](EngineOptions& o) {
    o.draft = "sparse";
    o.evict = "snapkv";
  });
  names("head_pattern", [](EngineOptions& o) {
    o.draft = "sparse";
    o.head_pattern = "x";
  });
  names("selector", [](EngineOptions& o) {
    o.draft = "sparse";
    o.sparse_prefill = true;
  });
  names("selector", [](EngineOptions& o) {
    o.draft = "sparse";
    o.reach = "on";
  });
  names("sparse_keys is at least 1", [](EngineOptions& o) {
    o.draft = "sparse";
    o.sparse_keys = 0;
  });
}

}  // namespace
}  // namespace headway
