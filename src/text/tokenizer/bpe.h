// Byte-pair encoding: the model of every tokenizer that Headway reads.
#ifndef HEADWAY_TEXT_TOKENIZER_BPE_H_
#define HEADWAY_TEXT_TOKENIZER_BPE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "headway/status.h"
#include "text/tokenizer/merge_queue.h"
#include "text/tokenizer/vocabulary.h"

namespace headway::tok {

struct BpeOptions {
  std::optional<std::string> unknown_token;
  bool fuse_unknown = false;   // a run of unknown characters is one unknown token
  bool byte_fallback = false;  // unknown characters become tokens like <0xE2>
  bool ignore_merges = false;  // a word that is a token is taken as it is
};

// What a word's text is.
enum class WordText {
  kCharacters,  // UTF-8
  kBytes,       // bytes that stand for the characters of the byte-level alphabet
};

// The encoding of one text, word by word. It remembers words: most of a text is repetition.
struct BpeWork {
  struct Symbol {
    TokenId id;
    int32_t previous;
    int32_t next;  // -1 at the end; kMerged once the symbol went into the one before it
  };
  // A word seen before: its text, and where its tokens lie in the output.
  struct Memory {
    std::string_view word;
    size_t begin = 0;
    size_t count = 0;
  };

  std::vector<Symbol> symbols;
  MergeQueue queue;
  std::vector<Memory> memory;  // open addressing; a power of two
  size_t remembered = 0;
};

class Bpe {
 public:
  // `merges` are in order of rank, the pairs by id, with the id they merge to.
  struct Merge {
    TokenId left;
    TokenId right;
    TokenId merged;
  };
  Bpe(Vocabulary vocabulary, const std::vector<Merge>& merges, BpeOptions options);

  const Vocabulary& vocabulary() const { return vocabulary_; }

  // Appends the tokens of `word`. The text of the words and `*tokens` must stay as they are as long
  // as `*work` is used.
  Status Encode(std::string_view word, WordText kind, BpeWork* work,
                std::vector<TokenId>* tokens) const;

 private:
  // (left, right) -> rank and id; open addressing with linear probing.
  struct MergeSlot {
    uint64_t pair;
    uint32_t rank;
    TokenId merged;
  };

  const MergeSlot* FindMerge(TokenId left, TokenId right) const;
  Status EncodeNew(std::string_view word, WordText kind, BpeWork* work,
                   std::vector<TokenId>* tokens) const;
  Status Spell(std::string_view word, WordText kind, BpeWork* work) const;
  Status SpellUnknown(std::string_view character, BpeWork* work, bool* unknown_waits) const;
  void Add(TokenId id, BpeWork* work) const;
  void MergeAll(BpeWork* work) const;
  TokenId CharacterToken(char32_t c) const;

  Vocabulary vocabulary_;
  BpeOptions options_;
  std::vector<MergeSlot> merges_;
  size_t ranks_;
  std::optional<TokenId> unknown_;
  // Tokens of single characters, in pages of 256 code points; -1 for none.
  std::vector<std::unique_ptr<std::array<TokenId, 256>>> characters_;
  std::array<TokenId, 256> bytes_;     // of the byte-level alphabet
  std::array<TokenId, 256> fallback_;  // <0x00> to <0xFF>
};

}  // namespace headway::tok

#endif  // HEADWAY_TEXT_TOKENIZER_BPE_H_
