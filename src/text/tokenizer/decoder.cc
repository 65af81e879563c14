#include "text/tokenizer/decoder.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/piece.h"
#include "text/tokenizer/pre_tokenizer.h"

namespace headway::tok {
namespace {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";
// A token that replacements make longer than this is left alone: a few of them can double a text
// until memory ends.
constexpr size_t kMaxReplacedBytes = size_t{16} << 20;

// The byte of a token like <0xE2>, -1 for other tokens. As the library does, "+" counts as a digit
// in front.
int FallbackByte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (size_t i = 3; i < 5; ++i) {
    const char c = token[i];
    if (c >= '0' && c <= '9') {
      value = value * 16 + (c - '0');
    } else if (c >= 'a' && c <= 'f') {
      value = value * 16 + (c - 'a' + 10);
    } else if (c >= 'A' && c <= 'F') {
      value = value * 16 + (c - 'A' + 10);
    } else if (c != '+' || i != 3) {
      return -1;
    }
  }
  return value;
}

}  // namespace

Result<Decoder> Decoder::FromJson(const JsonNode& node) {
  Decoder decoder;
  if (node.IsNull()) {
    decoder.join_by_space_ = true;
    return decoder;
  }
  Status status = AddSteps(node, "decoders", AddStep, &decoder.steps_);
  if (!status.ok()) return status;
  return decoder;
}

Status Decoder::AddStep(const JsonNode& node, const std::string& type, std::vector<Step>* steps) {
  if (type == "ByteLevel") {
    steps->push_back(ByteLevel{});
  } else if (type == "ByteFallback") {
    steps->push_back(ByteFallback{});
  } else if (type == "Fuse") {
    steps->push_back(Fuse{});
  } else if (type == "Replace") {
    Result<Regex> pattern = ReadPattern(node, "pattern");
    if (!pattern.ok()) return pattern.status();
    Result<std::string> content = node.String("content");
    if (!content.ok()) return content.status();
    steps->push_back(Replace{*std::move(pattern), *std::move(content)});
  } else if (type == "Strip") {
    Result<std::string> content = node.String("content");
    if (!content.ok()) return content.status();
    size_t end = 0;
    if (!content->empty()) NextCharacter(*content, &end);
    if (end == 0 || end != content->size()) {
      return node.Member("content").Corrupt("is not one character");
    }
    const Result<int64_t> start = node.Integer("start");
    if (!start.ok()) return start.status();
    const Result<int64_t> stop = node.Integer("stop");
    if (!stop.ok()) return stop.status();
    steps->push_back(
        Strip{*std::move(content), static_cast<uint64_t>(*start), static_cast<uint64_t>(*stop)});
  } else if (type == "Metaspace") {
    Result<std::string> replacement = MetaspaceReplacement(node);
    if (!replacement.ok()) return replacement.status();
    const Result<std::string> scheme = MetaspaceScheme(node);
    if (!scheme.ok()) return scheme.status();
    steps->push_back(Metaspace{*std::move(replacement), *scheme != "never"});
  } else {
    return UnsupportedType(node, type);
  }
  return OkStatus();
}

void DecodeStream::Token(std::string_view token, std::string* text) {
  text_ = text;
  if (decoder_->join_by_space_ && any_token_) text_->push_back(' ');
  any_token_ = true;
  Begin(0);
  Chunk(0, token);
  End(0);
  text_ = nullptr;
}

void DecodeStream::Finish(std::string* text) {
  text_ = text;
  FinishStep(0);
  text_ = nullptr;
}

RegexScratch* DecodeStream::regex(size_t token_bytes) {
  if (regex_ == nullptr) regex_ = std::make_unique<RegexScratch>(token_bytes);
  regex_->Reset(token_bytes);
  return regex_.get();
}

void DecodeStream::Emit(size_t step, std::string_view token) {
  Begin(step);
  Chunk(step, token);
  End(step);
}

void DecodeStream::Begin(size_t step) {
  if (step == states_.size()) return;
  State& state = states_[step];
  const Decoder::Step& kind = decoder_->steps_[step];
  if (std::holds_alternative<Decoder::Fuse>(kind)) {
    if (!state.open) Begin(step + 1);
    state.open = true;
  } else if (std::holds_alternative<Decoder::Strip>(kind)) {
    state.count = 0;
    state.trailing = 0;
    state.open = false;
    Begin(step + 1);
  } else if (std::holds_alternative<Decoder::Metaspace>(kind)) {
    Begin(step + 1);
  } else {
    state.token.clear();
  }
}

void DecodeStream::Chunk(size_t step, std::string_view chunk) {
  if (chunk.empty()) return;
  if (step == states_.size()) {
    text_->append(chunk);
    return;
  }
  const Decoder::Step& kind = decoder_->steps_[step];
  if (std::holds_alternative<Decoder::Fuse>(kind)) {
    Chunk(step + 1, chunk);
  } else if (const auto* strip = std::get_if<Decoder::Strip>(&kind)) {
    StripChunk(step, *strip, chunk);
  } else if (const auto* metaspace = std::get_if<Decoder::Metaspace>(&kind)) {
    MetaspaceChunk(step, *metaspace, chunk);
  } else {
    states_[step].token += chunk;
  }
}

