// Tables of methods, and the pieces that methods and filters share.
#ifndef HEADWAY_TEXT_TEMPLATE_METHODS_H_
#define HEADWAY_TEXT_TEMPLATE_METHODS_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "text/template/call.h"

namespace headway::jinja {

std::span<const NamedFunction> TextMethods();

Value SplitMethod(Runtime& rt, const Value& self, const Args& args);
Value RightSplitMethod(Runtime& rt, const Value& self, const Args& args);

// str.strip(chars) on either side; `chars` none for white space.
Value StripChars(Runtime& rt, const Value& self, const Value& chars, bool left, bool right);
// Columns to the left of a text centred with `pad` columns to spare, as str.center places it.
constexpr int64_t CenterLeft(int64_t pad, int64_t width) { return pad / 2 + (pad & width & 1); }
// str.islower, str.isupper.
bool IsLowerText(std::string_view text);
bool IsUpperText(std::string_view text);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_METHODS_H_
