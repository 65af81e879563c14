// str() and repr().
#include <fmt/format.h>

#include <cmath>

#include "base/utf8.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"
#include "text/unicode/unicode.h"

namespace headway::jinja {
namespace {

void AppendItemsRepr(Runtime& rt, const std::vector<Value>& items, std::string* out) {
  bool first = true;
  for (const Value& item : items) {
    if (!first) *out += ", ";
    first = false;
    AppendRepr(rt, item, out);
    if (rt.failed()) return;
  }
}

void AppendTextRepr(std::string_view text, std::string* out) {
  const bool single = text.find('\'') != std::string_view::npos;
  const char quote = single && text.find('"') == std::string_view::npos ? '"' : '\'';
  *out += quote;
  for (size_t i = 0; i < text.size(); i += CharBytes(text, i)) {
    const char32_t c = CharAt(text, i);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      *out += '\\';
      *out += static_cast<char>(c);
    } else if (c == '\n') {
      *out += "\\n";
    } else if (c == '\r') {
      *out += "\\r";
    } else if (c == '\t') {
      *out += "\\t";
    } else if (unicode::IsPrintable(c)) {
      *out += text.substr(i, CharBytes(text, i));
    } else {
      const auto code = static_cast<uint32_t>(c);
      *out += code < 0x100     ? fmt::format("\\x{:02x}", code)
              : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                               : fmt::format("\\U{:08x}", code);
    }
  }
  *out += quote;
}

}  // namespace

std::string TypeName(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return value.markup() ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kObject:
      return value.object()->type_name();
  }
  return "object";
}

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  // fmt chooses the shortest digits that read back as the same value, and between fixed and
  // scientific notation as Python does.
  std::string digits = fmt::format("{}", value);
  if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return digits;
}

void AppendRepr(Runtime& rt, const Dict& dict, std::string* out) {
  *out += '{';
  bool first = true;
  for (const auto& [key, value] : dict.entries()) {
    if (!first) *out += ", ";
    first = false;
    AppendRepr(rt, key, out);
    *out += ": ";
    AppendRepr(rt, value, out);
    if (rt.failed()) return;
  }
  *out += '}';
}

void AppendRepr(Runtime& rt, const Value& value, std::string* out) {
  const Nested nested(rt);
  if (!nested.ok() || !rt.Charge(1) || !rt.CheckSize(static_cast<int64_t>(out->size()))) return;
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      *out += "Undefined";
      return;
    case Kind::kNone:
      *out += "None";
      return;
    case Kind::kBool:
      *out += value.boolean() ? "True" : "False";
      return;
    case Kind::kInt:
      *out += std::to_string(value.integer());
      return;
    case Kind::kFloat:
      *out += FloatRepr(value.real());
      return;
    case Kind::kString:
      if (!rt.Charge(static_cast<int64_t>(value.text().size()) / kScanBytesPerStep)) return;
      if (value.markup()) *out += "Markup(";
      AppendTextRepr(value.text(), out);
      if (value.markup()) *out += ')';
      return;
    case Kind::kList:
      *out += '[';
      AppendItemsRepr(rt, value.items(), out);
      *out += ']';
      return;
    case Kind::kTuple:
      *out += '(';
      AppendItemsRepr(rt, value.items(), out);
      *out += value.items().size() == 1 ? ",)" : ")";
      return;
    case Kind::kDict:
      AppendRepr(rt, value.entries(), out);
      return;
    case Kind::kObject:
      value.object()->Repr(rt, out);
      return;
  }
}

void AppendStr(Runtime& rt, const Value& value, std::string* out) {
  if (value.undefined() || value.missing()) return;
  if (value.string()) {
    *out += value.text();
    rt.Charge(1 + static_cast<int64_t>(value.text().size()) / kCopyBytesPerStep);
  } else {
    AppendRepr(rt, value, out);
  }
  rt.CheckSize(static_cast<int64_t>(out->size()));
}

Value ToStr(Runtime& rt, const Value& value) {
  if (value.string() && !value.markup()) return value;
  std::string text;
  AppendStr(rt, value, &text);
  return rt.Str(std::move(text));
}

}  // namespace headway::jinja
