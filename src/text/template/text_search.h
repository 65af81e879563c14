// Searching and cutting of text, shared by methods and filters.
#ifndef HEADWAY_TEXT_TEMPLATE_TEXT_SEARCH_H_
#define HEADWAY_TEXT_TEMPLATE_TEXT_SEARCH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/template/runtime.h"

namespace headway::jinja {

// As string_view::find, in time linear in the text whatever the needle.
size_t FindText(std::string_view text, std::string_view needle, size_t from = 0);
// As string_view::rfind, whose naive search is paid for.
size_t FindLastText(Runtime& rt, std::string_view text, std::string_view needle);

// text.replace(old, replacement, count) of Python; count < 0 for all. Fails when the result would
// be over the limit.
Value ReplaceText(Runtime& rt, const Value& text, std::string_view old,
                  std::string_view replacement, int64_t count);

// str.splitlines(); the ends stay with their lines when `keep_ends`.
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends);

// str.split() and str.rsplit(); an empty separator stands for white space.
enum class SplitFrom { kLeft, kRight };
std::vector<std::string_view> SplitText(Runtime& rt, std::string_view text,
                                        std::string_view separator, int64_t max_split,
                                        SplitFrom from);

// str.strip(chars) on either side; `chars` none for white space.
enum class Sides { kLeft, kRight, kBoth };
Value StripChars(Runtime& rt, const Value& self, const Value& chars, Sides sides);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_TEXT_SEARCH_H_
