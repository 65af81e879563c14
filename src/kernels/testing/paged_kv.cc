#include "kernels/testing/paged_kv.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/bytes.h"
#include "base/half.h"
#include "kernels/page_codec.h"

namespace headway {

PagedKv::Planes::Planes(const Shape& shape, int64_t pages, bool closed) {
  const PageLayout& layout = shape.layout;
  const auto page =
      static_cast<int64_t>(closed ? shape.format.closed_bytes() : shape.format.bytes());
  const int64_t page_stride = RoundUp(page + layout.page_gap, layout.alignment);
  run.head_stride = RoundUp(pages * page_stride + layout.head_gap, layout.alignment);
  run.page_stride = layout.descending ? -page_stride : page_stride;
  // A page of slack around each plane; planes begin where any kernel takes them.
  constexpr int64_t kPlaneAlignment = 64;
  const int64_t slack = RoundUp(page, std::max(kPlaneAlignment, layout.alignment));
  const int64_t first = layout.descending ? (pages - 1) * page_stride : 0;
  const int64_t plane = RoundUp(shape.heads * run.head_stride, kPlaneAlignment) + slack;
  k = slack + first;
  v = slack + plane + first;
  if (layout.values_first) std::swap(k, v);
  int64_t size = slack + 2 * plane;
  if (closed) {
    const int64_t of_head = ParamBytes(shape.format);
    const int64_t of_page = layout.params_by_page ? shape.heads * of_head : of_head;
    const int64_t params_stride = RoundUp(of_page + layout.params_gap, layout.params_alignment);
    run.params_page_stride = layout.descending ? -params_stride : params_stride;
    run.params_head_stride = layout.params_by_page ? of_head : pages * params_stride;
    params = size + (layout.descending ? (pages - 1) * params_stride : 0);
    size += (layout.params_by_page ? 1 : shape.heads) * pages * params_stride + slack;
  }
  bytes.assign(static_cast<size_t>(size), std::byte{0xFF});
}

PageRun PagedKv::Planes::In(std::byte* memory) const {
  PageRun at = run;
  at.k = memory + k;
  at.v = memory + v;
  if (params >= 0) at.params = memory + params;
  return at;
}

PagedKv::PagedKv(const Shape& shape, Random& random)
    : shape_(shape),
      pages_(CeilDiv(shape.first_slot + shape.count, shape.format.page_slots)),
      closed_(shape.format.encoding != Encoding::kNone),
      plain_(shape, pages_, false) {
  for (int head = 0; head < shape.heads; ++head) {
    for (int64_t key = 0; key < shape.count; ++key) DrawRow(head, key, random);
  }
  if (closed_) Encode(random);
}

void PagedKv::DrawRow(int head, int64_t key, Random& random) {
  for (int64_t i = 0; i < shape_.format.head_dim; ++i) {
    const float uneven = shape_.uneven_keys && i == 3 ? 16.0f : 1.0f;
    const auto tiny = [&] {
      return shape_.tiny_numbers && random.Below(1000) == 0 ? 0x1p-20f : 1.0f;
    };
    SetK(head, key, i, tiny() * uneven * shape_.key_size * random.Normal());
    SetV(head, key, i, tiny() * random.Normal());
  }
}

void PagedKv::Encode(Random& random) {
  const PageFormat& format = shape_.format;
  for (int head = 0; head < shape_.heads; ++head) {
    for (int64_t slot = 0; slot < pages_ * format.page_slots; ++slot) {
      const int64_t key = slot - shape_.first_slot;
      if (key < 0 || key >= shape_.count) DrawRow(head, key, random);
    }
  }
  coded_ = Planes(shape_, pages_, true);
  const EncodePagesItem item = ItemOfAll();
  for (int64_t i = 0; i < shape_.heads * pages_; ++i) {
    EncodePageOf(format, item, i / pages_, i % pages_);
  }
}

EncodePagesItem PagedKv::ItemOfAll() {
  EncodePagesItem item;
  item.from = plain_.In(plain_.bytes.data());
  item.to = coded_.In(coded_.bytes.data());
  item.from.count = item.to.count = pages_ * shape_.format.page_slots;
  item.heads = shape_.heads;
  return item;
}

PageRun PagedKv::Run(int64_t begin, int64_t end) {
  Planes& planes = closed_ ? coded_ : plain_;
  PageRun run = planes.In(planes.bytes.data());
  const int64_t slot = shape_.first_slot + begin;
  const int64_t page = slot / shape_.format.page_slots;
  run.k += page * run.page_stride;
  run.v += page * run.page_stride;
  if (run.params != nullptr) run.params += page * run.params_page_stride;
  run.first_slot = slot % shape_.format.page_slots;
  run.count = end - begin;
  return run;
}

PageRun PagedKv::RunIn(std::byte* memory) {
  PageRun run = (closed_ ? coded_ : plain_).In(memory);
  run.first_slot = shape_.first_slot;
  run.count = shape_.count;
  return run;
}

void PagedKv::Set(int64_t plane, int head, int64_t key, int64_t i, float value) {
  const int64_t slot = shape_.first_slot + key;
  const int64_t slots = shape_.format.page_slots;
  std::byte* page = plain_.bytes.data() + plane + head * plain_.run.head_stride +
                    slot / slots * plain_.run.page_stride;
  StoreFloat(page, slot % slots * shape_.format.head_dim + i, shape_.format.dtype, value);
}

float PagedKv::Get(int64_t plane, int head, int64_t key, int64_t i) const {
  const int64_t slot = shape_.first_slot + key;
  const int64_t slots = shape_.format.page_slots;
  const std::byte* page = plain_.bytes.data() + plane + head * plain_.run.head_stride +
                          slot / slots * plain_.run.page_stride;
  return LoadAsFloat(page, slot % slots * shape_.format.head_dim + i, shape_.format.dtype);
}

void PagedKv::SetK(int head, int64_t key, int64_t i, float value) {
  Set(plain_.k, head, key, i, value);
}
void PagedKv::SetV(int head, int64_t key, int64_t i, float value) {
  Set(plain_.v, head, key, i, value);
}
float PagedKv::K(int head, int64_t key, int64_t i) const { return Get(plain_.k, head, key, i); }
float PagedKv::V(int head, int64_t key, int64_t i) const { return Get(plain_.v, head, key, i); }

std::vector<double> PagedKv::Row(int head, int64_t key, bool of_keys) const {
  const PageFormat& format = shape_.format;
  std::vector<double> row(static_cast<size_t>(format.head_dim));
  if (!closed_) {
    const int64_t plane = of_keys ? plain_.k : plain_.v;
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = Get(plane, head, key, static_cast<int64_t>(i));
    }
    return row;
  }
  const int64_t slot = shape_.first_slot + key;
  const int64_t page = slot / format.page_slots;
  const std::byte* codes = coded_.bytes.data() + (of_keys ? coded_.k : coded_.v) +
                           head * coded_.run.head_stride + page * coded_.run.page_stride;
  const std::byte* params = coded_.bytes.data() + coded_.params +
                            head * coded_.run.params_head_stride +
                            page * coded_.run.params_page_stride;
  (of_keys ? DecodeKeyRow : DecodeValueRow)(format, codes, params, slot % format.page_slots,
                                            row.data());
  return row;
}

