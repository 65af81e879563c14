// WeightSource: where the tensors of a model come from, by name. What it gives are ranges of bytes
// in mapped files, of which nothing is read until somebody looks.
#ifndef HEADWAY_MODEL_WEIGHTS_WEIGHT_SOURCE_H_
#define HEADWAY_MODEL_WEIGHTS_WEIGHT_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/env.h"
#include "headway/status.h"
#include "model/weights/weight_type.h"

namespace headway {

// A tensor of a source.
struct SourceTensor {
  WeightType type = WeightType::kF32;
  std::vector<int64_t> shape = {};
  size_t file = 0;     // in which it lies
  int64_t offset = 0;  // in bytes from the start of that file
  int64_t bytes = 0;
};

struct Interval {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const Interval&) const = default;
};

// Rows and columns of a tensor, ascending and apart.
struct Slice {
  std::vector<Interval> rows;
  std::vector<Interval> columns;  // empty: all, or a vector

  int64_t row_count() const;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // What messages call it: the folder.
  virtual const std::string& where() const = 0;

  virtual bool Has(std::string_view name) const = 0;
  // kNotFound, or kUnsupported for a type that Headway does not compute with; both name the tensor.
  virtual Result<SourceTensor> Find(std::string_view name) const = 0;
  virtual std::vector<std::string> Names() const = 0;  // sorted

  // Bytes [begin, begin + count) of a tensor, of any alignment, as long as the source lives.
  virtual std::span<const std::byte> Bytes(const SourceTensor& tensor, int64_t begin,
                                           int64_t count) const = 0;

  virtual size_t files() const = 0;
  virtual const std::string& path(size_t file) const = 0;
  virtual const MappedFile& file(size_t file) const = 0;
  // kIo where one of the files is no longer what it was when it was mapped.
  virtual Status CheckUnchanged(Env& env) const = 0;

  // Writes the slice of a matrix or a vector to `to`, row by row. Touches no other bytes of the
  // source. kInvalidArgument, and nothing is written, where the tensor has no such rows or columns.
  Status Read(const SourceTensor& tensor, const Slice& slice, std::byte* to) const;

  int64_t file_bytes() const;  // of all files
  std::span<const std::byte> AllBytes(const SourceTensor& tensor) const {
    return Bytes(tensor, 0, tensor.bytes);
  }
};

// The error where a file of weights is not what was opened.
Status ChangedInUse(const std::string& path);

}  // namespace headway

#endif  // HEADWAY_MODEL_WEIGHTS_WEIGHT_SOURCE_H_
