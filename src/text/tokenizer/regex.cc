#include "text/tokenizer/regex.h"

#include <fmt/format.h>

#include <limits>

#include "base/check.h"
#include "text/tokenizer/onig_pattern.h"
#include "text/tokenizer/text.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace headway::tok {
namespace {

constexpr size_t kSteps = 1'000'000;
constexpr size_t kStepsPerByte = 64;
constexpr uint32_t kHeapLimitKiB = 256 * 1024;  // of the interpreter, where there is no JIT
constexpr size_t kStackStartBytes = 32 * 1024;
constexpr size_t kStackMaxBytes = size_t{64} * 1024 * 1024;  // reserved, touched as needed
// Bounds what a pattern without repetitions costs for each character of the text.
constexpr size_t kPatternMaxBytes = 8 * 1024;
constexpr size_t kTranslatedMaxBytes = 256 * 1024;

}  // namespace

RegexScratch::RegexScratch(size_t text_bytes)
    : data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      stack_(pcre2_jit_stack_create(kStackStartBytes, kStackMaxBytes, nullptr)) {
  HEADWAY_CHECK(data_ != nullptr && context_ != nullptr);
  // The steps are the limit: PCRE2's own counts differ between its interpreter and its JIT.
  pcre2_set_match_limit(context_, std::numeric_limits<uint32_t>::max());
  pcre2_set_heap_limit(context_, kHeapLimitKiB);
  if (stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, stack_);
  pcre2_set_callout(
      context_,
      [](pcre2_callout_block* block, void* data) {
        auto* scratch = static_cast<RegexScratch*>(data);
        const size_t moved = block->current_position > scratch->position_
                                 ? block->current_position - scratch->position_
                                 : scratch->position_ - block->current_position;
        scratch->position_ = block->current_position;
        if (moved + 1 > scratch->steps_left_) return PCRE2_ERROR_MATCHLIMIT;
        scratch->steps_left_ -= moved + 1;
        return 0;
      },
      this);
  Reset(text_bytes);
}

void RegexScratch::Reset(size_t text_bytes) {
  steps_left_ = kSteps + kStepsPerByte * text_bytes;
  position_ = 0;
}

RegexScratch::~RegexScratch() {
  pcre2_match_data_free(data_);
  pcre2_match_context_free(context_);
  if (stack_ != nullptr) pcre2_jit_stack_free(stack_);
}

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
  if (pattern.size() > kPatternMaxBytes) {
    return Status(StatusCode::kUnsupported, fmt::format("the pattern {} is longer than {} bytes",
                                                        Quoted(pattern), kPatternMaxBytes));
  }
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  HEADWAY_CHECK(context != nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  pcre2_set_max_pattern_length(context, kTranslatedMaxBytes);
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                   translated.size(), options, &error, &error_offset, context);
  pcre2_compile_context_free(context);
  if (code == nullptr) {
    if (error == PCRE2_ERROR_PATTERN_TOO_LARGE || error == PCRE2_ERROR_PATTERN_TOO_COMPLICATED) {
      return Status(StatusCode::kUnsupported,
                    fmt::format("the pattern {} is too large", Quoted(pattern)));
    }
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
  const int rc = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                             from, PCRE2_NO_UTF_CHECK, scratch->data_, scratch->context_);
  if (rc >= 0) {
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(scratch->data_);
    // \K is not translated, so a match does not end before it begins.
    *match = {.begin = ends[0], .end = ends[1], .match = true};
    *found = true;
    return OkStatus();
  }
  if (rc == PCRE2_ERROR_NOMATCH) return OkStatus();
  return LimitError(rc == PCRE2_ERROR_MATCHLIMIT ? "time" : "memory");
}

Status Regex::Split(std::string_view text, RegexScratch* scratch,
                    std::vector<Stretch>* stretches) const {
  stretches->clear();
  if (text.empty()) {
    stretches->push_back({});
    return OkStatus();
  }
  scratch->position_ = 0;
  size_t covered = 0;  // end of the last stretch
  bool any = false;    // a match was taken, ending at `covered`
  for (size_t from = 0; from <= text.size();) {
    Stretch match;
    bool found = false;
    Status status = FindFrom(text, from, scratch, &match, &found);
    if (!status.ok()) return status;
    if (!found) break;
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
