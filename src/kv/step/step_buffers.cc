#include "kv/step/step_buffers.h"

#include <string>
#include <utility>

namespace headway::kv {
namespace {

// Pages of one head that a step's entries take in the append buffer, at most: an entry of t tokens
// that starts r slots into a page takes ceil((r + t) / slots) <= floor(t / slots) + 2.
int64_t AppendPages(const CacheFormat& format, const StepSizes& sizes) {
  return sizes.max_step_tokens / format.page.page_slots + 2 * int64_t{sizes.max_sequences};
}

int64_t OpenBytes(const SlabLayout& layout, int layers, int max_sequences) {
  return int64_t{max_sequences} * layers * layout.open_rows * layout.open_stride;
}

int64_t AppendBytes(const SlabLayout& layout, int64_t append_pages) {
  return 2 * append_pages * layout.open_rows * layout.open_stride;
}

// Of the counter of pages that do not fit. It lies in memory of the host, that it is read without a
// copy, and is counted with the buffer of encoded pages all the same: a line of a cache is too
// little for a budget of its own.
constexpr int64_t kUnfitBytes = 64;

bool CountsUnfit(const CacheFormat& format) { return format.page.encoding == Encoding::kLossless; }

int64_t EncodedBytes(const CacheFormat& format, int64_t append_pages) {
  if (!format.encoded()) return 0;
  return 2 * append_pages *
         (2 * format.kv_heads * format.closed_stride() +
          format.max_head_groups() * format.param_stride());
}

Status Take(std::unique_ptr<Buffer>* buffer, Device* device, Budget* budget, int64_t bytes,
            const std::string& tag) {
  Result<std::unique_ptr<Buffer>> made = device->Allocate(*budget, static_cast<size_t>(bytes), tag);
  if (!made.ok()) return made.status();
  *buffer = std::move(*made);
  return OkStatus();
}

}  // namespace

StepBufferBytes BytesOf(const CacheFormat& format, const StepSizes& sizes) {
  const int64_t append_pages = AppendPages(format, sizes);
  StepBufferBytes bytes;
  bytes.append_buffer = EncodedBytes(format, append_pages);
  if (CountsUnfit(format)) bytes.append_buffer += kUnfitBytes;
  for (const SlabLayout& layout : LayoutsOf(format)) {
    if (!layout.kept) continue;
    bytes.open_pages += OpenBytes(layout, format.layers, sizes.max_sequences);
    bytes.append_buffer += AppendBytes(layout, append_pages);
  }
  return bytes;
}

Status OpenPages::Allocate(int max_sequences, Device* device, Budget* budget) {
  const std::string name = layout_.name;
  Status status = Take(&open_, device, budget, OpenBytes(layout_, layers_, max_sequences),
                       "open " + name + " pages");
  if (!status.ok()) return status;
  return Take(&append_, device, budget, AppendBytes(layout_, append_pages_),
              name + " append buffer");
}

Result<std::unique_ptr<StepBuffers>> StepBuffers::Create(const CacheFormat& format,
                                                         const PerSlabKind<SlabLayout>& layouts,
                                                         const StepSizes& sizes, Device* device,
                                                         Budget* budget) {
  std::unique_ptr<StepBuffers> buffers(new StepBuffers(format, sizes, AppendPages(format, sizes)));
  for (const SlabKind kind : kAllSlabKinds) {
    const SlabLayout& layout = Of(layouts, kind);
    if (!layout.kept) continue;
    auto pages = std::make_unique<OpenPages>(layout, format.layers, buffers->append_pages_);
    Status status = pages->Allocate(sizes.max_sequences, device, budget);
    if (!status.ok()) return status;
    Of(buffers->pages_, kind) = std::move(pages);
  }
  if (format.encoded()) {
    Status status = Take(&buffers->encoded_, device, budget,
                         EncodedBytes(format, buffers->append_pages_), "KV encode buffer");
    if (!status.ok()) return status;
  }
  if (CountsUnfit(format)) {
    Result<std::unique_ptr<Buffer>> made =
        device->AllocateHost(*budget, size_t{kUnfitBytes}, "KV encode buffer");
    if (!made.ok()) return made.status();
    buffers->unfit_ = std::move(*made);
  }
  buffers->open_fences_.resize(static_cast<size_t>(sizes.max_sequences) *
                               static_cast<size_t>(format.layers));
  return buffers;
}

}  // namespace headway::kv
