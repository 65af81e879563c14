#include "text/tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <utility>

#include "base/utf8.h"
#include "text/tokenizer/byte_level.h"
#include "text/tokenizer/text.h"

namespace headway::tok {
namespace {

constexpr int32_t kMerged = -2;
constexpr uint64_t kNoPair = ~uint64_t{0};  // ids are not negative, so no pair is this
constexpr size_t kMaxRememberedBytes = 64;
constexpr size_t kMaxRemembered = size_t{1} << 17;

uint64_t PairOf(TokenId left, TokenId right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

uint64_t Mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0x9E3779B97F4A7C15u;
  return x ^ (x >> 29);
}

}  // namespace

Bpe::Bpe(Vocabulary vocabulary, const std::vector<Merge>& merges, BpeOptions options)
    : vocabulary_(std::move(vocabulary)),
      options_(std::move(options)),
      ranks_(merges.size()),
      characters_(0x1100) {
  // At most half full, so that a search that finds nothing is short.
  merges_.assign(std::bit_ceil(2 * merges.size() + 2), {.pair = kNoPair, .rank = 0, .merged = -1});
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = PairOf(merges[rank].left, merges[rank].right);
    size_t slot = Mix(pair) & (merges_.size() - 1);
    while (merges_[slot].pair != kNoPair && merges_[slot].pair != pair) {
      slot = (slot + 1) & (merges_.size() - 1);
    }
    // A pair that is there twice has its last rank.
    merges_[slot] = {pair, static_cast<uint32_t>(rank), merges[rank].merged};
  }
  if (options_.unknown_token.has_value()) unknown_ = vocabulary_.Find(*options_.unknown_token);
  for (int byte = 0; byte < 256; ++byte) {
    const auto index = static_cast<size_t>(byte);
    bytes_[index] = vocabulary_.Find(ByteLevelCharacter(static_cast<uint8_t>(byte))).value_or(-1);
    fallback_[index] = vocabulary_.Find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
  for (TokenId id = 0; id <= vocabulary_.max_id(); ++id) {
    const std::optional<std::string_view> token = vocabulary_.Token(id);
    if (!token.has_value() || token->empty()) continue;
    size_t end = 0;
    const char32_t c = NextCharacter(*token, &end);
    if (end != token->size()) continue;
    std::unique_ptr<std::array<TokenId, 256>>& page = characters_[c >> 8];
    if (page == nullptr) {
      page = std::make_unique<std::array<TokenId, 256>>();
      page->fill(-1);
    }
    // Two ids may have the same token: the one that a search finds counts.
    (*page)[c & 0xFF] = vocabulary_.Find(*token).value_or(-1);
  }
}

TokenId Bpe::CharacterToken(char32_t c) const {
  const std::unique_ptr<std::array<TokenId, 256>>& page = characters_[c >> 8];
  return page == nullptr ? -1 : (*page)[c & 0xFF];
}

const Bpe::MergeSlot* Bpe::FindMerge(TokenId left, TokenId right) const {
  const uint64_t pair = PairOf(left, right);
  for (size_t slot = Mix(pair) & (merges_.size() - 1);; slot = (slot + 1) & (merges_.size() - 1)) {
    if (merges_[slot].pair == pair) return &merges_[slot];
    if (merges_[slot].pair == kNoPair) return nullptr;
  }
}

void Bpe::Add(TokenId id, BpeWork* work) const {
  const auto index = static_cast<int32_t>(work->symbols.size());
  if (index > 0) work->symbols.back().next = index;
  work->symbols.push_back({.id = id, .previous = index - 1, .next = -1});
}

// A character that is no token. An unknown token waits for the next known character, so that a run
// can be fused; byte tokens do not let it go first, odd as that is: so does the library.
Status Bpe::SpellUnknown(std::string_view character, BpeWork* work, bool* unknown_waits) const {
  if (options_.byte_fallback) {
    const bool all = std::all_of(character.begin(), character.end(), [this](char byte) {
      return fallback_[static_cast<uint8_t>(byte)] >= 0;
    });
    if (all) {
      for (char byte : character) Add(fallback_[static_cast<uint8_t>(byte)], work);
      return OkStatus();
    }
  }
  if (!options_.unknown_token.has_value()) return OkStatus();  // it vanishes
  if (!unknown_.has_value()) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("the text has the character {}, which is no token, and the "
                              "tokenizer's unk_token {} is none either",
                              Quoted(character), Quoted(*options_.unknown_token)));
  }
  if (*unknown_waits && !options_.fuse_unknown) Add(*unknown_, work);
  *unknown_waits = true;
  return OkStatus();
}

