// Budget: a hard limit on the bytes of one kind of memory, and Reservation, the right to use some
// of them. Every byte on a device, in host memory for the KV cache and on disk is reserved before
// it is used; a budget is never exceeded.
#ifndef HEADWAY_DEVICE_BUDGET_H_
#define HEADWAY_DEVICE_BUDGET_H_

#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "headway/refusal.h"
#include "headway/status.h"

namespace headway {

class Budget;

// Bytes reserved from a Budget under a tag; given back when destroyed. Move-only.
class [[nodiscard]] Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)),
        tag_(std::move(other.tag_)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation() { Release(); }

  int64_t bytes() const { return bytes_; }
  void Release();

 private:
  friend class Budget;
  Budget* budget_ = nullptr;
  std::string tag_;
  int64_t bytes_ = 0;
};

inline constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// Thread-safe. Outlives its reservations.
class Budget {
 public:
  // `name` appears in errors and tables: "kv-memory".
  // What is reserved counts in `parent` (may be null), too.
  Budget(std::string name, int64_t limit, Budget* parent = nullptr)
      : name_{std::move(name)}, limit_(limit), parent_(parent) {}
  // The limit is an option of the user's, by which errors name it.
  Budget(Option option, int64_t limit, Budget* parent = nullptr)
      : name_{option}, limit_(limit), parent_(parent) {}

  // kOutOfBudget, naming budget, tag, bytes asked for and bytes left, when they do not fit.
  Result<Reservation> Reserve(int64_t bytes, const std::string& tag);

  std::string name() const { return name_.Text(); }
  int64_t limit() const { return limit_; }
  int64_t used() const;
  int64_t peak() const;
  int64_t available() const;
  // (tag, bytes in use), largest first.
  std::vector<std::pair<std::string, int64_t>> Usage() const;

 private:
  friend class Reservation;
  void Release(const std::string& tag, int64_t bytes);

  const Message name_;
  const int64_t limit_;
  Budget* const parent_;
  mutable std::mutex mutex_;
  int64_t used_ = 0;
  int64_t peak_ = 0;
  std::map<std::string, int64_t> by_tag_;
};

}  // namespace headway

#endif  // HEADWAY_DEVICE_BUDGET_H_