std::vector<double> PagedKv::Reach(int head, int64_t key, bool of_keys) const {
  std::vector<double> row = Row(head, key, of_keys);
  if (!closed_) {
    for (double& value : row) value = std::abs(value);
    return row;
  }
  const PageFormat& format = shape_.format;
  const int64_t slot = shape_.first_slot + key;
  const std::byte* params = coded_.bytes.data() + coded_.params +
                            head * coded_.run.params_head_stride +
                            slot / format.page_slots * coded_.run.params_page_stride;
  return CodesReach(format, params, slot % format.page_slots, of_keys, std::move(row));
}

std::vector<double> CodesReach(const PageFormat& format, const std::byte* params, int64_t slot,
                               bool of_keys, std::vector<double> row) {
  if (format.encoding == Encoding::kLossless) {
    for (double& value : row) value = std::abs(value);
    return row;
  }
  for (size_t i = 0; i < row.size(); ++i) {
    const auto channel = static_cast<int64_t>(i);
    const double zero =
        of_keys
            ? LoadAsFloat(params, format.head_dim + channel, DType::kBF16)
            : LoadAsFloat(params + KeyParamBytes(format),
                          (ValueGroups(format) + channel / kValueGroup) * format.page_slots + slot,
                          DType::kBF16);
    row[i] = std::abs(zero) + std::abs(row[i] - zero);
  }
  return row;
}

void PagedKv::PoisonParams(int head, int64_t page, bool of_keys) {
  std::byte* params = coded_.bytes.data() + coded_.params + head * coded_.run.params_head_stride +
                      page * coded_.run.params_page_stride;
  StoreFloat(params, of_keys ? 3 : 2 * shape_.format.head_dim + 5, DType::kBF16, kPoison);
}

void PagedKv::MakeUnfit(int head, int64_t page, bool of_keys) {
  const int64_t first = page * shape_.format.page_slots - shape_.first_slot;
  for (int64_t key = first; key < first + shape_.format.page_slots; ++key) {
    for (int64_t i = 0; i < shape_.format.head_dim; i += 2) {
      of_keys ? SetK(head, key, i, 0.0f) : SetV(head, key, i, 0.0f);
    }
  }
  EncodePageOf(shape_.format, ItemOfAll(), head, page);
}

}  // namespace headway
