#include "kv/session/saved_kept.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

namespace headway::kv {
namespace {

constexpr size_t kMostWords = 1024;

Status Corrupt(std::string reason) { return Status(StatusCode::kCorrupt, std::move(reason)); }

// `closed` tokens are there to choose from.
Status CheckPositions(const std::vector<int32_t>& positions, int64_t closed, int slots) {
  if (std::ssize(positions) % slots != 0) {
    return Corrupt(
        fmt::format("{} kept tokens do not fill whole pages of {}", positions.size(), slots));
  }
  int64_t before = -1;
  for (const int32_t position : positions) {
    if (position <= before || position >= closed) {
      return Corrupt(
          fmt::format("position {} follows {} among those of {} tokens", position, before, closed));
    }
    before = position;
  }
  return OkStatus();
}

// Of one head of one layer, by the number of its table; `tables` have as much each.
std::span<const std::byte> OpenRowsOf(const SavedKept& kept, size_t tables, size_t table) {
  const size_t bytes = kept.open.size() / tables;
  return std::span(kept.open).subspan(table * bytes, bytes);
}

}  // namespace

int64_t OpenPageBytes(const CacheFormat& format, int64_t tokens) {
  const auto page = static_cast<int64_t>(format.page.bytes());
  return 2 * int64_t{format.layers} * format.kv_heads * (tokens % format.page.page_slots) *
         (page / format.page.page_slots);
}

Status CheckKept(const SavedKept& kept, const CacheFormat& format, int64_t tokens) {
  const int slots = format.page.page_slots;
  const bool windows = std::any_of(format.window.begin(), format.window.end(),
                                   [](int64_t window) { return window > 0; });
  if (format.group_heads != 1 || windows) {
    return Corrupt("tokens are kept of heads in groups, or with windows");
  }
  const auto is_text = [](char c) { return c >= ' ' && c <= '~'; };
  if (kept.policy.empty() || kept.policy.size() > kMostWords ||
      !std::all_of(kept.policy.begin(), kept.policy.end(), is_text)) {
    return Corrupt("it does not say in words how tokens were chosen");
  }
  const int64_t closed = kept.from < 0 ? 0 : kept.ClosedPages(slots) * slots;
  if (kept.from < 0 || tokens < closed) {
    return Corrupt(fmt::format("tokens are kept of {}, and there are {}", kept.from, tokens));
  }
  const int64_t tables = int64_t{format.layers} * format.kv_heads;
  if (std::ssize(kept.positions) != tables) {
    return Corrupt(
        fmt::format("tokens are kept of {} heads, not of {}", kept.positions.size(), tables));
  }
  for (const std::vector<int32_t>& positions : kept.positions) {
    if (Status s = CheckPositions(positions, closed, slots); !s.ok()) return s;
  }
  if (std::ssize(kept.open) != OpenPageBytes(format, tokens)) {
    return Corrupt(fmt::format("open pages take {} bytes, not {}", kept.open.size(),
                               OpenPageBytes(format, tokens)));
  }
  return OkStatus();
}

SavedKept PartOfKept(const SavedKept& whole, int all, const LayerHeads& heads, int places) {
  SavedKept part{whole.policy, whole.from, {}, {}};
  for (size_t layer = 0; layer < heads.size(); ++layer) {
    for (const int head : heads[layer]) {
      const size_t table = layer * static_cast<size_t>(all) + static_cast<size_t>(head);
      part.positions.push_back(whole.positions[table]);
      const std::span<const std::byte> open = OpenRowsOf(whole, whole.positions.size(), table);
      part.open.insert(part.open.end(), open.begin(), open.end());
    }
    for (auto place = std::ssize(heads[layer]); place < places; ++place) {
      part.positions.emplace_back();
      part.open.resize(part.open.size() + whole.open.size() / whole.positions.size());
    }
  }
  return part;
}

SavedKept JoinKept(std::span<const SavedKept> parts, int all, std::span<const LayerHeads> heads) {
  SavedKept whole{parts.front().policy, parts.front().from, {}, {}};
  size_t bytes = 0;
  for (const SavedKept& part : parts) bytes += part.open.size();
  const size_t tables = heads.front().size() * static_cast<size_t>(all);
  whole.positions.resize(tables);
  whole.open.resize(bytes);
  for (size_t i = 0; i < parts.size(); ++i) {
    size_t own = 0;
    for (size_t layer = 0; layer < heads[i].size(); ++layer) {
      for (const int head : heads[i][layer]) {
        const size_t table = layer * static_cast<size_t>(all) + static_cast<size_t>(head);
        whole.positions[table] = parts[i].positions[own];
        const std::span<const std::byte> open =
            OpenRowsOf(parts[i], parts[i].positions.size(), own);
        std::copy(open.begin(), open.end(),
                  whole.open.begin() + static_cast<std::ptrdiff_t>(table * open.size()));
        ++own;
      }
    }
  }
  return whole;
}

void PutKept(const SavedKept& kept, WireWriter* out) {
  out->PutSized(std::as_bytes(std::span(kept.policy)));
  out->Put(kept.from);
  out->Put(static_cast<uint32_t>(kept.positions.size()));
  for (const std::vector<int32_t>& positions : kept.positions) {
    out->Put(static_cast<uint32_t>(positions.size()));
    for (const int32_t position : positions) out->Put(position);
  }
  out->PutSized(kept.open);
}

bool GetKept(WireReader* in, SavedKept* kept) {
  if (!in->GetSized(&kept->policy)) return false;
  kept->from = in->Get<int64_t>();
  const auto tables = in->Get<uint32_t>();
  if (tables > in->left() / sizeof(uint32_t)) return false;
  kept->positions.resize(tables);
  for (std::vector<int32_t>& positions : kept->positions) {
    const auto count = in->Get<uint32_t>();
    if (count > in->left() / sizeof(int32_t)) return false;
    positions.resize(count);
    for (int32_t& position : positions) position = in->Get<int32_t>();
  }
  return in->GetSized(&kept->open);
}

}  // namespace headway::kv