void DecodeStream::End(size_t step) {
  if (step == states_.size()) return;
  const Decoder::Step& kind = decoder_->steps_[step];
  if (std::holds_alternative<Decoder::ByteLevel>(kind)) {
    EndByteLevel(step);
  } else if (std::holds_alternative<Decoder::ByteFallback>(kind)) {
    EndByteFallback(step);
  } else if (const auto* replace = std::get_if<Decoder::Replace>(&kind)) {
    EndReplace(step, *replace);
  } else if (std::holds_alternative<Decoder::Strip>(kind)) {
    End(step + 1);  // what is held back is cut off
  } else if (std::holds_alternative<Decoder::Metaspace>(kind)) {
    ++states_[step].count;
    End(step + 1);
  }
}

void DecodeStream::FinishStep(size_t step) {
  if (step == states_.size()) return;
  State& state = states_[step];
  const Decoder::Step& kind = decoder_->steps_[step];
  if (std::holds_alternative<Decoder::ByteLevel>(kind) ||
      std::holds_alternative<Decoder::Fuse>(kind)) {
    // One token comes out even when none went in.
    if (!state.open) Begin(step + 1);
    if (!state.held.empty()) Chunk(step + 1, ReplaceInvalidUtf8(state.held));
    End(step + 1);
  } else if (std::holds_alternative<Decoder::ByteFallback>(kind)) {
    FlushBytes(step);
  }
  FinishStep(step + 1);
}

void DecodeStream::EndByteLevel(size_t step) {
  State& state = states_[step];
  if (!state.open) Begin(step + 1);
  state.open = true;
  // A token with other characters stands for its own bytes.
  if (!AppendFromByteLevel(state.token, &state.held)) state.held += state.token;
  const size_t incomplete = IncompleteUtf8Suffix(state.held);
  const size_t complete = state.held.size() - incomplete;
  const std::string text = ReplaceInvalidUtf8(std::string_view(state.held).substr(0, complete));
  state.held.erase(0, complete);
  Chunk(step + 1, text);
}

void DecodeStream::FlushBytes(size_t step) {
  std::string bytes;
  bytes.swap(states_[step].held);
  if (bytes.empty()) return;
  if (IsValidUtf8(bytes)) {
    Emit(step + 1, bytes);
    return;
  }
  for (size_t i = 0; i < bytes.size(); ++i) Emit(step + 1, kReplacementCharacter);
}

void DecodeStream::EndByteFallback(size_t step) {
  State& state = states_[step];
  const int byte = FallbackByte(state.token);
  if (byte >= 0) {
    state.held.push_back(static_cast<char>(byte));
    return;
  }
  FlushBytes(step);
  Emit(step + 1, state.token);
}

void DecodeStream::EndReplace(size_t step, const Decoder::Replace& replace) {
  const std::string& token = states_[step].token;
  std::vector<Stretch> stretches;
  std::string replaced;
  Status status = replace.pattern.Split(token, regex(token.size()), &stretches);
  const auto matches = static_cast<size_t>(std::count_if(
      stretches.begin(), stretches.end(), [](const Stretch& stretch) { return stretch.match; }));
  if (!status.ok() || matches * replace.content.size() > kMaxReplacedBytes) {
    Emit(step + 1, token);
    return;
  }
  for (const Stretch& stretch : stretches) {
    replaced += stretch.match
                    ? std::string_view(replace.content)
                    : std::string_view(token).substr(stretch.begin, stretch.end - stretch.begin);
  }
  Emit(step + 1, replaced);
}

void DecodeStream::StripChunk(size_t step, const Decoder::Strip& strip, std::string_view chunk) {
  State& state = states_[step];
  for (size_t offset = 0; offset < chunk.size();) {
    const size_t begin = offset;
    NextCharacter(chunk, &offset);
    const std::string_view character = chunk.substr(begin, offset - begin);
    const bool wanted = character == strip.content;
    // `open` says that the front is over.
    if (!state.open && wanted && state.count < strip.start) {
      ++state.count;
      continue;
    }
    state.open = true;
    if (wanted && state.trailing < strip.stop) {
      ++state.trailing;
      continue;
    }
    if (!wanted) {
      for (; state.trailing > 0; --state.trailing) Chunk(step + 1, strip.content);
    }
    // With as many held back as may be cut off, one more lets the first of them go.
    Chunk(step + 1, character);
  }
}

void DecodeStream::MetaspaceChunk(size_t step, const Decoder::Metaspace& metaspace,
                                  std::string_view chunk) {
  std::string text;
  for (size_t offset = 0; offset < chunk.size();) {
    const size_t begin = offset;
    NextCharacter(chunk, &offset);
    const std::string_view character = chunk.substr(begin, offset - begin);
    if (character != metaspace.replacement) {
      text += character;
    } else if (states_[step].count > 0 || !metaspace.prepends) {
      text.push_back(' ');
    }
  }
  Chunk(step + 1, text);
}

}  // namespace headway::tok