// Fills work->symbols with the tokens of the word's characters.
Status Bpe::Spell(std::string_view word, WordText kind, BpeWork* work) const {
  work->symbols.clear();
  bool unknown_waits = false;
  for (size_t offset = 0; offset < word.size();) {
    const size_t begin = offset;
    TokenId id = -1;
    if (kind == WordText::kBytes) {
      id = bytes_[static_cast<uint8_t>(word[offset++])];
    } else {
      id = CharacterToken(NextCharacter(word, &offset));
    }
    if (id >= 0) {
      if (unknown_waits) Add(*unknown_, work);
      unknown_waits = false;
      Add(id, work);
      continue;
    }
    const std::string_view character = kind == WordText::kBytes
                                           ? ByteLevelCharacter(static_cast<uint8_t>(word[begin]))
                                           : word.substr(begin, offset - begin);
    Status status = SpellUnknown(character, work, &unknown_waits);
    if (!status.ok()) return status;
  }
  if (unknown_waits) Add(*unknown_, work);
  return OkStatus();
}

// Merges the pair of the smallest rank, leftmost first, until none is left.
void Bpe::MergeAll(BpeWork* work) const {
  std::vector<BpeWork::Symbol>& symbols = work->symbols;
  MergeQueue& queue = work->queue;
  queue.Start(symbols.size(), ranks_);
  const auto push = [&](int32_t position, TokenId left, TokenId right) {
    if (const MergeSlot* merge = FindMerge(left, right)) {
      queue.Push({.rank = merge->rank, .position = position, .merged = merge->merged});
    }
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    push(static_cast<int32_t>(i), symbols[i].id, symbols[i + 1].id);
  }
  for (MergeCandidate top; queue.Pop(&top);) {
    BpeWork::Symbol& left = symbols[static_cast<size_t>(top.position)];
    if (left.next < 0) continue;  // merged away, or the last one
    BpeWork::Symbol& right = symbols[static_cast<size_t>(left.next)];
    const MergeSlot* merge = FindMerge(left.id, right.id);
    if (merge == nullptr || merge->merged != top.merged) continue;  // the pair has changed
    left.id = top.merged;
    left.next = right.next;
    right.next = kMerged;
    if (left.previous >= 0) {
      push(left.previous, symbols[static_cast<size_t>(left.previous)].id, left.id);
    }
    if (left.next >= 0) {
      BpeWork::Symbol& next = symbols[static_cast<size_t>(left.next)];
      next.previous = top.position;
      push(top.position, left.id, next.id);
    }
  }
}

Status Bpe::EncodeNew(std::string_view word, WordText kind, BpeWork* work,
                      std::vector<TokenId>* tokens) const {
  if (word.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return Status(StatusCode::kInvalidArgument, "a word of the text is longer than 2 GiB");
  }
  if (options_.ignore_merges) {
    std::optional<TokenId> whole;
    if (kind == WordText::kBytes) {
      std::string characters;
      AppendByteLevel(word, &characters);
      whole = vocabulary_.Find(characters);
    } else {
      whole = vocabulary_.Find(word);
    }
    if (whole.has_value()) {
      tokens->push_back(*whole);
      return OkStatus();
    }
  }
  Status status = Spell(word, kind, work);
  if (!status.ok()) return status;
  MergeAll(work);
  for (const BpeWork::Symbol& symbol : work->symbols) {
    if (symbol.next != kMerged) tokens->push_back(symbol.id);
  }
  return OkStatus();
}

Status Bpe::Encode(std::string_view word, WordText kind, BpeWork* work,
                   std::vector<TokenId>* tokens) const {
  if (word.empty()) return OkStatus();
  if (word.size() > kMaxRememberedBytes) return EncodeNew(word, kind, work, tokens);
  std::vector<BpeWork::Memory>& memory = work->memory;
  if (2 * work->remembered >= memory.size() && memory.size() < kMaxRemembered * 2) {
    std::vector<BpeWork::Memory> larger(std::max<size_t>(256, 4 * memory.size()));
    for (const BpeWork::Memory& entry : memory) {
      if (entry.word.empty()) continue;
      size_t slot = std::hash<std::string_view>{}(entry.word) & (larger.size() - 1);
      while (!larger[slot].word.empty()) slot = (slot + 1) & (larger.size() - 1);
      larger[slot] = entry;
    }
    memory = std::move(larger);
  }
  size_t slot = std::hash<std::string_view>{}(word) & (memory.size() - 1);
  for (; !memory[slot].word.empty(); slot = (slot + 1) & (memory.size() - 1)) {
    if (memory[slot].word != word) continue;
    // Indices, not iterators: appending may move the tokens.
    for (size_t i = 0; i < memory[slot].count; ++i) {
      tokens->push_back((*tokens)[memory[slot].begin + i]);
    }
    return OkStatus();
  }
  const size_t begin = tokens->size();
  Status status = EncodeNew(word, kind, work, tokens);
  if (!status.ok()) return status;
  if (work->remembered < kMaxRemembered) {
    memory[slot] = {.word = word, .begin = begin, .count = tokens->size() - begin};
    ++work->remembered;
  }
  return OkStatus();
}

}  // namespace headway::tok
