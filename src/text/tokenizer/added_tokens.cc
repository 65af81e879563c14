#include "text/tokenizer/added_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/utf8.h"
#include "text/tokenizer/text.h"
#include "text/unicode/unicode.h"

namespace headway::tok {
namespace {

// Bounds what looking for the tokens costs a byte of text.
constexpr size_t kMaxContentBytes = 1024;
constexpr size_t kMaxAddedTokens = size_t{1} << 20;

bool EndsWithWord(std::string_view text) {
  size_t length = 0;
  return !text.empty() && unicode::IsWordCharacter(LastCharacter(text, &length));
}

bool BeginsWithWord(std::string_view text) {
  size_t offset = 0;
  return !text.empty() && unicode::IsWordCharacter(NextCharacter(text, &offset));
}

// Where the white space at the end of `text` begins, but not before `floor`.
size_t BeginOfTrailingSpace(std::string_view text, size_t floor) {
  size_t begin = text.size();
  while (begin > floor) {
    size_t length = 0;
    if (!unicode::IsWhitespace(LastCharacter(text.substr(0, begin), &length))) break;
    begin -= length;
  }
  return begin;
}

// Where the white space from `begin` on ends.
size_t EndOfSpace(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    size_t next = begin;
    if (!unicode::IsWhitespace(NextCharacter(text, &next))) break;
    begin = next;
  }
  return begin;
}

Result<AddedToken> ReadToken(const JsonNode& node) {
  AddedToken token;
  Result<std::string> content = node.String("content");
  if (!content.ok()) return content.status();
  token.content = *std::move(content);
  if (token.content.size() > kMaxContentBytes) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{}: the content {} is longer than {} bytes", node.path(),
                              Quoted(token.content), kMaxContentBytes));
  }
  const std::pair<const char*, bool*> flags[] = {{"single_word", &token.single_word},
                                                 {"lstrip", &token.lstrip},
                                                 {"rstrip", &token.rstrip},
                                                 {"normalized", &token.normalized},
                                                 {"special", &token.special}};
  for (const auto& [key, flag] : flags) {
    const Result<bool> value = node.Bool(key, false);
    if (!value.ok()) return value.status();
    *flag = *value;
  }
  return token;
}

}  // namespace

std::array<int32_t, 256> AddedTokens::Finder::AllNone() {
  std::array<int32_t, 256> roots;
  roots.fill(-1);
  return roots;
}

void AddedTokens::Finder::Add(std::string_view token, TokenId id) {
  if (token.empty()) return;
  int32_t* link = &roots_[static_cast<uint8_t>(token[0])];
  int32_t node = -1;
  for (size_t i = 0; i < token.size(); ++i) {
    if (i > 0) link = &nodes_[static_cast<size_t>(node)].first_child;
    while (*link >= 0 && nodes_[static_cast<size_t>(*link)].byte != token[i]) {
      link = &nodes_[static_cast<size_t>(*link)].next_sibling;
    }
    if (*link < 0) {
      *link = static_cast<int32_t>(nodes_.size());
      node = *link;
      nodes_.push_back({.byte = token[i]});  // moves what `link` points to
    } else {
      node = *link;
    }
  }
  // Where two tokens look the same after normalization, the first is found.
  TokenId& found = nodes_[static_cast<size_t>(node)].id;
  if (found < 0) found = id;
}

TokenId AddedTokens::Finder::Find(std::string_view text, size_t from, size_t* begin,
                                  size_t* end) const {
  for (size_t start = from; start < text.size(); ++start) {
    int32_t node = roots_[static_cast<uint8_t>(text[start])];
    TokenId id = -1;
    size_t at = start;
    while (node >= 0) {
      const TreeNode& here = nodes_[static_cast<size_t>(node)];
      if (here.byte != text[at]) {
        node = here.next_sibling;
        continue;
      }
      ++at;
      if (here.id >= 0) {
        id = here.id;
        *end = at;
      }
      if (at == text.size()) break;
      node = here.first_child;
    }
    if (id >= 0) {
      *begin = start;
      return id;
    }
  }
  return -1;
}

Status AddedTokens::AddList(const JsonNode& list, const Vocabulary& vocabulary,
                            const Normalizer& normalizer, TokenId* next_id) {
  if (list.IsNull()) return OkStatus();
  const Result<size_t> size = list.Size();
  if (!size.ok()) return size.status();
  if (*size > kMaxAddedTokens) return list.Corrupt("has more than 2^20 tokens");
  for (size_t i = 0; i < *size; ++i) {
    Result<AddedToken> token = ReadToken(list.Element(i));
    if (!token.ok()) return token.status();
    if (token->content.empty()) continue;
    Status status = Add(*std::move(token), vocabulary, normalizer, next_id);
    if (!status.ok()) return AtPath(list.Element(i).path(), status);
  }
  return OkStatus();
}

