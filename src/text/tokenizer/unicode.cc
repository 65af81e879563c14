#include "text/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "text/tokenizer/unicode_tables.h"

namespace headway::tok {
namespace {

// The entry of an ascending table that `c` lies in, or null.
template <typename Range, size_t N>
const Range* Lookup(const Range (&table)[N], char32_t c) {
  const Range* entry = std::partition_point(std::begin(table), std::end(table),
                                            [c](const Range& range) { return range.last < c; });
  return entry != std::end(table) && entry->first <= c ? entry : nullptr;
}

// Two letters, as the standard names general categories.
const char* CategoryOf(char32_t c) {
  const char* category = utf8proc_category_string(static_cast<utf8proc_int32_t>(c));
  if (category[0] != 'C' || category[1] != 'n') return category;
  const NamedRange* recent = Lookup(kRecentCategories, c);
  return recent != nullptr ? recent->name : category;
}

// Letters by their use and not by their category: circled and squared Latin ones.
bool IsOtherAlphabeticSymbol(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

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

bool IsWhitespace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsNumeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  // The last two ranges are of Unicode 17.
  return CategoryOf(c)[0] == 'N' || (c >= 0x11DE0 && c <= 0x11DE9) ||
         (c >= 0x16FF4 && c <= 0x16FF6);
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  }
  // U+166D and U+111C9 have left the category since Unicode 8.
  if (c == 0x166D || c == 0x111C9) return true;
  return CategoryOf(c)[0] == 'P' && Lookup(kNotYetPunctuation, c) == nullptr;
}

bool IsWordCharacter(char32_t c) {
  if (c < 0x80) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  }
  if (c == 0x200C || c == 0x200D || IsOtherAlphabeticSymbol(c)) return true;  // joiners
  const char* category = CategoryOf(c);
  switch (category[0]) {
    case 'L':
    case 'M':
      return true;
    case 'N':
      return category[1] != 'o';
    case 'P':
      return category[1] == 'c';
    default:
      return false;
  }
}

void AppendLowercase(char32_t c, std::string* text) {
  if (c == 0x130) {  // the only letter whose small form is two characters: i and a dot above
    text->append("i\u0307");
    return;
  }
  if (const CaseRange* recent = Lookup(kRecentLowercase, c); recent != nullptr) {
    AppendUtf8(static_cast<char32_t>(static_cast<int>(c) + recent->offset), text);
    return;
  }
  AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), text);
}

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

}  // namespace headway::tok
