// "...".format(...), as Python's string.Formatter does it with the sandbox's attribute access.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/utf8.h"
#include "text/template/format.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"

namespace headway::jinja {
namespace {

bool IsNumber(std::string_view text) {
  // Longer ones are no index of anything.
  constexpr size_t kMaxDigits = 9;
  return !text.empty() && text.size() <= kMaxDigits &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

int64_t ToNumber(std::string_view digits) {
  int64_t number = 0;
  for (const char c : digits) number = number * 10 + (c - '0');
  return number;
}

class Formatter {
 public:
  Formatter(Runtime& rt, const Args& args, bool markup) : rt_(rt), args_(args), markup_(markup) {}

  // Appends `text` with its fields replaced; fields within a format spec have `depth` 1.
  bool Expand(std::string_view text, int depth, std::string* out) {
    for (size_t i = 0; i < text.size();) {
      const char c = text[i++];
      if (c != '{' && c != '}') {
        *out += c;
        continue;
      }
      if (i < text.size() && text[i] == c) {
        *out += c;
        ++i;
        continue;
      }
      if (c == '}') return Fail("single '}' encountered in a format string");
      size_t end = 0;
      if (!FindEnd(text, i, &end)) return false;
      if (!Field(text.substr(i, end - i), depth, out)) return false;
      if (!rt_.CheckSize(static_cast<int64_t>(out->size()))) return false;
      i = end + 1;
    }
    return !rt_.failed();
  }

 private:
  bool Fail(std::string_view message) {
    rt_.Fail(message);
    return false;
  }

  // The '}' that closes the field that begins at `begin`.
  bool FindEnd(std::string_view text, size_t begin, size_t* end) {
    int open = 1;
    bool in_index = false;
    for (size_t i = begin; i < text.size(); ++i) {
      if (text[i] == '[' && open == 1) in_index = true;
      if (text[i] == ']') in_index = false;
      if (in_index) continue;
      if (text[i] == '{') ++open;
      if (text[i] == '}' && --open == 0) {
        *end = i;
        return true;
      }
    }
    return Fail("expected '}' before the end of a format string");
  }

  bool Field(std::string_view field, int depth, std::string* out) {
    if (depth > 1) return Fail("a format spec is nested too deeply");
    // name [! conversion] [: spec]; a ':' or '!' within [...] belongs to the name.
    size_t name_end = 0;
    bool in_index = false;
    while (name_end < field.size()) {
      const char c = field[name_end];
      if (c == '[') in_index = true;
      if (c == ']') in_index = false;
      if (!in_index && (c == '!' || c == ':')) break;
      ++name_end;
    }
    const std::string_view name = field.substr(0, name_end);
    std::string_view rest = field.substr(name_end);
    Value value;
    if (!Resolve(name, &value)) return false;
    if (rest.starts_with('!')) {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':')) {
        return Fail("expected ':' after a conversion in a format string");
      }
      if (!ConvertValue(rest[1], &value)) return false;
      rest.remove_prefix(2);
    }
    std::string spec;
    if (!rest.empty() && !Expand(rest.substr(1), depth + 1, &spec)) return false;
    return Write(value, spec, out);
  }

  bool Resolve(std::string_view name, Value* value) {
    const size_t first_end = std::min(name.find_first_of(".["), name.size());
    if (!First(name.substr(0, first_end), value)) return false;
    std::string_view rest = name.substr(first_end);
    while (!rest.empty() && !rt_.failed()) {
      if (rest[0] == '.') {
        const size_t end = std::min(rest.find_first_of(".[", 1), rest.size());
        if (end == 1) return Fail("empty attribute in a format string");
        *value = GetAttribute(rt_, *value, rest.substr(1, end - 1));
        rest.remove_prefix(end);
      } else {
        const size_t end = rest.find(']');
        if (rest[0] != '[' || end == std::string_view::npos || end == 1) {
          return Fail("malformed index in a format string");
        }
        const std::string_view key = rest.substr(1, end - 1);
        *value = GetItem(rt_, *value,
                         IsNumber(key) ? Value::Int(ToNumber(key)) : rt_.Str(std::string(key)));
        rest.remove_prefix(end + 1);
      }
    }
    return !rt_.failed();
  }

  bool First(std::string_view name, Value* value) {
    const bool automatic = name.empty();
    if (automatic || IsNumber(name)) {
      if ((automatic && manual_) || (!automatic && next_ > 0)) {
        return Fail("a format string mixes automatic and manual field numbers");
      }
      manual_ = !automatic;
      const auto index = static_cast<size_t>(automatic ? next_++ : ToNumber(name));
      if (index >= args_.positional.size()) {
        return Fail("a format string has more fields than there are arguments");
      }
      *value = args_.positional[index];
      return true;
    }
    for (const auto& [key, argument] : args_.named) {
      if (key != name) continue;
      *value = argument;
      return true;
    }
    return Fail(fmt::format("a format string names '{}', which is not an argument", name));
  }

