#include "headway/refusal.h"

#include <utility>

namespace headway {

const char* OptionName(Option option) {
  switch (option) {
    case Option::kLength:
      return "length";
    case Option::kDevice:
      return "device";
    case Option::kThreads:
      return "threads";
    case Option::kGpuMemory:
      return "gpu_memory";
    case Option::kKvMemory:
      return "kv_memory";
    case Option::kHostMemory:
      return "host_memory";
    case Option::kDiskMemory:
      return "disk_memory";
    case Option::kDiskPath:
      return "disk_path";
    case Option::kChunk:
      return "chunk";
    case Option::kHeadGroup:
      return "head_group";
    case Option::kSegment:
      return "segment";
    case Option::kPage:
      return "page_slots";
    case Option::kPlacement:
      return "placement";
    case Option::kPolicy:
      return "policy";
    case Option::kKvEncoding:
      return "kv_encoding";
    case Option::kHostAttention:
      return "host_share";
    case Option::kRecompute:
      return "recompute_share";
    case Option::kHeadPattern:
      return "head_pattern";
    case Option::kSelector:
      return "selector";
    case Option::kPageCache:
      return "sparse_cache";
    case Option::kSparseTopP:
      return "sparse_top_p";
    case Option::kSparseEpsilon:
      return "sparse_epsilon";
    case Option::kSparseDelta:
      return "sparse_delta";
    case Option::kReach:
      return "reach";
    case Option::kRopeScaling:
      return "rope_scaling";
    case Option::kSelfExtend:
      return "self_extend";
    case Option::kMachine:
      return "machine";
    case Option::kSession:
      return "session";
    case Option::kSessionRecut:
      return "session_recut";
    case Option::kTrace:
      return "trace";
    case Option::kPromptLength:
      return "prompt_length";
    case Option::kHaystack:
      return "haystack";
  }
  return "?";
}

Message& Message::operator+=(const Message& other) {
  pieces_.insert(pieces_.end(), other.pieces_.begin(), other.pieces_.end());
  return *this;
}

std::string Message::Text(const Namer& name) const {
  std::string text;
  for (const Piece& piece : pieces_) {
    const std::string* words = std::get_if<std::string>(&piece);
    text += words != nullptr ? *words : name(std::get<Option>(piece));
  }
  return text;
}

std::string Message::Text() const {
  return Text([](Option option) { return std::string(OptionName(option)); });
}

}  // namespace headway
