// Drafts behind prompts of which heads keep a part: what is generated is what the same heads give
// without drafts, alone and in batches, up to the end of the room behind a prompt.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "support/api.h"

namespace headway {
namespace {

EngineOptions Keeping(const std::string& method, const std::string& encoding) {
  EngineOptions options;
  options.threads = 2;
  options.evict = method;
  options.evict_budget = "384";
  options.evict_room = 70;
  options.kv_encoding = encoding;
  options.freeze_plan = true;
  return options;
}

// Two texts in two slots, then what follows the first one's answer, which goes on behind what was
// kept. The last of these ends where the room does.
std::vector<Generation> Generations(const EngineOptions& options, Timings* timings) {
  const std::unique_ptr<Engine> engine = Open(kDemo, options);
  std::vector<Request> requests;
  for (const int64_t n : {710, 870}) {
    requests.push_back(RequestOf(Quoting(*engine, n, static_cast<size_t>(n - 700)), 40));
  }
  Result<std::unique_ptr<Context>> context = engine->NewContext({{1000, 1000}});
  EXPECT_TRUE(context.ok()) << context.status().message();
  Result<std::vector<Generation>> made = (*context)->Generate(requests, {});
  EXPECT_TRUE(made.ok()) << made.status().message();
  Request next = requests[0];
  next.prompt.insert(next.prompt.end(), (*made)[0].tokens.begin(), (*made)[0].tokens.end());
  Result<Generation> more = GenerateOne(**context, next);
  EXPECT_TRUE(more.ok()) << more.status().message();
  made->push_back(std::move(*more));
  *timings = (*context)->timings();
  return std::move(*made);
}

TEST(KeptDrafts, TokensAreThoseWithoutDrafts) {
  for (const auto& [method, encoding] :
       {std::pair{"snapkv", "none"}, {"ada-snapkv", "none"}, {"ada-snapkv", "int8"}}) {
    Timings timings;
    EngineOptions options = Keeping(method, encoding);
    const std::vector<Generation> plain = Generations(options, &timings);
    EXPECT_GT(plain[2].reused_tokens, 700);
    EXPECT_EQ(plain[2].finish, FinishReason::kContextFull);
    for (const std::string& by : {std::string("lookup"), kDemo}) {
      options.draft = by;
      const std::vector<Generation> drafted = Generations(options, &timings);
      EXPECT_GT(timings.accepted_drafts, 8) << method << " by " << by;
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_EQ(drafted[i].tokens, plain[i].tokens) << method << " " << encoding << " by " << by;
        EXPECT_EQ(drafted[i].finish, plain[i].finish);
        EXPECT_EQ(drafted[i].reused_tokens, plain[i].reused_tokens);
      }
    }
  }
}

}  // namespace
}  // namespace headway
