// Values as text: str() and repr() of Python, and json.dumps().
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"
#include "text/unicode/unicode.h"

namespace headway::jinja {
namespace {

std::string TextRepr(std::string_view text) {
  const bool single = text.find('\'') != std::string_view::npos;
  const char quote = single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t i = 0; i < text.size(); i += CharBytes(text, i)) {
    const char32_t c = CharAt(text, i);
    const auto code = static_cast<uint32_t>(c);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (unicode::IsPrintable(c)) {
      out += text.substr(i, CharBytes(text, i));
    } else if (code < 0x100) {
      out += fmt::format("\\x{:02x}", code);
    } else if (code < 0x10000) {
      out += fmt::format("\\u{:04x}", code);
    } else {
      out += fmt::format("\\U{:08x}", code);
    }
  }
  return out + quote;
}

// fmt chooses the shortest digits that read back as the same value, and between fixed and
// scientific notation as Python does.
std::string FloatRepr(double value) {
  std::string digits = fmt::format("{}", value);
  if (std::isfinite(value) && digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return digits;
}

std::string JsonFloat(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return FloatRepr(value);
}

enum class Notation { kPython, kJson };

// Writes nested values.
class Writer {
 public:
  Writer(Runtime& rt, Notation notation, const JsonStyle& style, std::string* out)
      : rt_(rt), json_(notation == Notation::kJson), style_(style), out_(*out) {}

  void Write(const Value& value, int level) {
    const Nested nested(rt_);
    if (!nested.ok() || !rt_.CheckSize(out_.size())) return;
    if (value.none()) {
      out_ += json_ ? "null" : "None";
    } else if (value.is(Kind::kBool)) {
      out_ += value.boolean() ? (json_ ? "true" : "True") : (json_ ? "false" : "False");
    } else if (value.is(Kind::kInt)) {
      out_ += std::to_string(value.integer());
    } else if (value.is(Kind::kFloat)) {
      out_ += json_ ? JsonFloat(value.real()) : FloatRepr(value.real());
    } else if (value.string()) {
      WriteText(value);
    } else if (value.tuple() && !json_) {
      WriteItems(value.items(), level, "(", value.items().size() == 1 ? ",)" : ")");
    } else if (value.sequence()) {
      WriteItems(value.items(), level, "[", "]");
    } else if (value.dict()) {
      WriteDict(value.entries(), level);
    } else {
      WriteOther(value);
    }
  }

  void WriteDict(const Dict& dict, int level) {
    std::vector<Value> keys;
    for (const auto& entry : dict.entries()) keys.push_back(entry.first);
    if (style_.sort_keys) keys = SortByKeys(rt_, keys, keys, SortOrder::kAscending);
    out_ += '{';
    for (size_t i = 0; i < keys.size() && !rt_.failed(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      NewLine(level + 1);
      WriteKey(keys[i]);
      out_ += style_.key_separator;
      if (const Value* value = dict.Find(rt_, keys[i])) Write(*value, level + 1);
    }
    if (!keys.empty()) NewLine(level);
    out_ += '}';
  }

 private:
  void WriteText(const Value& value) {
    const std::string& text = value.text();
    if (!rt_.ChargeScan(text)) return;
    if (json_) {
      out_ += nlohmann::json(text).dump(-1, ' ', style_.ascii);
    } else if (value.markup()) {
      out_ += fmt::format("Markup({})", TextRepr(text));
    } else {
      out_ += TextRepr(text);
    }
  }

  void WriteItems(const std::vector<Value>& items, int level, std::string_view open,
                  std::string_view close) {
    out_ += open;
    for (size_t i = 0; i < items.size() && !rt_.failed(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      NewLine(level + 1);
      Write(items[i], level + 1);
    }
    if (!items.empty()) NewLine(level);
    out_ += close;
  }

  void WriteKey(const Value& key) {
    if (!json_ || key.string()) return Write(key, 0);
    if (!key.none() && !key.number()) {
      rt_.Fail("keys must be str, int, float, bool or None, not {}", TypeName(key));
    }
    out_ += '"';
    Write(key, 0);
    out_ += '"';
  }

  void WriteOther(const Value& value) {
    if (json_) {
      rt_.Fail("object of type {} is not JSON serializable", TypeName(value));
    } else if (value.is(Kind::kObject)) {
      value.object()->Repr(rt_, &out_);
    } else {
      out_ += "Undefined";
    }
  }

  void NewLine(int level) {
    if (!style_.indent.has_value()) return;
    out_ += '\n';
    for (int i = 0; i < level && rt_.CheckSize(out_.size()); ++i) {
      out_ += *style_.indent;
    }
  }

  Runtime& rt_;
  const bool json_;  // Python's notation otherwise
  const JsonStyle& style_;
  std::string& out_;
};

}  // namespace

std::string TypeName(const Value& value) {
  constexpr const char* kNames[] = {"Undefined", "Undefined", "NoneType", "bool",  "int",
                                    "float",     "str",       "list",     "tuple", "dict"};
  if (value.is(Kind::kObject)) return value.object()->type_name();
  return value.markup() ? "Markup" : kNames[static_cast<size_t>(value.kind())];
}

void AppendRepr(Runtime& rt, const Dict& dict, std::string* out) {
  Writer(rt, Notation::kPython, {}, out).WriteDict(dict, 0);
}

void AppendRepr(Runtime& rt, const Value& value, std::string* out) {
  Writer(rt, Notation::kPython, {}, out).Write(value, 0);
}

void AppendJson(Runtime& rt, const Value& value, const JsonStyle& style, std::string* out) {
  Writer(rt, Notation::kJson, style, out).Write(value, 0);
}

void AppendStr(Runtime& rt, const Value& value, std::string* out) {
  if (value.undefined() || value.missing()) return;
  if (value.string()) {
    *out += value.text();
    rt.Charge(1 + value.text().size() / kCopyBytesPerStep);
  } else {
    AppendRepr(rt, value, out);
  }
  rt.CheckSize(out->size());
}

Value ToStr(Runtime& rt, const Value& value) {
  if (value.string() && !value.markup()) return value;
  std::string text;
  AppendStr(rt, value, &text);
  return rt.Str(std::move(text));
}

}  // namespace headway::jinja