Status AddedTokens::AddDecoder(const JsonNode& decoder, const Vocabulary& vocabulary,
                               const Normalizer& normalizer, TokenId* next_id) {
  if (decoder.IsNull()) return OkStatus();
  if (!decoder.value().is_object()) return decoder.Corrupt("is not an object");
  if (decoder.value().size() > kMaxAddedTokens) return decoder.Corrupt("has more than 2^20 tokens");
  std::map<uint32_t, std::string> keys;
  for (const auto& [key, token] : decoder.value().items()) {
    uint32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) {
      return decoder.Corrupt(fmt::format("the key {} is no token's id", Quoted(key)));
    }
    keys[id] = key;
  }
  for (const auto& [number, key] : keys) {
    const JsonNode node = decoder.Member(key);
    Result<AddedToken> token = ReadToken(node);
    if (!token.ok()) return token.status();
    if (token->content.empty()) continue;
    const std::optional<TokenId> known = Find(token->content);
    if (known.has_value() && by_id_.at(*known).token == *token) continue;
    changes_ += fmt::format("{} {:d}{:d}{:d}{:d}{:d}\n", token->content, token->single_word,
                            token->lstrip, token->rstrip, token->normalized, token->special);
    Status status = Add(*std::move(token), vocabulary, normalizer, next_id);
    if (!status.ok()) return AtPath(node.path(), status);
  }
  return OkStatus();
}

Result<AddedTokens> AddedTokens::FromJson(const JsonNode& list, const JsonNode& decoder,
                                          const Vocabulary& vocabulary,
                                          const Normalizer& normalizer) {
  AddedTokens added;
  TokenId next_id = vocabulary.size();
  Status status = added.AddList(list, vocabulary, normalizer, &next_id);
  if (status.ok()) status = added.AddDecoder(decoder, vocabulary, normalizer, &next_id);
  if (!status.ok()) return status;
  // In order of ids, for the same result whatever the order of a hash table.
  std::vector<TokenId> order;
  for (const auto& [id, entry] : added.by_id_) order.push_back(id);
  std::sort(order.begin(), order.end());
  for (TokenId id : order) {
    const Entry& entry = added.by_id_.at(id);
    (entry.token.normalized ? added.normalized_ : added.raw_).Add(entry.decoded, id);
    added.max_id_ = std::max(added.max_id_, id);
  }
  return added;
}

Status AddedTokens::Add(AddedToken token, const Vocabulary& vocabulary,
                        const Normalizer& normalizer, TokenId* next_id) {
  std::optional<TokenId> id = Find(token.content);
  if (!id.has_value()) id = vocabulary.Find(token.content);
  if (!id.has_value()) id = (*next_id)++;
  Entry entry{.token = std::move(token), .decoded = {}};
  entry.decoded = entry.token.content;
  if (entry.token.normalized) {
    PieceWork work(entry.token.content.size());
    Piece piece{.text = entry.token.content};
    Status status = normalizer.Apply(&piece, &work);
    if (!status.ok()) return status;
    if (piece.text.size() > kMaxContentBytes) {
      return Status(StatusCode::kUnsupported, "normalizes to more than 1024 bytes");
    }
    entry.decoded = std::string(piece.text);
  }
  ids_[entry.token.content] = *id;
  if (entry.token.special) special_[entry.token.content] = true;
  by_id_[*id] = std::move(entry);
  return OkStatus();
}

std::optional<TokenId> AddedTokens::Find(std::string_view content) const {
  const auto it = ids_.find(std::string(content));
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

const std::string* AddedTokens::DecodedForm(TokenId id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : &it->second.decoded;
}

bool AddedTokens::IsSpecial(TokenId id) const {
  const auto it = by_id_.find(id);
  return it != by_id_.end() && it->second.token.special;
}

void AddedTokens::Cut(const Piece& piece, const Finder& finder, const EncodeOptions& options,
                      std::vector<Piece>* pieces) const {
  const std::string_view text = piece.text;
  const auto keep = [&](size_t begin, size_t end, TokenId id) {
    if (begin >= end) return;
    pieces->push_back(piece.Slice(begin, end));
    pieces->back().added = id;
  };
  size_t done = 0;
  size_t space_end = 0;  // of the last run of white space that a token took behind it
  size_t found_begin = 0;
  size_t found_end = 0;
  for (size_t from = 0; from < text.size(); from = found_end) {
    const TokenId id = finder.empty() ? -1 : finder.Find(text, from, &found_begin, &found_end);
    if (id < 0) break;
    const AddedToken& token = by_id_.at(id).token;
    if (!options.parse_special && IsSpecialContent(token.content)) continue;
    size_t begin = found_begin;
    size_t end = found_end;
    if (token.single_word &&
        (EndsWithWord(text.substr(0, begin)) || BeginsWithWord(text.substr(end)))) {
      continue;
    }
    // `done` can lie behind `begin`, when white space that belongs to the last token is itself a
    // token.
    if (token.lstrip) {
      begin = std::max(BeginOfTrailingSpace(text.substr(0, begin), std::min(done, begin)), done);
    }
    if (token.rstrip) {
      // Inside a run of white space that was looked through before, its end is known.
      if (end >= space_end) space_end = EndOfSpace(text, end);
      end = space_end;
    }
    keep(done, begin, -1);
    keep(begin, end, id);
    done = end;
  }
  keep(done, text.size(), -1);
}

Status AddedTokens::Split(std::string_view text, const EncodeOptions& options,
                          const Normalizer& normalizer, PieceWork* work,
                          std::vector<Piece>* pieces) const {
  Piece whole{.text = text};
  if (!text.empty()) {
    size_t first = 0;
    NextCharacter(text, &first);
    whole.from_start = first;
  }
  std::vector<Piece> raw;
  Cut(whole, raw_, options, &raw);
  for (Piece& piece : raw) {
    if (piece.added >= 0) {
      pieces->push_back(piece);
      continue;
    }
    Status status = normalizer.Apply(&piece, work);
    if (!status.ok()) return status;
    Cut(piece, normalized_, options, pieces);
  }
  return OkStatus();
}

}  // namespace headway::tok
