// What tests of HGCA by the public API share.
#ifndef HEADWAY_TESTS_SUPPORT_HGCA_H_
#define HEADWAY_TESTS_SUPPORT_HGCA_H_

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "headway/engine.h"
#include "support/api.h"

namespace headway {

inline EngineOptions Hgca(double beta, int64_t window) {
  EngineOptions options;
  options.hgca = beta;
  options.hgca_window = window;
  return options;
}

// Heads choose anew every so many steps, by summaries.
inline EngineOptions Reselecting(int64_t steps, int64_t window) {
  EngineOptions options;
  options.hgca_reselect = steps;
  options.hgca_window = window;
  return options;
}

// What is said in `turns` turns of a conversation, of which each but the first goes on with some
// tokens of the text.
inline std::vector<std::vector<TokenId>> Turns(Engine& engine, std::vector<Request> requests,
                                               const std::vector<int64_t>& slots, int turns) {
  Result<std::unique_ptr<Context>> context = engine.NewContext({slots});
  EXPECT_TRUE(context.ok()) << context.status().message();
  std::vector<std::vector<TokenId>> tokens;
  for (int turn = 0; turn < turns; ++turn) {
    const Result<std::vector<Generation>> all = (*context)->Generate(requests, {});
    EXPECT_TRUE(all.ok()) << all.status().message();
    for (size_t i = 0; i < requests.size(); ++i) {
      const Generation& one = (*all)[i];
      tokens.push_back(one.tokens);
      EXPECT_TRUE(one.notices.empty());
      std::vector<TokenId>& prompt = requests[i].prompt;
      if (turn > 0 && requests.size() <= slots.size()) {
        EXPECT_GE(one.reused_tokens, std::ssize(prompt) - 100);
      }
      prompt.insert(prompt.end(), one.tokens.begin(), one.tokens.end());
      for (int k = 0; k < 30; ++k) prompt.push_back(prompt[prompt.size() - 150]);
    }
  }
  return tokens;
}

// Sessions hold whole caches: heads choose again when one is opened, and more than `least` tokens
// are not read again.
inline void GoOnWithASession(const EngineOptions& options, int64_t least) {
  Request request = RequestOf(Quoting(*Open(kDemo), 800, 9), 20);
  const auto turn = [&] {
    std::unique_ptr<Engine> engine = Open(kDemo, options);
    Result<std::unique_ptr<Context>> context = engine->NewContext({{1000}});
    EXPECT_TRUE(context.ok()) << context.status().message();
    Result<Generation> one = GenerateOne(**context, request);
    EXPECT_TRUE(one.ok()) << one.status().message();
    EXPECT_TRUE((*context)->SaveSession().ok());
    return *one;
  };
  const Generation first = turn();
  request.prompt.insert(request.prompt.end(), first.tokens.begin(), first.tokens.end());
  for (int k = 0; k < 30; ++k) {
    request.prompt.push_back(request.prompt[request.prompt.size() - 150]);
  }
  const Generation second = turn();
  EXPECT_GT(second.reused_tokens, least);
  EXPECT_EQ(second.tokens, Fresh(kDemo, {}, request).tokens);
}

// The likelihood of what is behind the first `prompt` tokens, read one by one.
inline double Behind(const EngineOptions& options, const std::vector<TokenId>& tokens,
                     int64_t prompt) {
  std::unique_ptr<Engine> engine = Open(kDemo, options);
  Result<std::unique_ptr<Context>> context =
      engine->NewContext({{static_cast<int64_t>(tokens.size())}});
  EXPECT_TRUE(context.ok()) << context.status().message();
  double sum = 0.0;
  Context::ScorePart part;
  for (part.end = prompt; part.begin < std::ssize(tokens) - 1; part.begin = part.end++) {
    const Result<Context::ScoreResult> score = (*context)->Score(tokens, part, {});
    EXPECT_TRUE(score.ok()) << score.status().message();
    if (!score.ok()) return NAN;
    if (part.begin > 0) sum += score->negative_log_likelihood;
  }
  return sum;
}

}  // namespace headway

#endif  // HEADWAY_TESTS_SUPPORT_HGCA_H_
