// What each of the ranks that hold a head keeps of what the head keeps of a prompt. Pure.
#ifndef HEADWAY_KV_POLICY_HELD_PART_H_
#define HEADWAY_KV_POLICY_HELD_PART_H_

#include <cstdint>
#include <span>

#include "base/head_set.h"

namespace headway::kv {

// A head of the model, and the place of a sequence among those that live at a time.
struct HeldHead {
  int head = 0;
  int sequence = 0;
};

struct HeldPart {
  int64_t first = 0, last = 0;  // of the head's kept pages
  // Whether it also has what is appended behind the prompt's whole pages.
  bool grows = true;
};

// The part of the holder at `own`. The parts of all holders are the head's `pages`, and one of them
// grows; over the places of sequences each holder has about its share.
HeldPart HeldPartOf(HeadSplit split, std::span<const HeadHolder> holders, int own,
                    const HeldHead& of, int64_t pages);

}  // namespace headway::kv

#endif  // HEADWAY_KV_POLICY_HELD_PART_H_
