#include "text/template/text_operations.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/utf8.h"
#include "text/template/operators.h"
#include "text/unicode/unicode.h"

namespace headway::jinja {
namespace {

constexpr size_t kNone = std::string_view::npos;

bool IsLineEnd(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool InSet(std::string_view set, std::string_view character) {
  for (size_t i = 0; i < set.size(); i += CharBytes(set, i)) {
    if (set.substr(i, CharBytes(set, i)) == character) return true;
  }
  return false;
}

size_t FindSpace(std::string_view text) {
  size_t end = 0;
  while (end < text.size() && !unicode::IsSpace(CharAt(text, end))) end += CharBytes(text, end);
  return end < text.size() ? end : kNone;
}

bool Refuse(Runtime& rt, std::string_view what) {
  return rt.Refuse("Headway does not have {} in formats", what);
}

// A value in a format, as the conversion `type` of both formatting languages writes it.
bool AppendConverted(Runtime& rt, const Value& value, char type, std::string* out) {
  const bool whole = value.is(Kind::kFloat) && std::abs(value.real()) < 0x1p63;
  if (type == 's') {
    AppendStr(rt, value, out);
  } else if (type == 'r') {
    AppendRepr(rt, value, out);
  } else if (type != 'd' && type != 'i') {
    return Refuse(rt, type == '(' ? "names" : fmt::format("the conversion '{}'", type));
  } else if (value.integral() || whole) {
    *out += std::to_string(whole ? static_cast<int64_t>(value.real()) : value.integer());
  } else {
    if (value.undefined()) rt.FailUndefined(value);
    rt.Fail("a format wants an int, not '{}'", TypeName(value));
  }
  return rt.CheckSize(out->size());
}

// How the fields of a format with braces found their arguments so far.
struct Fields {
  size_t next = 0;        // of the fields without a number
  bool numbered = false;  // a field had a number
};

// The argument that a field names; null (and failed) when there is none.
const Value* FindField(Runtime& rt, std::string_view name, const Args& args, Fields* fields) {
  size_t index = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  if (name.empty()) {
    index = fields->next++;
  } else if (error == std::errc() && end == name.data() + name.size()) {
    fields->numbered = true;
  } else {
    for (const auto& [key, value] : args.named) {
      if (key == name) return &value;
    }
    if (name.find_first_of(".[!") != name.npos) Refuse(rt, fmt::format("the field '{}'", name));
    index = args.positional.size();
  }
  if (fields->numbered && fields->next > 0) {
    rt.Fail("a format has fields with and without numbers");
  } else if (index >= args.positional.size()) {
    rt.Fail("format() has no argument '{}'", name.empty() ? fmt::to_string(index) : name);
  }
  return rt.failed() ? nullptr : &args.positional[index];
}

// The field between two braces.
bool AppendField(Runtime& rt, std::string_view field, const Args& args, Fields* fields,
                 std::string* out) {
  const size_t colon = std::min(field.find(':'), field.size());
  const std::string_view spec = field.substr(std::min(colon + 1, field.size()));
  const Value* value = FindField(rt, field.substr(0, colon), args, fields);
  if (value == nullptr) return false;
  const bool known =
      spec.empty() || (spec == "s" && value->string()) || (spec == "d" && value->integral());
  if (!known) return Refuse(rt, fmt::format("the specification '{}'", spec));
  return AppendConverted(rt, *value, spec.empty() ? 's' : spec[0], out);
}

// Pays for reading the format. Text that is marked as safe would escape what is put into it.
bool CheckFormat(Runtime& rt, const Value& text) {
  if (text.markup()) return Refuse(rt, "safe text");
  return rt.ChargeScan(text.text());
}

}  // namespace

size_t FindText(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return kNone;
  if (needle.empty()) return from;
  // memmem is linear; string_view::find is not for needles like "aaa...b".
  const void* found = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  if (found == nullptr) return kNone;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t FindLastText(Runtime& rt, std::string_view text, std::string_view needle) {
  constexpr size_t kComparedPerStep = 1024;
  if (needle.size() > text.size()) return kNone;
  const size_t found = text.rfind(needle);
  const size_t looked_at = text.size() - (found == kNone ? 0 : found);
  return rt.Charge(looked_at * needle.size() / kComparedPerStep) ? found : kNone;
}

Value ReplaceText(Runtime& rt, const Value& self, std::string_view old,
                  std::string_view replacement, int64_t count) {
  const std::string_view text = self.text();
  rt.ChargeScan(text);
  std::string result;
  size_t position = 0;
  while (count-- != 0 && rt.CheckSize(result.size())) {
    const size_t found = FindText(text, old, position);
    if (found == kNone) break;
    result += text.substr(position, found - position);
    result += replacement;
    position = found + old.size();
    if (!old.empty()) continue;
    // An empty text is found before every character and at the end.
    if (position == text.size()) break;
    const size_t bytes = CharBytes(text, position);
    result += text.substr(position, bytes);
    position += bytes;
  }
  result += text.substr(position);
  return rt.Str(std::move(result), self.markup());
}

std::vector<std::string_view> SplitLines(std::string_view text) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t end = i;
    const char32_t c = NextCharacter(text, &i);
    if (!IsLineEnd(c)) continue;
    if (c == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.push_back(text.substr(begin, end - begin));
    begin = i;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::vector<std::string_view> SplitText(Runtime& rt, std::string_view text,
                                        std::string_view separator, int64_t max_split) {
  const bool space = separator.empty();
  std::vector<std::string_view> parts;
  while (rt.Charge(1)) {
    if (space) text = unicode::StripLeft(text);
    if (space && text.empty()) break;
    const size_t found = max_split-- == 0 ? kNone
                         : space          ? FindSpace(text)
                                          : FindText(text, separator);
    parts.push_back(text.substr(0, found));
    if (found == kNone) break;
    text.remove_prefix(found + separator.size());
  }
  return parts;
}

Value StripChars(Runtime& rt, const Value& self, const Value& chars, Sides sides) {
  std::string_view text = self.text();
  const bool left = sides != Sides::kRight;
  const bool right = sides != Sides::kLeft;
  if (chars.none()) {
    if (left) text = unicode::StripLeft(text);
    if (right) text = unicode::StripRight(text);
    return rt.Str(std::string(text), self.markup());
  }
  if (!chars.string()) return rt.Fail("strip() needs none or a string");
  const std::string& set = chars.text();
  // Every character is compared with the whole set.
  const size_t cost = 1 + set.size() / kScanBytesPerStep;
  while (left && !text.empty() && rt.Charge(cost)) {
    const size_t bytes = CharBytes(text, 0);
    if (!InSet(set, text.substr(0, bytes))) break;
    text.remove_prefix(bytes);
  }
  while (right && !text.empty() && rt.Charge(cost)) {
    const size_t before = PreviousOffset(text, text.size());
    if (!InSet(set, text.substr(before))) break;
    text = text.substr(0, before);
  }
  return rt.Str(std::string(text), self.markup());
}

Value FormatPercent(Runtime& rt, const Value& text_value, const Value& values) {
  if (!CheckFormat(rt, text_value)) return {};
  const std::string_view text = text_value.text();
  const std::vector<Value> one = {values};
  const std::vector<Value>& arguments = values.tuple() ? values.items() : one;
  size_t next = 0;
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i++];
    if (c != '%' || text.substr(i).starts_with('%')) {
      out += c;
      if (c == '%') ++i;
    } else if (i == text.size()) {
      rt.Fail("incomplete format");
    } else if (next >= arguments.size() && text[i] != '(') {
      rt.Fail("not enough arguments for format string");
    } else {
      AppendConverted(rt, text[i] == '(' ? Value() : arguments[next++], text[i], &out);
      ++i;
    }
    if (rt.failed()) return {};
  }
  // What looks like a mapping may be left over.
  const bool mapping = values.dict() || values.list() || values.undefined();
  if (next < arguments.size() && !mapping) {
    return rt.Fail("not all arguments were converted by the format");
  }
  return rt.Str(std::move(out));
}

Value FormatBraces(Runtime& rt, const Value& text_value, const Args& args) {
  if (!CheckFormat(rt, text_value)) return {};
  const std::string_view text = text_value.text();
  Fields fields;
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i++];
    if (c != '{' && c != '}') {
      out += c;
    } else if (i < text.size() && text[i] == c) {
      out += c;
      ++i;
    } else {
      const size_t end = text.find('}', i);
      if (c == '}' || end == text.npos) return rt.Fail("a format has a single brace");
      if (!AppendField(rt, text.substr(i, end - i), args, &fields, &out)) return {};
      i = end + 1;
    }
  }
  return rt.Str(std::move(out));
}

}  // namespace headway::jinja
