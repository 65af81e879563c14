#include "engine/step/key_logits.h"

#include <algorithm>

#include "base/bytes.h"
#include "kernels/items.h"

namespace headway {
namespace {

// Of decoded keys: few launches, and the caches of processors still hold what was decoded when it
// is read.
constexpr int64_t kMostBytes = int64_t{8} << 20;

int64_t PageBytes(const PageFormat& page) { return static_cast<int64_t>(page.bytes()); }

int64_t Pages(const PageFormat& page, int64_t tokens) {
  if (page.encoding == Encoding::kNone) return 0;
  const int64_t most = std::max<int64_t>(1, kMostBytes / PageBytes(page));
  return std::min(most, CeilDiv(tokens, page.page_slots));
}

}  // namespace

int64_t KeyLogits::Bytes(const PageFormat& page, int64_t tokens) {
  return Pages(page, tokens) * PageBytes(page);
}

KeyLogits::KeyLogits(Kernels& kernels, Stream& compute, const PageFormat& page, std::byte* memory,
                     int64_t tokens)
    : kernels_(kernels),
      compute_(compute),
      page_(page),
      memory_(memory),
      pages_(Pages(page, tokens)) {}

void KeyLogits::Run(int group, float scale, std::span<const KeyLogitsItem> items) {
  for (const KeyLogitsItem& item : items) {
    if (item.keys.pages.params == nullptr) {
      logits_.push_back(item);
    } else {
      AddDecoded(item, group, scale);
    }
  }
  Flush(group, scale);
}

// Parts of an item lie in whole pages of the memory.
void KeyLogits::AddDecoded(const KeyLogitsItem& item, int group, float scale) {
  for (int64_t begin = 0; begin < item.keys.pages.count;) {
    if (taken_ == pages_) Flush(group, scale);
    const int64_t count =
        std::min((pages_ - taken_) * page_.page_slots, item.keys.pages.count - begin);
    KeyLogitsItem part = item;
    part.keys = KeysOf(page_, item.keys, 0, begin, count);
    part.logits += begin;
    GatherSlotsItem& gather = gathers_.emplace_back();
    gather.from = part.keys.pages;
    gather.count = count;
    gather.to.k = memory_ + taken_ * PageBytes(page_);
    gather.to.page_stride = PageBytes(page_);
    gather.to.count = count;
    part.keys.pages = gather.to;
    logits_.push_back(part);
    taken_ += CeilDiv(count, page_.page_slots);
    begin += count;
  }
}

void KeyLogits::Flush(int group, float scale) {
  if (!gathers_.empty()) kernels_.GatherSlots(compute_, page_, gathers_);
  if (!logits_.empty()) kernels_.KeyLogits(compute_, page_, group, scale, logits_);
  gathers_.clear();
  logits_.clear();
  taken_ = 0;
}

}  // namespace headway
