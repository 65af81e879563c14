#include "cli/option_flags.h"

namespace headway::cli {

std::string FlagOf(Option option) {
  switch (option) {
    case Option::kLength:
      return "--ctx-size";
    case Option::kDevice:
      return "--device";
    case Option::kThreads:
      return "--threads";
    case Option::kGpuMemory:
      return "--gpu-memory";
    case Option::kKvMemory:
      return "--kv-memory";
    case Option::kHostMemory:
      return "--host-memory";
    case Option::kDiskMemory:
      return "--disk-memory";
    case Option::kDiskPath:
      return "--disk-path";
    case Option::kChunk:
      return "--chunk";
    case Option::kHeadGroup:
      return "--head-group";
    case Option::kSegment:
      return "--segment";
    case Option::kPage:
      return "--page";
    case Option::kPlacement:
      return "--placement";
    case Option::kPolicy:
      return "--policy";
    case Option::kKvEncoding:
      return "--kv-encoding";
    case Option::kHostAttention:
      return "--host-attention";
    case Option::kRecompute:
      return "--recompute";
    case Option::kHeadPattern:
      return "--head-pattern";
    case Option::kSelector:
      return "--sparse";
    case Option::kPageCache:
      return "--sparse-cache";
    case Option::kSparseTopP:
      return "--sparse-top-p";
    case Option::kSparseEpsilon:
      return "--sparse-epsilon";
    case Option::kSparseDelta:
      return "--sparse-delta";
    case Option::kReach:
      return "--reach";
    case Option::kRopeScaling:
      return "--rope-scaling";
    case Option::kSelfExtend:
      return "--self-extend";
    case Option::kMachine:
      return "--machine";
    case Option::kSession:
      return "--session";
    case Option::kSessionRecut:
      return "--session-recut";
    case Option::kTrace:
      return "--trace";
    case Option::kPromptLength:
      return "--context";
    case Option::kHaystack:
      return "--haystack";
  }
  return "?";
}

std::string Worded(const Message& message) { return message.Text(FlagOf); }

std::string Worded(const Status& status) { return Worded(status.words()); }

}  // namespace headway::cli
