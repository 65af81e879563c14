// Tokenizer: text to tokens and back, as the model's tokenizer.json says, token for token as
// Hugging Face's tokenizers does it.
#ifndef HEADWAY_TEXT_TOKENIZER_TOKENIZER_H_
#define HEADWAY_TEXT_TOKENIZER_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/env.h"
#include "base/types.h"
#include "headway/status.h"
#include "headway/types.h"

namespace headway {

// Const methods may be called from several threads.
class Tokenizer {
 public:
  // From the text of a tokenizer.json; `name` begins every message. kCorrupt when it is damaged,
  // kUnsupported, naming part and type, when it has what Headway does not do. Truncation and
  // padding, if set, are ignored: a text is never cut silently.
  // `config` is tokenizer_config.json, whose added_tokens_decoder may add and change tokens, or
  // null.
  static Result<std::unique_ptr<Tokenizer>> FromJson(std::string_view json, std::string_view name,
                                                     const nlohmann::json* config = nullptr);
  // From `model_dir`/tokenizer.json and, where there is one, tokenizer_config.json.
  static Result<std::unique_ptr<Tokenizer>> Load(Env* env, const std::string& model_dir);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // kInvalidArgument, with the byte's offset, when `text` is not UTF-8.
  Result<std::vector<TokenId>> Encode(std::string_view text, EncodeOptions options) const;

  // Valid UTF-8 whatever the tokens: bytes that make no character become U+FFFD. Ids that are no
  // token are left out.
  std::string Decode(std::span<const TokenId> tokens, SpecialTokens special) const;

  // One more than the largest id.
  int vocab_size() const;
  bool IsSpecial(TokenId id) const;

  // Of the text of tokenizer.json and of what the config changed: the same in every run and
  // version, since session files hold it.
  uint64_t Hash() const;

 private:
  friend class Detokenizer;
  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);

  std::unique_ptr<const Parts> parts_;
};

// Decodes tokens as they are generated. All that Push and Finish return, put together, is what
// Decode returns for all tokens; each piece is valid UTF-8. The tokenizer must outlive it.
class Detokenizer {
 public:
  Detokenizer(const Tokenizer* tokenizer, SpecialTokens special);
  ~Detokenizer();
  Detokenizer(Detokenizer&&) noexcept;
  Detokenizer& operator=(Detokenizer&&) noexcept;

  // The text that is certain now: empty while a character is incomplete.
  std::string Push(TokenId token);
  // What is left; nothing may be pushed after it.
  std::string Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headway

#endif  // HEADWAY_TEXT_TOKENIZER_TOKENIZER_H_
