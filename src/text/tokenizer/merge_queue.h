// The merges that a word could take next, smallest first: what byte-pair encoding goes through.
#ifndef HEADWAY_TEXT_TOKENIZER_MERGE_QUEUE_H_
#define HEADWAY_TEXT_TOKENIZER_MERGE_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace headway::tok {

// The pair at a position can become one symbol.
struct MergeCandidate {
  uint32_t rank;
  int32_t position;
  TokenId merged;
};

// Gives candidates back by rank, and among equal ranks by position.
//
// It is a heap of runs. In a word of millions of symbols a heap of candidates would miss the
// processor's caches at each of its levels. But candidates of one rank come mostly in the order of
// their positions, so such a one goes behind the last of its rank, and the heap holds one run for
// each rank and each break of that order. In a short word every candidate is a run of its own.
class MergeQueue {
 public:
  // Must be empty. `symbols` of a word, ranks below `ranks`.
  void Start(size_t symbols, size_t ranks);
  void Push(const MergeCandidate& candidate);
  // False when there is none.
  bool Pop(MergeCandidate* candidate);

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  // What waits in a run behind its head.
  struct Entry {
    int32_t position;
    uint32_t next;  // in the run; of a free entry, the next free one
  };
  struct Run {
    MergeCandidate head;
    uint32_t entry;  // of the head; kNone in a short word
  };

  static bool Before(const MergeCandidate& a, const MergeCandidate& b);
  uint32_t NewEntry(int32_t position);
  // Puts the run at the top where it belongs.
  void SiftDown();

  std::vector<Run> heap_;
  std::vector<Entry> entries_;
  uint32_t free_ = kNone;
  std::vector<uint32_t> last_;  // [ranks], the last entry of the newest run of a rank
  bool long_ = false;
};

}  // namespace headway::tok

#endif  // HEADWAY_TEXT_TOKENIZER_MERGE_QUEUE_H_