  bool ConvertValue(char conversion, Value* value) {
    std::string text;
    if (conversion == 's') {
      AppendStr(rt_, *value, &text);
    } else if (conversion == 'r') {
      AppendRepr(rt_, *value, &text);
    } else {
      return Fail("unknown conversion in a format string");
    }
    *value = rt_.Str(std::move(text));
    return !rt_.failed();
  }

  // [[fill]align][sign][#][0][width][grouping][.precision][type]
  bool ReadSpec(std::string_view text, FormatSpec* spec) {
    constexpr std::string_view kAligns = "<>=^";
    size_t i = 0;
    const auto at = [&](std::string_view set) {
      return i < text.size() && set.find(text[i]) != std::string_view::npos;
    };
    const size_t fill_bytes = text.empty() ? 0 : CharBytes(text, 0);
    if (fill_bytes < text.size() && kAligns.find(text[fill_bytes]) != std::string_view::npos) {
      spec->fill = text.substr(0, fill_bytes);
      spec->align = text[fill_bytes];
      i = fill_bytes + 1;
    } else if (at(kAligns)) {
      spec->align = text[i++];
    }
    if (at("+- ")) spec->sign = text[i++];
    if (at("#")) spec->alternate = text[i++] == '#';
    if (at("0")) {
      ++i;
      if (spec->align == 0) {
        spec->align = '=';
        spec->fill = "0";
      }
    }
    if (!ReadDigits(text, &i, &spec->width)) return false;
    if (at(",_")) spec->grouping = text[i++];
    if (at(".")) {
      ++i;
      if (!at("0123456789")) return Fail("a format spec lacks its precision");
      if (!ReadDigits(text, &i, &spec->precision)) return false;
    }
    if (i < text.size()) spec->type = text[i++];
    return i == text.size() || Fail("invalid format spec");
  }

  bool ReadDigits(std::string_view text, size_t* i, int64_t* number) {
    *number = 0;
    for (; *i < text.size() && text[*i] >= '0' && text[*i] <= '9'; ++*i) {
      *number = *number * 10 + (text[*i] - '0');
      if (!rt_.CheckSize(*number)) return false;
    }
    return true;
  }

  Value WriteValue(const Value& value, const FormatSpec& spec) {
    if (value.string()) {
      if (spec.align == '=' && spec.fill != "0") {
        return rt_.Fail("'=' alignment is not for strings");
      }
      FormatSpec text_spec = spec;
      // A width with a leading zero pads a string on the right.
      if (spec.align == '=') text_spec.align = '<';
      if (spec.sign != '-' || spec.alternate || spec.grouping != 0) {
        return rt_.Fail("a format spec for numbers is used with a string");
      }
      return FormatText(rt_, value.text(), text_spec);
    }
    if (value.integral()) {
      const bool as_float = std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos;
      if (spec.precision >= 0 && (spec.type == 0 || !as_float)) {
        return rt_.Fail("a precision is not allowed with an int");
      }
      return FormatInt(rt_, value.integer(), spec);
    }
    if (value.is(Kind::kFloat)) return FormatFloat(rt_, value.real(), spec);
    return rt_.Fail(fmt::format("unsupported format spec for '{}'", TypeName(value)));
  }

  bool Write(const Value& value, const std::string& spec_text, std::string* out) {
    Value written;
    if (spec_text.empty()) {
      written = value.markup() ? value : ToStr(rt_, value);
    } else {
      FormatSpec spec;
      if (!ReadSpec(spec_text, &spec)) return false;
      written = WriteValue(value, spec);
    }
    if (rt_.failed()) return false;
    if (markup_) written = Escape(rt_, written);
    if (rt_.failed()) return false;
    *out += written.text();
    return true;
  }

  Runtime& rt_;
  const Args& args_;
  const bool markup_;
  int64_t next_ = 0;
  bool manual_ = false;
};

}  // namespace

Value FormatBraces(Runtime& rt, const Value& text, const Args& args) {
  rt.Charge(static_cast<int64_t>(text.text().size()) / kScanBytesPerStep);
  Formatter formatter(rt, args, text.markup());
  std::string out;
  if (!formatter.Expand(text.text(), 0, &out)) return {};
  return rt.Str(std::move(out), text.markup());
}

}  // namespace headway::jinja
