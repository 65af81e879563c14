#include "text/tokenizer/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>

#include "text/tokenizer/text.h"

namespace headway::tok {
namespace {

// Ids need not be dense, but a table over them must not be much larger than the file.
constexpr int64_t kMaxSpareIds = int64_t{1} << 20;

uint32_t HashOf(std::string_view token) {
  return static_cast<uint32_t>(std::hash<std::string_view>{}(token));
}

}  // namespace

void Vocabulary::Add(std::string_view token, int64_t id) {
  entries_.push_back({.offset = text_.size(), .length = token.size(), .id = id});
  text_ += token;
}

Status Vocabulary::Finish() {
  const int64_t limit = 4 * static_cast<int64_t>(entries_.size()) + kMaxSpareIds;
  int64_t max_id = -1;
  for (const Entry& entry : entries_) {
    if (entry.id < 0 || entry.id >= limit) {
      return Status(StatusCode::kCorrupt,
                    fmt::format("model.vocab: the token {} has the id {}, out of range",
                                Quoted(TextOf(entry)), entry.id));
    }
    max_id = std::max(max_id, entry.id);
  }
  by_id_.assign(static_cast<size_t>(max_id + 1), -1);
  slots_.assign(std::bit_ceil(2 * entries_.size() + 2), Slot{});
  for (size_t i = 0; i < entries_.size(); ++i) {
    by_id_[static_cast<size_t>(entries_[i].id)] = static_cast<int32_t>(i);
    const std::string_view token = TextOf(entries_[i]);
    const uint32_t hash = HashOf(token);
    Slot& slot = slots_[SlotOf(token, hash)];
    if (slot.entry < 0) ++distinct_;
    slot = {hash, static_cast<int32_t>(i)};
  }
  return OkStatus();
}

size_t Vocabulary::SlotOf(std::string_view token, uint32_t hash) const {
  size_t slot = hash & (slots_.size() - 1);
  while (slots_[slot].entry >= 0 &&
         (slots_[slot].hash != hash ||
          TextOf(entries_[static_cast<size_t>(slots_[slot].entry)]) != token)) {
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return slot;
}

std::optional<TokenId> Vocabulary::Find(std::string_view token) const {
  const Slot& slot = slots_[SlotOf(token, HashOf(token))];
  if (slot.entry < 0) return std::nullopt;
  return static_cast<TokenId>(entries_[static_cast<size_t>(slot.entry)].id);
}

std::optional<std::string_view> Vocabulary::Token(TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) >= by_id_.size()) return std::nullopt;
  const int32_t index = by_id_[static_cast<size_t>(id)];
  if (index < 0) return std::nullopt;
  return TextOf(entries_[static_cast<size_t>(index)]);
}

}  // namespace headway::tok
