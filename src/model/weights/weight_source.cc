#include "model/weights/weight_source.h"

#include <fmt/format.h>

#include <cstring>

namespace headway {

namespace {

// The first of the intervals that is not behind the one before it and within the extent, or null.
const Interval* FirstOutside(const std::vector<Interval>& intervals, int64_t extent) {
  int64_t at = 0;
  for (const Interval& interval : intervals) {
    if (interval.begin < at || interval.size() < 0 || interval.end > extent) return &interval;
    at = interval.end;
  }
  return nullptr;
}

}  // namespace

int64_t Slice::row_count() const {
  int64_t count = 0;
  for (const Interval& interval : rows) count += interval.size();
  return count;
}

Status WeightSource::Read(const SourceTensor& tensor, const Slice& slice, std::byte* to) const {
  const std::vector<int64_t>& shape = tensor.shape;
  const auto lacks = [&](const char* what, const Interval& wanted) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: a tensor of shape [{}] has no {} [{}, {})", where(),
                              fmt::join(shape, ", "), what, wanted.begin, wanted.end));
  };
  const bool is_matrix = shape.size() == 2;
  const Interval* outside = FirstOutside(slice.rows, shape.size() == 1 || is_matrix ? shape[0] : 0);
  if (outside != nullptr) return lacks("rows", *outside);
  outside = FirstOutside(slice.columns, is_matrix ? shape[1] : 0);
  if (outside != nullptr) return lacks("columns", *outside);
  const auto take = [&](int64_t begin, int64_t count) {
    const std::span<const std::byte> bytes = Bytes(tensor, begin, count);
    std::memcpy(to, bytes.data(), bytes.size());
    to += bytes.size();
  };
  const int64_t row_bytes = RowBytes(tensor.type, is_matrix ? shape[1] : 1);
  for (const Interval& rows : slice.rows) {
    if (slice.columns.empty()) {
      take(rows.begin * row_bytes, rows.size() * row_bytes);
      continue;
    }
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      for (const Interval& part : slice.columns) {
        take(row * row_bytes + RowBytes(tensor.type, part.begin),
             RowBytes(tensor.type, part.size()));
      }
    }
  }
  return OkStatus();
}

int64_t WeightSource::file_bytes() const {
  int64_t total = 0;
  for (size_t i = 0; i < files(); ++i) total += static_cast<int64_t>(file(i).bytes().size());
  return total;
}

Status ChangedInUse(const std::string& path) {
  return Status(StatusCode::kIo,
                fmt::format("{} was changed while the model was in use; start again", path));
}

}  // namespace headway
