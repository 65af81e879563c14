// Values as bytes for other processes of the same program. What a struct that is not plain consists
// of is listed once, for both ways, by a function Pass.
#ifndef HEADWAY_ENGINE_WIRE_H_
#define HEADWAY_ENGINE_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/check.h"

namespace headway {

class WireWriter {
 public:
  template <typename... Values>
  void operator()(const Values&... values) {
    (Put(values), ...);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void Put(const std::string& text) {
    Put(text.size());
    bytes_ += text;
  }
  template <typename T>
  void Put(const std::span<const T>& values) {  // read as a vector
    Put(values.size());
    for (const T& value : values) Put(value);
  }
  template <typename T>
  void Put(const std::vector<T>& values) {
    Put(std::span<const T>(values));
  }
  template <typename T>
  void Put(const T& value) {
    if constexpr (std::is_trivially_copyable_v<T>) {
      bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    } else {
      Pass(*this, value);
    }
  }

  std::string bytes_;
};

// Of what a WireWriter has written, by calls of the same values.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename... Values>
  void operator()(Values&... values) {
    (Get(&values), ...);
  }

 private:
  size_t GetSize() {
    size_t size = 0;
    Get(&size);
    HEADWAY_CHECK(size <= bytes_.size());
    return size;
  }
  void Get(std::string* text) {
    const size_t size = GetSize();
    *text = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
  }
  template <typename T>
  void Get(std::vector<T>* values) {
    values->resize(GetSize());
    for (T& value : *values) Get(&value);
  }
  template <typename T>
  void Get(T* value) {
    if constexpr (std::is_trivially_copyable_v<T>) {
      HEADWAY_CHECK(bytes_.size() >= sizeof(T));
      std::memcpy(value, bytes_.data(), sizeof(T));
      bytes_.remove_prefix(sizeof(T));
    } else {
      Pass(*this, *value);
    }
  }

  std::string_view bytes_;
};

}  // namespace headway

#endif  // HEADWAY_ENGINE_WIRE_H_
