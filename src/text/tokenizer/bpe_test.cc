#include "text/tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"

namespace headway::tok {
namespace {

// A random model over few letters, and its merges by text.
struct RandomModel {
  explicit RandomModel(Random* random) {
    std::vector<std::string> tokens;
    for (char c = 'a'; c < 'a' + 4; ++c) Add(std::string(1, c), &tokens);
    for (int i = 0; i < 60; ++i) {
      const std::string left = tokens[static_cast<size_t>(random->Below(int64_t(tokens.size())))];
      const std::string right = tokens[static_cast<size_t>(random->Below(int64_t(tokens.size())))];
      if (left.size() + right.size() > 9 || ranks.contains({left, right})) continue;
      Add(left + right, &tokens);
      ranks[{left, right}] = static_cast<int>(merges.size());
      merges.push_back({ids[left], ids[right], ids[left + right]});
    }
    for (const auto& [token, id] : ids) vocabulary.Add(token, id);
    EXPECT_TRUE(vocabulary.Finish().ok());
  }

  void Add(const std::string& token, std::vector<std::string>* tokens) {
    if (ids.contains(token)) return;
    const auto id = static_cast<TokenId>(ids.size());
    ids[token] = id;
    tokens->push_back(token);
  }

  // Byte-pair encoding by its definition: the best pair anywhere, again and again.
  std::vector<TokenId> Encode(const std::string& word) const {
    std::vector<std::string> parts;
    for (char c : word) parts.emplace_back(1, c);
    while (true) {
      int best = -1;
      size_t at = 0;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto it = ranks.find({parts[i], parts[i + 1]});
        if (it == ranks.end() || (best >= 0 && it->second >= best)) continue;
        best = it->second;
        at = i;
      }
      if (best < 0) break;
      parts[at] += parts[at + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
    std::vector<TokenId> tokens;
    for (const std::string& part : parts) tokens.push_back(ids.at(part));
    return tokens;
  }

  std::map<std::string, TokenId> ids;
  std::map<std::pair<std::string, std::string>, int> ranks;
  std::vector<Bpe::Merge> merges;
  Vocabulary vocabulary;
};

TEST(BpeTest, MergesByDefinition) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Random random(seed);
    RandomModel model(&random);
    const Bpe bpe(std::move(model.vocabulary), model.merges, {});
    std::vector<std::string> words(40);
    for (std::string& word : words) {
      const int64_t length = 1 + random.Below(random.Below(4) == 0 ? 150 : 12);
      for (int64_t i = 0; i < length; ++i) word += static_cast<char>('a' + random.Below(4));
    }
    words.insert(words.end(), words.begin(), words.end());  // known words too
    if (seed % 5 == 0) {  // long ones, which the queue of merges goes through in runs
      words.emplace_back(1500, 'a');
      words.emplace_back();
      for (int i = 0; i < 1100; ++i) words.back() += static_cast<char>('a' + random.Below(4));
    }
    BpeWork work;
    std::vector<TokenId> tokens;
    std::vector<TokenId> expected;
    for (const std::string& word : words) {
      ASSERT_TRUE(bpe.Encode(word, WordText::kCharacters, &work, &tokens).ok());
      const std::vector<TokenId> part = model.Encode(word);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    EXPECT_EQ(tokens, expected) << "seed " << seed;
  }
}

// Characters that are no token: bytes, an unknown token for each or for a run, or nothing.
TEST(BpeTest, SpellsUnknownCharacters) {
  const auto encode = [](BpeOptions options, std::vector<std::string> tokens,
                         const std::string& word) {
    Vocabulary vocabulary;
    for (size_t i = 0; i < tokens.size(); ++i) {
      vocabulary.Add(tokens[i], static_cast<int64_t>(i));
    }
    EXPECT_TRUE(vocabulary.Finish().ok());
    const Bpe bpe(std::move(vocabulary), {}, std::move(options));
    BpeWork work;
    std::vector<TokenId> result;
    EXPECT_TRUE(bpe.Encode(word, WordText::kCharacters, &work, &result).ok());
    return result;
  };
  using Tokens = std::vector<TokenId>;
  EXPECT_EQ(encode({}, {"a", "?"}, "aéa"), (Tokens{0, 0}));
  EXPECT_EQ(encode({.unknown_token = "?"}, {"a", "?"}, "aééa"), (Tokens{0, 1, 1, 0}));
  EXPECT_EQ(encode({.unknown_token = "?", .fuse_unknown = true}, {"a", "?"}, "aééa"),
            (Tokens{0, 1, 0}));
  EXPECT_EQ(
      encode({.unknown_token = "?", .byte_fallback = true}, {"a", "?", "<0xC3>", "<0xA9>"}, "aé中"),
      (Tokens{0, 2, 3, 1}));
}

TEST(BpeTest, SaysWhenThereIsNoUnknownToken) {
  Vocabulary vocabulary;
  vocabulary.Add("a", 0);
  ASSERT_TRUE(vocabulary.Finish().ok());
  const Bpe bpe(std::move(vocabulary), {}, {.unknown_token = "<unk>"});
  BpeWork work;
  std::vector<TokenId> tokens;
  EXPECT_TRUE(bpe.Encode("aa", WordText::kCharacters, &work, &tokens).ok());
  const Status status = bpe.Encode("ab", WordText::kCharacters, &work, &tokens);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace headway::tok
