#include "text/tokenizer/merge_queue.h"

#include <algorithm>
#include <utility>

namespace headway::tok {
namespace {

constexpr size_t kLongWord = 1024;  // symbols; below that the heap stays in the nearest cache

}  // namespace

bool MergeQueue::Before(const MergeCandidate& a, const MergeCandidate& b) {
  return a.rank != b.rank ? a.rank < b.rank : a.position < b.position;
}

void MergeQueue::Start(size_t symbols, size_t ranks) {
  long_ = symbols >= kLongWord;
  // Every run that ends takes itself out of the table, so that it is clean for the next word.
  if (long_ && last_.empty()) last_.assign(ranks, kNone);
}

uint32_t MergeQueue::NewEntry(int32_t position) {
  if (free_ == kNone) {
    entries_.push_back({.position = position, .next = kNone});
    return static_cast<uint32_t>(entries_.size() - 1);
  }
  const uint32_t entry = std::exchange(free_, entries_[free_].next);
  entries_[entry] = {.position = position, .next = kNone};
  return entry;
}

void MergeQueue::Push(const MergeCandidate& candidate) {
  uint32_t entry = kNone;
  if (long_) {
    entry = NewEntry(candidate.position);
    const uint32_t last = std::exchange(last_[candidate.rank], entry);
    if (last != kNone && entries_[last].position <= candidate.position) {
      entries_[last].next = entry;
      return;
    }
  }
  heap_.push_back({.head = candidate, .entry = entry});
  std::push_heap(heap_.begin(), heap_.end(),
                 [](const Run& a, const Run& b) { return Before(b.head, a.head); });
}

bool MergeQueue::Pop(MergeCandidate* candidate) {
  if (heap_.empty()) return false;
  Run& top = heap_.front();
  *candidate = top.head;
  const uint32_t entry = top.entry;
  const uint32_t next = entry == kNone ? kNone : entries_[entry].next;
  if (entry != kNone) {
    if (last_[candidate->rank] == entry) last_[candidate->rank] = kNone;
    entries_[entry].next = std::exchange(free_, entry);
  }
  if (next != kNone) {
    top.head.position = entries_[next].position;
    top.entry = next;
  } else {
    top = heap_.back();
    heap_.pop_back();
  }
  SiftDown();
  return true;
}

void MergeQueue::SiftDown() {
  for (size_t at = 0;;) {
    size_t child = 2 * at + 1;
    if (child >= heap_.size()) return;
    if (child + 1 < heap_.size() && Before(heap_[child + 1].head, heap_[child].head)) ++child;
    if (!Before(heap_[child].head, heap_[at].head)) return;
    std::swap(heap_[at], heap_[child]);
    at = child;
  }
}

}  // namespace headway::tok
