// Searching, cutting and formatting of text, shared by methods, filters and operators.
#ifndef HEADWAY_TEXT_TEMPLATE_TEXT_OPERATIONS_H_
#define HEADWAY_TEXT_TEMPLATE_TEXT_OPERATIONS_H_

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

// str.splitlines().
std::vector<std::string_view> SplitLines(std::string_view text);

// str.split(); an empty separator stands for white space. `max_split` < 0: without a limit.
std::vector<std::string_view> SplitText(Runtime& rt, std::string_view text,
                                        std::string_view separator, int64_t max_split);

// str.strip(chars) on either side; `chars` none for white space.
enum class Sides { kLeft, kRight, kBoth };
Value StripChars(Runtime& rt, const Value& self, const Value& chars, Sides sides);

// text % values: %s, %r, %d, %i and %%.
Value FormatPercent(Runtime& rt, const Value& text, const Value& values);
// text.format(...): fields {}, {0} and {name}, with ':d' and ':s'.
Value FormatBraces(Runtime& rt, const Value& text, const Args& args);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_TEXT_OPERATIONS_H_
