#include "kv/step/store_options.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string>

#include "base/bytes.h"
#include "kv/pages/streaming_pages.h"
#include "kv/session/manifest.h"
#include "kv/step/step_buffers.h"
#include "kv/step/streaming_heads.h"

namespace headway::kv {
namespace {

// Far beyond any model and machine; products of these are then checked one by one.
constexpr int64_t kMaxCount = int64_t{1} << 24;

Status CheckCount(const char* what, int64_t value, int64_t least) {
  if (value >= least && value <= kMaxCount) return OkStatus();
  return Status(StatusCode::kInvalidArgument,
                "KV store: " + std::string(what) + " is " + std::to_string(value) +
                    "; give it a value from " + std::to_string(least) + " to " +
                    std::to_string(kMaxCount));
}

// The product of counts and a page's bytes fits in int64_t.
bool ProductFits(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (const int64_t factor : factors) {
    if (!CheckedMul(product, factor, &product)) return false;
  }
  return product < std::numeric_limits<int64_t>::max() / 2;
}

// Each head of the store is another one of the session's, but for zeros.
Status CheckSessionHeads(const StoreOptions& options) {
  const CacheFormat& format = options.format;
  const SessionHeads& heads = options.session_heads;
  const auto fit = [&](const std::vector<int>& own) {
    return own.empty() ||
           (std::ssize(own) <= format.kv_heads && own.front() >= 0 && own.back() < heads.all &&
            std::is_sorted(own.begin(), own.end(), std::less_equal<>()));
  };
  if (format.group_heads == 1 && std::ssize(heads.own) == format.layers &&
      std::all_of(heads.own.begin(), heads.own.end(), fit)) {
    return OkStatus();
  }
  return Status(StatusCode::kInvalidArgument,
                "KV store: of a session's heads a store has others in each layer, at most as many "
                "as it has heads, in head groups of one");
}

Status CheckX(const StoreOptions& options) {
  const CacheFormat& format = options.format;
  Status status = CheckCount("the number of gathers", options.gathers, 1);
  if (status.ok()) {
    status = CheckCount("the number of tokens of a gather", options.gather_tokens,
                        format.segment_tokens());
  }
  if (!status.ok()) return status;
  const int64_t tokens = options.max_step_tokens + 2 * format.page.page_slots;
  if (!ProductFits({options.gathers, options.gather_tokens, format.x_width, 4}) ||
      !ProductFits({2, options.max_sequences, tokens, format.x_width, 4}) ||
      !ProductFits(
          {options.max_sequences, format.layers, format.page.page_slots, format.x_width, 4})) {
    return Status(StatusCode::kInvalidArgument,
                  "KV store: gathers, sequences and the width of X multiply to more bytes than any "
                  "machine has");
  }
  const bool windows = std::any_of(format.window.begin(), format.window.end(),
                                   [](int64_t window) { return window > 0; });
  if (format.group_heads < format.kv_heads || format.pattern.StreamingHeads() > 0 ||
      format.encoded() || windows || options.gather_tokens % format.page.page_slots != 0) {
    return Status(StatusCode::kUnsupported,
                  "KV store: keys and values are recomputed of all heads of a layer at once, "
                  "without windows, streaming heads or encoded pages");
  }
  return OkStatus();
}

}  // namespace

StoreFootprint FootprintOf(const StoreOptions& options) {
  const CacheFormat& format = options.format;
  StoreFootprint footprint;
  const StepBufferBytes buffers = BytesOf(format, {options.max_step_tokens, options.max_sequences});
  footprint.open_pages = buffers.open_pages;
  footprint.append_buffer = buffers.append_buffer;
  footprint.streaming_heads = StreamingBytes(format, options.max_sequences);
  footprint.staging = options.staging_slabs * format.slab_bytes() +
                      options.gathers * format.XBytes(options.gather_tokens);
  footprint.summaries = options.summary_frames * format.summary_bytes();
  int64_t& sketches =
      options.sketches == Tier::kHost ? footprint.host_sketches : footprint.sketches;
  sketches = options.summary_frames * format.sketch_bytes();
  footprint.bounce =
      (options.bounce_slabs + options.listed_slabs) * format.slab_bytes() + options.list_bytes;
  return footprint;
}

CacheFormat SessionFormatOf(const StoreOptions& options) {
  CacheFormat format = options.format;
  if (options.session_heads.all > 0) format.kv_heads = options.session_heads.all;
  return format;
}

Status CheckStoreOptions(const StoreOptions& options) {
  const CacheFormat& format = options.format;
  Status status = CheckFormat(format);
  if (status.ok()) status = CheckCount("the number of sequences", options.max_sequences, 1);
  if (status.ok())
    status = CheckCount("the number of tokens of a step", options.max_step_tokens, 1);
  if (status.ok()) status = CheckCount("the number of staging slabs", options.staging_slabs, 1);
  if (status.ok()) status = CheckCount("the number of bounce slabs", options.bounce_slabs, 0);
  if (status.ok()) status = CheckCount("the number of listed slabs", options.listed_slabs, 0);
  if (!status.ok()) return status;
  // Padded to whole direct I/O blocks; before page_stride() may be called.
  const int64_t page = int64_t{format.page.page_slots} * format.page.head_dim * 4 +
                       static_cast<int64_t>(kDirectAlignment);
  const int64_t most_slabs =
      std::max({options.staging_slabs, options.bounce_slabs, options.listed_slabs});
  const int64_t append = options.max_step_tokens + 2 * int64_t{options.max_sequences};
  if (!ProductFits({2, format.group_heads, format.segment_pages, page, most_slabs + 1}) ||
      !ProductFits({2, options.max_sequences, format.layers, format.kv_heads, page}) ||
      !ProductFits({2, options.max_sequences, format.layers, format.kv_heads, page,
                    StreamingPages(format).of_a_head()}) ||
      !ProductFits({4, append, format.kv_heads, page})) {
    return Status(StatusCode::kInvalidArgument,
                  "KV store: layers, heads, pages and sequences multiply to more bytes than any "
                  "machine has; make the segment, the step or the number of sequences smaller");
  }
  if (format.encoded() &&
      (options.kernels == nullptr || !options.kernels->TakesEncoding(format.page.encoding))) {
    return Status(StatusCode::kUnsupported,
                  std::string("KV store: these kernels do not encode in ") +
                      EncodingName(format.page.encoding));
  }
  if (format.summary.kept() &&
      (options.kernels == nullptr || format.page.page_slots % format.summary.block_slots != 0)) {
    return Status(StatusCode::kUnsupported, "KV store: pages cannot be summarised in blocks of " +
                                                std::to_string(format.summary.block_slots) +
                                                " slots");
  }
  if (options.sketches == Tier::kDisk) {
    return Status(StatusCode::kInvalidArgument,
                  "KV store: sketches of keys lie on the device or on the host");
  }
  if (options.session_heads.all > 0) {
    if (Status s = CheckSessionHeads(options); !s.ok()) return s;
  }
  if (options.page_cache_bytes < 0) {
    return Status(StatusCode::kInvalidArgument, "KV store: a page cache of fewer than 0 bytes");
  }
  if (options.list_bytes < 0) {
    return Status(StatusCode::kInvalidArgument, "KV store: lists of fewer than 0 bytes");
  }
  if (options.page_cache_bytes > 0 && !format.summary.selects()) {
    return Status(StatusCode::kInvalidArgument,
                  "KV store: a page cache keeps blocks that are chosen, and nothing is");
  }
  if (format.keeps_x()) {
    if (Status s = CheckX(options); !s.ok()) return s;
  }
  if (options.device_budget == nullptr || options.host_budget == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  "KV store: budgets for the device and the host are needed");
  }
  return OkStatus();
}

}  // namespace headway::kv
