#include "text/unicode/normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "text/unicode/recent.h"

namespace headway::unicode {
namespace {

bool IsInert(char32_t c) {
  return Lookup(kNormalizationInert, c) != nullptr || Lookup(kRecentCategories, c) != nullptr;
}

// Collects the decomposition of one run of characters and appends it in the wanted form.
class Normalizer {
 public:
  Normalizer(NormalForm form, std::string* result)
      : compose_(form == NormalForm::kNfc || form == NormalForm::kNfkc),
        compatible_(form == NormalForm::kNfkc || form == NormalForm::kNfkd),
        result_(result) {}

  void Add(char32_t c) {
    std::array<utf8proc_int32_t, 32> decomposed;  // the longest of the standard has 18
    const int options = UTF8PROC_DECOMPOSE | UTF8PROC_STABLE | (compatible_ ? UTF8PROC_COMPAT : 0);
    int last_boundclass = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(c), decomposed.data(), decomposed.size(),
        static_cast<utf8proc_option_t>(options), &last_boundclass);
    HEADWAY_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(decomposed.size()));
    run_.insert(run_.end(), decomposed.begin(), decomposed.begin() + count);
  }

  void Flush() {
    OrderMarks();
    auto length = static_cast<utf8proc_ssize_t>(run_.size());
    if (compose_ && length > 0) {
      length = utf8proc_normalize_utf32(
          run_.data(), length, static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
      HEADWAY_CHECK(length >= 0);
    }
    for (utf8proc_ssize_t i = 0; i < length; ++i) {
      AppendUtf8(static_cast<char32_t>(run_[static_cast<size_t>(i)]), result_);
    }
    run_.clear();
  }

 private:
  static int CombiningClass(utf8proc_int32_t c) {
    return static_cast<int>(utf8proc_get_property(c)->combining_class);
  }

  // The canonical ordering algorithm (Unicode chapter 3.11). Sorting each run of marks is
  // O(n log n) where utf8proc_decompose exchanges neighbours: a text of marks alone would take
  // it hours.
  void OrderMarks() {
    for (size_t begin = 0; begin < run_.size();) {
      if (CombiningClass(run_[begin]) == 0) {
        ++begin;
        continue;
      }
      size_t end = begin + 1;
      while (end < run_.size() && CombiningClass(run_[end]) != 0) ++end;
      std::stable_sort(run_.begin() + static_cast<std::ptrdiff_t>(begin),
                       run_.begin() + static_cast<std::ptrdiff_t>(end),
                       [](utf8proc_int32_t a, utf8proc_int32_t b) {
                         return CombiningClass(a) < CombiningClass(b);
                       });
      begin = end;
    }
  }

  bool compose_;
  bool compatible_;
  std::string* result_;
  std::vector<utf8proc_int32_t> run_;
};

}  // namespace

std::string Normalize(std::string_view text, NormalForm form) {
  std::string result;
  result.reserve(text.size());
  Normalizer normalizer(form, &result);
  for (size_t offset = 0; offset < text.size();) {
    const char32_t c = NextCharacter(text, &offset);
    if (c < 0x80) {
      // ASCII never changes, but a mark behind it may compose with it.
      normalizer.Flush();
      const bool alone = offset == text.size() || static_cast<unsigned char>(text[offset]) < 0x80;
      if (alone) {
        result.push_back(static_cast<char>(c));
      } else {
        normalizer.Add(c);
      }
    } else if (IsInert(c)) {
      // Starts no composition and orders no marks.
      normalizer.Flush();
      AppendUtf8(c, &result);
    } else {
      normalizer.Add(c);
    }
  }
  normalizer.Flush();
  return result;
}

}  // namespace headway::unicode
