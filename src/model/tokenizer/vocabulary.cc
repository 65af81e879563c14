#include "model/tokenizer/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/tokenizer/text.h"

namespace headway::tok {
namespace {

// Ids need not be dense, but a table over them must not be much larger than the file.
constexpr int64_t kMaxSpareIds = int64_t{1} << 20;

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
  ids_.reserve(entries_.size());
  // Keys are views into text_: a short string would move with the object.
  text_.reserve(64);
  for (size_t i = 0; i < entries_.size(); ++i) {
    by_id_[static_cast<size_t>(entries_[i].id)] = static_cast<int32_t>(i);
    ids_[TextOf(entries_[i])] = static_cast<TokenId>(entries_[i].id);
  }
  return OkStatus();
}

std::optional<TokenId> Vocabulary::Find(std::string_view token) const {
  const auto it = ids_.find(token);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

std::optional<std::string_view> Vocabulary::Token(TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) >= by_id_.size()) return std::nullopt;
  const int32_t index = by_id_[static_cast<size_t>(id)];
  if (index < 0) return std::nullopt;
  return TextOf(entries_[static_cast<size_t>(index)]);
}

}  // namespace headway::tok
