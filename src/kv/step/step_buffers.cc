#include "kv/step/step_buffers.h"

#include <utility>

namespace headway::kv {

int64_t AppendPages(const CacheFormat& format, int64_t max_step_tokens, int max_sequences) {
  return max_step_tokens / format.page.page_slots + 2 * int64_t{max_sequences};
}

int64_t OpenPageBytes(const CacheFormat& format, int max_sequences) {
  return int64_t{max_sequences} * format.layers * 2 * format.kv_heads * format.page_stride();
}

int64_t AppendBufferBytes(const CacheFormat& format, int64_t max_step_tokens, int max_sequences) {
  return 2 * AppendPages(format, max_step_tokens, max_sequences) * 2 * format.kv_heads *
         format.page_stride();
}

int64_t EncodeBufferBytes(const CacheFormat& format, int64_t max_step_tokens, int max_sequences) {
  if (!format.encoded()) return 0;
  return 2 * AppendPages(format, max_step_tokens, max_sequences) *
         (2 * format.kv_heads * format.closed_stride() +
          format.max_head_groups() * format.param_stride());
}

int64_t OpenXBytes(const CacheFormat& format, int max_sequences) {
  return int64_t{max_sequences} * format.layers * format.x_page_bytes();
}

int64_t AppendXBytes(const CacheFormat& format, int64_t max_step_tokens, int max_sequences) {
  return 2 * AppendPages(format, max_step_tokens, max_sequences) * format.x_page_bytes();
}

Result<std::unique_ptr<StepBuffers>> StepBuffers::Create(const CacheFormat& format,
                                                         int64_t max_step_tokens, int max_sequences,
                                                         Device* device, Budget* budget) {
  std::unique_ptr<StepBuffers> buffers(
      new StepBuffers(format, AppendPages(format, max_step_tokens, max_sequences)));
  Result<std::unique_ptr<Buffer>> open = device->Allocate(
      *budget, static_cast<size_t>(OpenPageBytes(format, max_sequences)), "open KV pages");
  if (!open.ok()) return open.status();
  buffers->open_ = std::move(*open);
  Result<std::unique_ptr<Buffer>> append = device->Allocate(
      *budget, static_cast<size_t>(AppendBufferBytes(format, max_step_tokens, max_sequences)),
      "KV append buffer");
  if (!append.ok()) return append.status();
  buffers->append_ = std::move(*append);
  if (format.encoded()) {
    Result<std::unique_ptr<Buffer>> encoded = device->Allocate(
        *budget, static_cast<size_t>(EncodeBufferBytes(format, max_step_tokens, max_sequences)),
        "KV encode buffer");
    if (!encoded.ok()) return encoded.status();
    buffers->encoded_ = std::move(*encoded);
  }
  if (format.keeps_x()) {
    Result<std::unique_ptr<Buffer>> open_x = device->Allocate(
        *budget, static_cast<size_t>(OpenXBytes(format, max_sequences)), "open X pages");
    if (!open_x.ok()) return open_x.status();
    buffers->open_x_ = std::move(*open_x);
    Result<std::unique_ptr<Buffer>> append_x = device->Allocate(
        *budget, static_cast<size_t>(AppendXBytes(format, max_step_tokens, max_sequences)),
        "X append buffer");
    if (!append_x.ok()) return append_x.status();
    buffers->append_x_ = std::move(*append_x);
  }
  buffers->open_fences_.resize(static_cast<size_t>(max_sequences) *
                               static_cast<size_t>(format.layers));
  return buffers;
}

}  // namespace headway::kv
