// Status and Result<T>: how every function of Headway that can fail for a reason outside the
// program (a file, a flag, a budget, the system) says so. Bugs use HEADWAY_CHECK instead.
#ifndef HEADWAY_STATUS_H_
#define HEADWAY_STATUS_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace headway {

class Message;   // of headway/refusal.h
struct Refusal;  // the same

enum class StatusCode {
  kOk,
  kInvalidArgument,  // the caller asked for something that makes no sense
  kNotFound,         // a file, a tensor, a model is not there
  kCorrupt,          // a file is damaged, truncated or lies about itself
  kUnsupported,      // well formed, but Headway does not do it
  kOutOfBudget,      // a memory budget would be exceeded
  kIo,               // the system refused a read, a write, an allocation
  kCancelled,        // stopped on request
  kInternal,         // a library under us failed
};

// "invalid argument", "not found", ...
const char* StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  // `message` is one line that says what, where, and what to do.
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}
  // One that tells its reader what to change; message() has the names of EngineOptions.
  Status(StatusCode code, Refusal refusal);

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // What it asks its reader to do; null where that is no data.
  const Refusal* refusal() const { return refusal_.get(); }
  // The message, to be said in a reader's own names of options.
  Message words() const;
  // The same with more words around it.
  Status Within(const Message& before) const;
  Status Within(const Message& before, const Message& behind) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  std::shared_ptr<const Refusal> refusal_;
};

inline Status OkStatus() { return Status(); }

// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit by design
  Result(StatusCode code, std::string message) : status_(code, std::move(message)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  // Requires ok().
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace headway

#endif  // HEADWAY_STATUS_H_
