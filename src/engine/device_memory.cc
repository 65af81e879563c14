#include "engine/device_memory.h"

#include <fmt/format.h>

#include "base/bytes.h"

namespace headway {

Status CheckDeviceMemory(const DeviceMemory& memory) {
  const int64_t needed = memory.planned - memory.taken;
  if (needed <= memory.free) return OkStatus();
  std::string text = fmt::format(
      "{} more of the GPU's memory are needed, and {} are free: other programs have the rest",
      FormatBytes(needed), FormatBytes(memory.free));
  const auto flag = [](int64_t bytes) {
    return fmt::format("--gpu-memory {}KiB ({})", CeilDiv(bytes, kKiB), FormatBytes(bytes));
  };
  const int64_t most = memory.free + memory.taken;
  if (memory.smallest >= 0 && memory.smallest <= most) {
    text += fmt::format("; {} is the smallest that would do, and up to {}KiB fits now",
                        flag(memory.smallest), most / kKiB);
  } else {
    if (memory.smallest >= 0) {
      text +=
          fmt::format("; even {}, the smallest that would do, does not fit", flag(memory.smallest));
    }
    text += "; end those programs, or choose another GPU with --device cuda:N";
  }
  return Status(StatusCode::kOutOfBudget, text);
}

Status ExplainFreeMemory(const Status& error, int64_t free, int64_t total) {
  if (error.code() != StatusCode::kOutOfBudget) return error;
  return Status(error.code(), fmt::format("{}; without --gpu-memory the GPU's free memory is the "
                                          "limit: {} of {}",
                                          error.message(), FormatBytes(free), FormatBytes(total)));
}

}  // namespace headway
