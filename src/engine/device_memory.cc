#include "engine/device_memory.h"

#include <fmt/format.h>

#include <utility>

#include "base/bytes.h"
#include "headway/refusal.h"

namespace headway {

Status CheckDeviceMemory(const DeviceMemory& memory) {
  const int64_t needed = memory.planned - memory.taken;
  if (needed <= memory.free) return OkStatus();
  Refusal refusal;
  Message& text = refusal.message;
  text = {fmt::format(
      "{} more of the GPU's memory are needed, and {} are free: other programs have the rest",
      FormatBytes(needed), FormatBytes(memory.free))};
  const Message smallest = {
      Option::kGpuMemory,
      fmt::format(" {}KiB ({})", CeilDiv(memory.smallest, kKiB), FormatBytes(memory.smallest))};
  const int64_t most = memory.free + memory.taken;
  if (memory.smallest >= 0 && memory.smallest <= most) {
    text += {"; "};
    text += smallest;
    text += {fmt::format(" is the smallest that would do, and up to {}KiB fits now", most / kKiB)};
    refusal.remedies = {{Option::kGpuMemory, memory.smallest, most}};
  } else {
    if (memory.smallest >= 0) {
      text += {"; even "};
      text += smallest;
      text += {", the smallest that would do, does not fit"};
    }
    text += {"; end those programs, or choose another GPU with ", Option::kDevice, " cuda:N"};
  }
  return Status(StatusCode::kOutOfBudget, std::move(refusal));
}

Status ExplainFreeMemory(const Status& error, int64_t free, int64_t total) {
  if (error.code() != StatusCode::kOutOfBudget) return error;
  return error.Within({}, {"; without ", Option::kGpuMemory,
                           fmt::format(" the GPU's free memory is the limit: {} of {}",
                                       FormatBytes(free), FormatBytes(total))});
}

}  // namespace headway
