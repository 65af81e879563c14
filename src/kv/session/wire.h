// Little-endian fields, written and read one by one: the same bytes on every machine.
#ifndef HEADWAY_KV_SESSION_WIRE_H_
#define HEADWAY_KV_SESSION_WIRE_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace headway::kv {

template <std::integral T>
void StoreLittleEndian(T value, std::byte* to) {
  auto bits = static_cast<std::make_unsigned_t<T>>(value);
  for (size_t i = 0; i < sizeof(T); ++i) {
    to[i] = static_cast<std::byte>(static_cast<uint64_t>(bits) >> (8 * i) & 0xff);
  }
}

template <std::integral T>
T LoadLittleEndian(const std::byte* from) {
  uint64_t bits = 0;
  for (size_t i = 0; i < sizeof(T); ++i) bits |= std::to_integer<uint64_t>(from[i]) << (8 * i);
  return static_cast<T>(bits);
}

class WireWriter {
 public:
  template <std::integral T>
  void Put(T value) {
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    StoreLittleEndian(value, bytes_.data() + at);
  }
  // Their number, then the bytes.
  void PutSized(std::span<const std::byte> bytes) {
    Put(static_cast<uint64_t>(bytes.size()));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void Reserve(size_t bytes) { bytes_.reserve(bytes); }
  std::vector<std::byte> Take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Reads what is there; past the end it returns zeros and is no longer ok().
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <std::integral T>
  T Get() {
    if (bytes_.size() < sizeof(T)) {
      ok_ = false;
      bytes_ = {};
      return T{};
    }
    const T value = LoadLittleEndian<T>(bytes_.data());
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }
  // What PutSized wrote, into a text or into bytes; false where there are fewer than it claims.
  template <typename Bytes>
  bool GetSized(Bytes* to) {
    const auto size = Get<uint64_t>();
    if (size > left()) return false;
    const auto* const from = reinterpret_cast<const typename Bytes::value_type*>(bytes_.data());
    to->assign(from, from + size);
    bytes_ = bytes_.subspan(size);
    return true;
  }
  bool ok() const { return ok_; }
  size_t left() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

}  // namespace headway::kv

#endif  // HEADWAY_KV_SESSION_WIRE_H_
