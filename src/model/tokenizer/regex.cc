#include "model/tokenizer/regex.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>

#include "base/check.h"
#include "model/tokenizer/onig_pattern.h"
#include "model/tokenizer/text.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace headway::tok {
namespace {

// One call of the matcher tries this many bytes as the start of a match before the clock is looked
// at again: what one start costs is bounded by the other limits.
constexpr size_t kWindowBytes = 1024;
// Matches between two looks at the clock.
constexpr int kMatchesPerClock = 1024;
constexpr uint32_t kMatchLimit = 20'000'000;
constexpr uint32_t kHeapLimitKiB = 256 * 1024;  // of the interpreter, where there is no JIT
constexpr size_t kStackStartBytes = 32 * 1024;
constexpr size_t kStackMaxBytes = size_t{64} * 1024 * 1024;  // reserved, touched as needed
constexpr size_t kPatternMaxBytes = 64 * 1024;
constexpr int64_t kNanosPerSecond = 1'000'000'000;

// CPU time: a machine that was busy or asleep makes no pattern fail.
int64_t ThreadNanos() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * kNanosPerSecond + now.tv_nsec;
}

}  // namespace

RegexScratch::RegexScratch(size_t text_bytes)
    : data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      stack_(pcre2_jit_stack_create(kStackStartBytes, kStackMaxBytes, nullptr)),
      deadline_nanos_(ThreadNanos() + 5 * kNanosPerSecond + 5'000 * int64_t(text_bytes)) {
  HEADWAY_CHECK(data_ != nullptr && context_ != nullptr);
  pcre2_set_match_limit(context_, kMatchLimit);
  pcre2_set_heap_limit(context_, kHeapLimitKiB);
  if (stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, stack_);
}

RegexScratch::~RegexScratch() {
  pcre2_match_data_free(data_);
  pcre2_match_context_free(context_);
  if (stack_ != nullptr) pcre2_jit_stack_free(stack_);
}

bool RegexScratch::OutOfTime() const { return ThreadNanos() > deadline_nanos_; }

struct Regex::Code {
  explicit Code(pcre2_code* compiled) : code(compiled) {}
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  pcre2_code* code;
};

Result<Regex> Regex::FromOniguruma(std::string_view pattern) {
  Result<std::string> translated = TranslateOniguruma(pattern);
  if (!translated.ok()) return translated.status();
  return Compile(*translated, pattern, PCRE2_UTF | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE);
}

Result<Regex> Regex::FromLiteral(std::string_view literal) {
  return Compile(literal, literal, PCRE2_UTF | PCRE2_LITERAL);
}

Result<Regex> Regex::Compile(std::string_view translated, std::string_view pattern,
                             uint32_t options) {
  if (translated.size() > kPatternMaxBytes) {
    return Status(StatusCode::kUnsupported, fmt::format("the pattern {} is longer than {} bytes",
                                                        Quoted(pattern), kPatternMaxBytes));
  }
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  HEADWAY_CHECK(context != nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    options | PCRE2_USE_OFFSET_LIMIT, &error, &error_offset, context);
  pcre2_compile_context_free(context);
  if (code == nullptr) {
    PCRE2_UCHAR text[128];
    pcre2_get_error_message(error, text, sizeof(text));
    return Status(StatusCode::kCorrupt,
                  fmt::format("the pattern {} does not compile: {}", Quoted(pattern),
                              reinterpret_cast<char*>(text)));
  }
  // Where code cannot be generated the interpreter matches the same, more slowly.
  (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return Regex(std::make_shared<const Code>(code), std::string(pattern));
}

Status Regex::LimitError(const char* what) const {
  return Status(StatusCode::kInvalidArgument,
                fmt::format("the pattern {} of the tokenizer takes too much {} on this text",
                            Quoted(pattern_), what));
}

Status Regex::FindFrom(std::string_view text, size_t from, RegexScratch* scratch, Stretch* match,
                       bool* found) const {
  *found = false;
  while (true) {
    const size_t last_start = from + kWindowBytes;
    pcre2_set_offset_limit(scratch->context_, last_start);
    const int rc = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                               from, PCRE2_NO_UTF_CHECK, scratch->data_, scratch->context_);
    if (rc >= 0) {
      const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(scratch->data_);
      // \K is not translated, so a match does not end before it begins.
      *match = {.begin = ends[0], .end = ends[1], .match = true};
      *found = true;
      return OkStatus();
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT || rc == PCRE2_ERROR_HEAPLIMIT) {
      return LimitError("memory");
    }
    if (rc != PCRE2_ERROR_NOMATCH) return LimitError("time");
    if (last_start >= text.size()) return OkStatus();
    if (scratch->OutOfTime()) return LimitError("time");
    from = last_start + 1;
    while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0u) == 0x80u) ++from;
  }
}

Status Regex::Split(std::string_view text, RegexScratch* scratch,
                    std::vector<Stretch>* stretches) const {
  stretches->clear();
  if (text.empty()) {
    stretches->push_back({});
    return OkStatus();
  }
  size_t covered = 0;  // end of the last stretch
  bool any = false;    // a match was taken, ending at `covered`
  int until_clock = kMatchesPerClock;
  for (size_t from = 0; from <= text.size();) {
    Stretch match;
    bool found = false;
    Status status = FindFrom(text, from, scratch, &match, &found);
    if (!status.ok()) return status;
    if (!found) break;
    if (--until_clock == 0) {
      if (scratch->OutOfTime()) return LimitError("time");
      until_clock = kMatchesPerClock;
    }
    if (match.begin == match.end && any && match.end == covered) {
      // An empty match right behind a match does not count: go on one character further.
      if (from >= text.size()) break;
      ++from;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0u) == 0x80u) {
        ++from;
      }
      continue;
    }
    if (covered != match.begin) stretches->push_back({.begin = covered, .end = match.begin});
    stretches->push_back(match);
    covered = match.end;
    from = match.end;
    any = true;
  }
  if (covered != text.size()) stretches->push_back({.begin = covered, .end = text.size()});
  return OkStatus();
}

}  // namespace headway::tok
