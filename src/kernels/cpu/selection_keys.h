// Scores of blocks by the keys themselves, for CPUs. Whatever the instruction set, the results are
// those of kernels/ref, bit for bit. Internal to the selection files.
#ifndef HEADWAY_KERNELS_CPU_SELECTION_KEYS_H_
#define HEADWAY_KERNELS_CPU_SELECTION_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/selection.h"
#include "kernels/cpu/selection_ops.h"
#include "kernels/selection.h"
#include "kernels/selection_key_math.h"

namespace headway::cpu {

// Neighbouring slots of a page, to be multiplied with the queries of a group.
struct LogitTask {
  const PageFormat* format = nullptr;
  const std::byte* page = nullptr;
  const std::byte* params = nullptr;  // of an encoded page
  int64_t first_slot = 0;
  int64_t slots = 0;
  int group = 1;
  const float* queries = nullptr;  // [group, QueryRow], zeros behind the head's dimension
  float scale = 1.0f;
  KeyRotation rotated = {};  // that is undone
  int64_t position = 0;      // by which the first slot is turned back
  float* logits = nullptr;   // [group, slots], written
};

// The keys of one sequence and layer, and the queries of all heads.
class KeyScores {
 public:
  KeyScores(Isa isa, const PageFormat& format, int block_slots, const SelectItem& item);

  // `queries` [heads, group, QueryRow] are read later; `group` counts all of a KV head.
  void SetQueries(const float* queries, int group, float scale) {
    queries_ = queries;
    group_ = group;
    scale_ = scale;
  }

  // Of blocks [begin, end) of a head: scores [group, end - begin], rows apart by `stride`;
  // `largest` [group] is raised to the largest of them.
  void Masses(int64_t head, int64_t begin, int64_t end, float* scores, int64_t stride,
              float* largest) const;

  // The best blocks of a head, by the item's stages: codes [blocks] become 1 for what is chosen of
  // the far ones and 0 for the others. Of one row what survives is listed.
  void Stages(int64_t head, const SelectItem& item, uint16_t* codes) const;

 private:
  // Blocks [begin, end), and OrderOf their score.
  struct Chunk {
    int64_t begin = 0;
    int64_t end = 0;
    uint32_t order = 0;
  };
  // Keys of a head from `key` on, counted from its first block; they are neighbours in a page.
  LogitTask TaskOf(int64_t head, int64_t key, int64_t count, float* logits) const;
  // A descent from a chunk's keys to the one that stands for it.
  struct Descent {
    selection::KeyRange keys;
    int64_t chunks_left = 0;
    bool ended = false;
    float score = 0.0f;  // the larger one of the last two
    LogitTask next[2];   // the keys that it compares, or the only one as the second
  };
  // Of a key without its rotation, turned back by so many positions more; has it come from memory.
  LogitTask Fetch(int64_t head, int64_t key, int64_t back) const;
  float ScoreOf(LogitTask* key) const;
  void FetchNext(int64_t head, Descent* descent) const;
  void Descend(int64_t head, Descent* descent) const;
  void ScoreChunks(int64_t head, int64_t chunks_left, std::span<Chunk> chunks) const;
  std::vector<Chunk> CutChunks(int64_t head, int64_t blocks,
                               const std::vector<Chunk>& survivors) const;
  // What survives the item's stages, those of earlier calls as they were listed.
  std::vector<Chunk> Survivors(int64_t head, const SelectItem& item) const;

  float (*const logits_)(const LogitTask& task);  // returns the largest
  const SelectionOps& ops_;
  const PageFormat& format_;
  const int64_t block_slots_;
  const BlockedKeys& keys_;
  const KeyRotation& rotated_;
  const float* queries_ = nullptr;
  int group_ = 1;
  float scale_ = 1.0f;
};

}  // namespace headway::cpu

#endif  // HEADWAY_KERNELS_CPU_SELECTION_KEYS_H_
