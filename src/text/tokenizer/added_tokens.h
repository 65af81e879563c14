// Added tokens: found in a text before the model sees it, never split, never merged.
#ifndef HEADWAY_TEXT_TOKENIZER_ADDED_TOKENS_H_
#define HEADWAY_TEXT_TOKENIZER_ADDED_TOKENS_H_

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "headway/status.h"
#include "headway/types.h"
#include "text/tokenizer/json_fields.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/piece.h"
#include "text/tokenizer/vocabulary.h"

namespace headway::tok {

struct AddedToken {
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space behind it
  bool normalized = false;   // looked for in the normalized text, in its normalized form
  bool special = false;

  bool operator==(const AddedToken&) const = default;
};

class AddedTokens {
 public:
  // The list "added_tokens" of tokenizer.json, and "added_tokens_decoder" of tokenizer_config.json,
  // which names tokens by id; either may be null. As in the library, a token that the model has
  // keeps the model's id, and the others are numbered on from the model's size: the ids of the list
  // are not used, and those of the decoder give the order alone. What both have is as the decoder
  // says.
  static Result<AddedTokens> FromJson(const JsonNode& list, const JsonNode& decoder,
                                      const Vocabulary& vocabulary, const Normalizer& normalizer);

  std::optional<TokenId> Find(std::string_view content) const;
  // What stands for the token in decoding, its normalized form; null when `id` is not an added one.
  const std::string* DecodedForm(TokenId id) const;
  bool IsSpecial(TokenId id) const;
  // Decoding leaves out what equals the content of a special token.
  bool IsSpecialContent(std::string_view content) const { return special_.contains(content); }
  TokenId max_id() const { return max_id_; }
  // What the decoder changed, as a text that differs where that differs; empty for nothing.
  const std::string& changes() const { return changes_; }

  // Cuts `text` at the added tokens and normalizes what lies between; empty pieces vanish. Special
  // tokens are found only where the options say so.
  Status Split(std::string_view text, const EncodeOptions& options, const Normalizer& normalizer,
               PieceWork* work, std::vector<Piece>* pieces) const;

 private:
  // A prefix tree over the bytes of the tokens to look for.
  class Finder {
   public:
    void Add(std::string_view token, TokenId id);
    bool empty() const { return nodes_.empty(); }
    // The leftmost and there the longest token at or after `from`; -1 when there is none.
    TokenId Find(std::string_view text, size_t from, size_t* begin, size_t* end) const;

   private:
    struct TreeNode {
      int32_t first_child = -1;
      int32_t next_sibling = -1;
      TokenId id = -1;
      char byte = 0;
    };
    std::vector<TreeNode> nodes_;
    std::array<int32_t, 256> roots_ = AllNone();
    static std::array<int32_t, 256> AllNone();
  };

  struct Entry {
    AddedToken token;
    std::string decoded;
  };

  Status Add(AddedToken token, const Vocabulary& vocabulary, const Normalizer& normalizer,
             TokenId* next_id);
  Status AddList(const JsonNode& list, const Vocabulary& vocabulary, const Normalizer& normalizer,
                 TokenId* next_id);
  Status AddDecoder(const JsonNode& decoder, const Vocabulary& vocabulary,
                    const Normalizer& normalizer, TokenId* next_id);
  void Cut(const Piece& piece, const Finder& finder, const EncodeOptions& options,
           std::vector<Piece>* pieces) const;

  std::unordered_map<TokenId, Entry> by_id_;
  std::unordered_map<std::string, TokenId> ids_;
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  std::unordered_map<std::string, bool, Hash, std::equal_to<>> special_;
  Finder raw_;
  Finder normalized_;
  TokenId max_id_ = -1;
  std::string changes_;
};

}  // namespace headway::tok

#endif  // HEADWAY_TEXT_TOKENIZER_ADDED_TOKENS_H_
