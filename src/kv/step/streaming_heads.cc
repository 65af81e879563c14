#include "kv/step/streaming_heads.h"

#include <utility>

namespace headway::kv {

int64_t StreamingBytes(const CacheFormat& format, int max_sequences) {
  const int64_t rows = 2 * format.pattern.StreamingHeads();
  if (rows == 0) return 0;
  return max_sequences * rows * StreamingPages(format).of_a_head() * format.page_stride();
}

StreamingHeads::StreamingHeads(const CacheFormat& format) : format_(format), pages_(format) {
  rows_before_.push_back(0);
  for (int layer = 0; layer < format.layers; ++layer) {
    rows_before_.push_back(rows_before_.back() + 2 * format.pattern.StreamingIn(layer));
  }
}

Result<std::unique_ptr<StreamingHeads>> StreamingHeads::Create(const CacheFormat& format,
                                                               int max_sequences, Device* device,
                                                               Budget* budget) {
  std::unique_ptr<StreamingHeads> heads(new StreamingHeads(format));
  const int64_t bytes = StreamingBytes(format, max_sequences);
  if (bytes == 0) return heads;
  Result<std::unique_ptr<Buffer>> memory =
      device->Allocate(*budget, static_cast<size_t>(bytes), "KV of streaming heads");
  if (!memory.ok()) return memory.status();
  heads->memory_ = std::move(*memory);
  return heads;
}

}  // namespace headway::kv
