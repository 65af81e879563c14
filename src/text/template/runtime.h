// Runtime: one rendering's limits, its first error, and the making of values whose size a template
// decides. After the first error every operation still returns something harmless, so callers need
// to look at failed() only where they loop or use a result.
#ifndef HEADWAY_TEXT_TEMPLATE_RUNTIME_H_
#define HEADWAY_TEXT_TEMPLATE_RUNTIME_H_

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "headway/status.h"
#include "text/template/value.h"

namespace headway::jinja {

// Deepest nesting of lists and dicts, and of calls and expressions at work.
inline constexpr int kMaxDataDepth = 200;
inline constexpr int kMaxCallDepth = 1000;
// As jinja2's sandbox: more elements than this and range() fails.
inline constexpr int64_t kMaxRange = 100000;

// Bytes of text that cost one step when they are copied, and when they are looked at one by one.
inline constexpr size_t kCopyBytesPerStep = 16;
inline constexpr size_t kScanBytesPerStep = 4;

struct Limits {
  int64_t steps = 0;   // expressions evaluated, elements visited, and text as above
  int64_t output = 0;  // bytes of one string and of the result
};

// How every error of a template reads: one line, with the template's name and the line in it.
// `message` may quote the template or its data: what would break the line is replaced, and what is
// too long is cut.
Status TemplateError(StatusCode code, std::string_view name, int line, std::string_view message);

// What a function returns after an error: undefined, or false.
struct Failure {
  operator Value() const { return {}; }
  operator bool() const { return false; }
};

class Runtime {
 public:
  // `name` is the template's, for messages; `now_s` is the time for strftime_now, in seconds since
  // 1970.
  Runtime(std::string name, Limits limits, int64_t now_s)
      : name_(std::move(name)), limits_(limits), now_s_(now_s) {}
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  bool failed() const { return !status_.ok(); }
  const Status& status() const { return status_; }
  int64_t now_s() const { return now_s_; }

  // Keeps the first error, with the template's name and line in front.
  template <typename... T>
  Failure Fail(fmt::format_string<T...> format, T&&... values) {
    return Keep(StatusCode::kInvalidArgument, fmt::format(format, std::forward<T>(values)...));
  }
  // The same for what only Headway lacks.
  template <typename... T>
  Failure Refuse(fmt::format_string<T...> format, T&&... values) {
    return Keep(StatusCode::kUnsupported, fmt::format(format, std::forward<T>(values)...));
  }
  // What raise_exception says, as it is.
  Failure Raise(std::string message);
  Failure FailTooLarge() { return Refuse("an integer does not fit in 64 bits"); }
  // Fails because `value` is undefined.
  Failure FailUndefined(const Value& value) { return Fail("{}", value.why_undefined()); }

  // Adds to the limits what a context of that many bytes (and values) brings: a long document may
  // be copied many times on its way, and what the template adds is bounded.
  void Extend(size_t bytes);
  // Takes steps from what is left; false (and failed) when they are used up.
  bool Charge(size_t steps);
  // The same for looking at every byte of a text.
  bool ChargeScan(std::string_view text) { return Charge(text.size() / kScanBytesPerStep); }
  // False (and failed) when a string of that many bytes would be over the limit.
  bool CheckSize(size_t bytes);

  Value Str(std::string text, bool markup = false);
  Value List(std::vector<Value> items) { return MakeSequence(Kind::kList, std::move(items)); }
  Value Tuple(std::vector<Value> items) { return MakeSequence(Kind::kTuple, std::move(items)); }
  Value MakeSequence(Kind kind, std::vector<Value> items);
  Value MakeDict(std::shared_ptr<Dict> dict);
  // An object that nothing else refers to yet, its nesting checked.
  Value Made(std::shared_ptr<Object> object);
  // An object that others may refer to and that refers to others: Clear is called on it at the end,
  // in the order of making, so that neither cycles nor long chains matter.
  template <typename T>
  Value Tracked(std::shared_ptr<T> object) {
    tracked_.push_back(object);
    return Value::Of(std::move(object));
  }
  // Forgets the newest tracked object when nothing but the caller's reference is left.
  void Untrack(const std::shared_ptr<Object>& object);

  void set_line(int line) { line_ = line; }
  int line() const { return line_; }

 private:
  friend class Nested;
  Failure Keep(StatusCode code, std::string_view message);
  bool CheckDepth(int depth);

  const std::string name_;
  Limits limits_;
  const int64_t now_s_;
  int line_ = 1;
  int call_depth_ = 0;
  Status status_;
  std::vector<std::shared_ptr<Object>> tracked_;
};

// Held around anything that recurses, which takes a step; ok() is false (and the Runtime failed)
// when it is too deep.
class Nested {
 public:
  explicit Nested(Runtime& rt) : rt_(rt) {
    if (++rt_.call_depth_ > kMaxCallDepth) rt_.Fail("nested too deeply");
    rt_.Charge(1);
  }
  ~Nested() { --rt_.call_depth_; }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;
  bool ok() const { return !rt_.failed(); }

 private:
  Runtime& rt_;
};

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_RUNTIME_H_
