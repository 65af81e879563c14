// The tokens of a model and their ids.
#ifndef HEADWAY_TEXT_TOKENIZER_VOCABULARY_H_
#define HEADWAY_TEXT_TOKENIZER_VOCABULARY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "headway/status.h"

namespace headway::tok {

class Vocabulary {
 public:
  // Tokens are collected first, then made searchable by Finish. Of equal tokens the last counts.
  void Add(std::string_view token, int64_t id);
  // kCorrupt when an id is negative, or so large that most ids below it have no token.
  Status Finish();

  // How many different tokens there are.
  int size() const { return distinct_; }
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
  // Of a table with open addressing, at most half full: a map of strings takes several times as
  // long to build, and a large vocabulary is searched a million times while its merges are read.
  struct Slot {
    uint32_t hash = 0;
    int32_t entry = -1;  // index into entries_, -1 for none
  };

  // The token's slot, or the free one where it belongs.
  size_t SlotOf(std::string_view token, uint32_t hash) const;
  std::string_view TextOf(const Entry& entry) const {
    return std::string_view(text_).substr(entry.offset, entry.length);
  }

  std::string text_;  // all tokens
  std::vector<Entry> entries_;
  std::vector<int32_t> by_id_;  // index into entries_, -1 for none
  std::vector<Slot> slots_;     // a power of two of them
  int distinct_ = 0;
};

}  // namespace headway::tok

#endif  // HEADWAY_TEXT_TOKENIZER_VOCABULARY_H_
