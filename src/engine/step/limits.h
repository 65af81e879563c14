// What bounds the steps of a context: the memory of all its parts is sized by it.
#ifndef HEADWAY_ENGINE_STEP_LIMITS_H_
#define HEADWAY_ENGINE_STEP_LIMITS_H_

#include <cstdint>

#include "base/types.h"
#include "kv/policy/demotion.h"
#include "kv/policy/salience.h"
#include "kv/policy/selection.h"
#include "model/self_extend.h"
#include "plan/communication.h"

namespace headway {

struct ExecutorLimits {
  int64_t step_tokens = 0;  // of all entries of a step
  // Of prompts that pass through one layer after the other, more than a step has; 0: none do.
  int64_t stretch_tokens = 0;
  int64_t entries = 0;
  int64_t drafts = 0;  // of an entry that decodes
  int64_t length = 0;  // of any sequence, the step included
  int64_t keys = 0;    // of a head, of any sequence: fewer where tokens were let go; 0: length
  int64_t segment_tokens = 0;
  int page_slots = kDefaultPageSlots;
  int64_t listed_frames = 0;     // places of frames in a layer's segments, for listed pages on disk
  int64_t gather_tokens = 0;     // StoreOptions::gather_tokens; 0: nothing is recomputed
  int64_t observed_queries = 0;  // of a prompt, the last ones, that are kept
  kv::SaliencePolicy salience;   // if it chooses, there is a path `salient`
  kv::DemotionPolicy demotion;   // if it demotes, there is a path `demoted`
  bool query_moments = false;    // are taken of a prompt, from moments_from on
  int64_t moments_from = 0;
  int64_t sum_rows = plan::kRowsOfSum;  // of a piece that ranks add up by itself
  // That tell each other what parts of heads weigh of which each of them keeps some tokens.
  int sharing_ranks = 1;
  bool streaming_heads = false;          // some are: their keys are cut otherwise
  kv::SelectionPolicy selection;         // of decode
  SelfExtend self_extend;                // not on: no position is grouped
  DType activation_dtype = DType::kF32;  // Kernels::ActivationDType
  bool host_reads_device = true;         // Device::host_reads_memory

  int64_t decode_tokens() const { return 1 + drafts; }  // of an entry that decodes, at most
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_STEP_LIMITS_H_
