// The decoder of tokenizer.json: what makes text of tokens. It works as a stream: each step takes
// tokens as they come and hands on what no later token can change, so decoding a whole list and
// decoding one by one give the same text.
#ifndef HEADWAY_TEXT_TOKENIZER_DECODER_H_
#define HEADWAY_TEXT_TOKENIZER_DECODER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "headway/status.h"
#include "text/tokenizer/json_fields.h"
#include "text/tokenizer/regex.h"

namespace headway::tok {

class Decoder {
 public:
  // A null node is the decoder that joins tokens by spaces.
  static Result<Decoder> FromJson(const JsonNode& node);

 private:
  friend class DecodeStream;
  // Bytes of the byte-level alphabet, all fused into one UTF-8 text.
  struct ByteLevel {};
  // A token that cannot be replaced within limits (a hostile pattern) stays as it is.
  struct Replace {
    Regex pattern;
    std::string content;
  };
  // Runs of tokens like <0xE2> become text; a run that is not UTF-8 becomes U+FFFD, one a byte.
  struct ByteFallback {};
  struct Fuse {};
  // Up to `start` and `stop` characters `content` off the ends of every token.
  struct Strip {
    std::string content;
    uint64_t start;
    uint64_t stop;
  };
  struct Metaspace {
    std::string replacement;
    bool prepends;
  };
  using Step = std::variant<ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace>;

  static Status AddStep(const JsonNode& node, const std::string& type, std::vector<Step>* steps);

  std::vector<Step> steps_;  // Sequences are laid flat
  bool join_by_space_ = false;
};

// One text on its way out. The decoder must outlive it.
class DecodeStream {
 public:
  explicit DecodeStream(const Decoder* decoder)
      : decoder_(decoder), states_(decoder->steps_.size()) {}

  // Appends to `*text` what is certain after one more token, and what is left after the last one.
  void Token(std::string_view token, std::string* text);
  void Finish(std::string* text);

 private:
  // A token passes a step as Begin, any number of chunks of whole characters, End.
  struct State {
    std::string token;      // collected chunks, for steps that need all of a token
    std::string held;       // bytes or characters that later ones decide about
    bool open = false;      // a token that goes on has been begun in the next step
    uint64_t count = 0;     // Metaspace: tokens; Strip: characters taken off the front
    uint64_t trailing = 0;  // Strip: characters held back
  };

  void Begin(size_t step);
  void Chunk(size_t step, std::string_view chunk);
  void End(size_t step);
  void FinishStep(size_t step);
  void Emit(size_t step, std::string_view token);  // a whole token

  void EndByteLevel(size_t step);
  void EndByteFallback(size_t step);
  void FlushBytes(size_t step);
  void EndReplace(size_t step, const Decoder::Replace& replace);
  void StripChunk(size_t step, const Decoder::Strip& strip, std::string_view chunk);
  void MetaspaceChunk(size_t step, const Decoder::Metaspace& metaspace, std::string_view chunk);
  RegexScratch* regex(size_t token_bytes);

  const Decoder* decoder_;
  std::vector<State> states_;
  std::unique_ptr<RegexScratch> regex_;
  bool any_token_ = false;
  std::string* text_ = nullptr;  // during a call
};

}  // namespace headway::tok

#endif  // HEADWAY_TEXT_TOKENIZER_DECODER_H_
