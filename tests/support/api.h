// What tests of the public API share.
#ifndef HEADWAY_TESTS_SUPPORT_API_H_
#define HEADWAY_TESTS_SUPPORT_API_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "headway/engine.h"

namespace headway {

inline const std::string kDemo = std::string(HEADWAY_SOURCE_DIR) + "/models/demo";
inline const std::string kGolden = std::string(HEADWAY_SOURCE_DIR) + "/tests/golden/models/";

inline std::unique_ptr<Engine> Open(const std::string& model, const EngineOptions& options = {}) {
  Result<std::unique_ptr<Engine>> engine = Engine::Open(model, options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? std::move(*engine) : nullptr;
}

inline std::vector<TokenId> Tokens(int64_t count, int vocab, int seed) {
  std::vector<TokenId> tokens;
  uint64_t state = static_cast<uint64_t>(seed) * 7919 + 1;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(static_cast<TokenId>((state >> 33) % static_cast<uint64_t>(vocab)));
  }
  return tokens;
}

// Text that quotes itself: `count` tokens of the demo's document, over and over a run of 150. The
// model continues such text with margins far beyond what another order of additions changes, so
// greedy tokens are the same on every processor.
inline std::vector<TokenId> Quoting(const Engine& engine, int64_t count, size_t from) {
  std::ifstream in(std::string(HEADWAY_SOURCE_DIR) + "/examples/document.txt");
  std::string text(8000, ' ');
  in.read(text.data(), 8000);
  Result<std::vector<TokenId>> all = engine.Encode(text, {.add_special_tokens = false});
  EXPECT_TRUE(all.ok() && all->size() > from + 150);
  std::vector<TokenId> tokens = {engine.info().bos.value_or(0)};
  while (static_cast<int64_t>(tokens.size()) < count) {
    tokens.push_back((*all)[from + (tokens.size() - 1) % 150]);
  }
  return tokens;
}

inline Request RequestOf(std::vector<TokenId> prompt, int64_t n) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = n;
  request.ignore_eos = true;
  return request;
}

inline Result<Generation> GenerateOne(Context& context, const Request& request) {
  Result<std::vector<Generation>> result = context.Generate({&request, 1}, {});
  if (!result.ok()) return result.status();
  return std::move((*result)[0]);
}

inline Generation Fresh(const std::string& model, const EngineOptions& options,
                        const Request& request, Timings* timings = nullptr) {
  std::unique_ptr<Engine> engine = Open(model, options);
  Result<std::unique_ptr<Context>> context =
      engine->NewContext({{static_cast<int64_t>(request.prompt.size()) + request.max_tokens}});
  EXPECT_TRUE(context.ok()) << context.status().message();
  Result<Generation> result = GenerateOne(**context, request);
  EXPECT_TRUE(result.ok()) << result.status().message();
  if (timings != nullptr) *timings = (*context)->timings();
  return *result;
}

}  // namespace headway

#endif  // HEADWAY_TESTS_SUPPORT_API_H_
