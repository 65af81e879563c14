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
