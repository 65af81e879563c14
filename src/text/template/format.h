// Formatting: "..." % values, "...".format(values), and HTML escaping.
#ifndef HEADWAY_TEXT_TEMPLATE_FORMAT_H_
#define HEADWAY_TEXT_TEMPLATE_FORMAT_H_

#include "text/template/value.h"

namespace headway::jinja {

// text % values: flags, width, precision, and the types s, r, d, i, u, x, X, o, e, E, f, F, g, G.
Value FormatPercent(Runtime& rt, const Value& text, const Value& values);
// text.format(...): fields {}, {0} and {name}, each with a specification of the same types.
Value FormatBraces(Runtime& rt, const Value& text, const Args& args);

// jinja2's escape(): Markup of str(value) with &, <, >, ' and " replaced; Markup as it is.
Value Escape(Runtime& rt, const Value& value);

}  // namespace headway::jinja

#endif  // HEADWAY_TEXT_TEMPLATE_FORMAT_H_
