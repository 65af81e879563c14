// The tokens of a model and their ids.
#ifndef HEADWAY_MODEL_TOKENIZER_VOCABULARY_H_
#define HEADWAY_MODEL_TOKENIZER_VOCABULARY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "headway/status.h"

namespace headway::tok {

class Vocabulary {
 public:
  Vocabulary() = default;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  // Tokens are collected first, then made searchable. Of equal tokens the last counts.
  void Add(std::string_view token, int64_t id);
  // kCorrupt when an id is negative, or so large that most ids below it have no token.
  Status Finish();

  // How many different tokens there are.
  int size() const { return static_cast<int>(ids_.size()); }
  TokenId max_id() const { return static_cast<TokenId>(by_id_.size()) - 1; }
  std::optional<TokenId> Find(std::string_view token) const;
  // Nothing for an id that no token has.
  std::optional<std::string_view> Token(TokenId id) const;

 private:
  struct Entry {
    size_t offset;  // in text_
    size_t length;
    int64_t id;
  };
  std::string_view TextOf(const Entry& entry) const {
    return std::string_view(text_).substr(entry.offset, entry.length);
  }

  std::string text_;  // all tokens
  std::vector<Entry> entries_;
  std::vector<int32_t> by_id_;  // index into entries_, -1 for none
  std::unordered_map<std::string_view, TokenId> ids_;
};

}  // namespace headway::tok

#endif  // HEADWAY_MODEL_TOKENIZER_VOCABULARY_H_
