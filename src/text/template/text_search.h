// Searching and cutting of text, shared by methods and filters.
#ifndef HEADWAY_TEXT_TEMPLATE_TEXT_SEARCH_H_
#define HEADWAY_TEXT_TEMPLATE_TEXT_SEARCH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headway::jinja {

// As string_view::find, in time linear in the text whatever the needle.
size_t FindText(std::string_view text, std::string_view needle, size_t from = 0);

// text.replace(old, replacement, count) of Python; count < 0 for all. False when the result would
// be over `max_bytes`.
bool ReplaceText(std::string_view text, std::string_view old, std::string_view replacement,
                 int64_t count, int64_t max_bytes, std::string* result);

// str.splitlines(); the ends stay with their lines when `keep_ends`.
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_TEXT_SEARCH_H_
