#include "text/template/print.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "text/template/filters.h"
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
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
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

// Writes nested values, in Python's notation or, with a style, in JSON.
class Writer {
 public:
  Writer(Runtime& rt, const JsonStyle* json, std::string* out) : rt_(rt), json_(json), out_(*out) {
    if (json == nullptr) return;
    item_separator_ = json->item_separator;
    key_separator_ = json->key_separator;
  }

  void Write(const Value& value, int level) {
    const Nested nested(rt_);
    if (!nested.ok() || !rt_.Charge(1)) return;
    if (!rt_.CheckSize(static_cast<int64_t>(out_.size()))) return;
    switch (value.kind()) {
      case Kind::kNone:
        out_ += json_ != nullptr ? "null" : "None";
        return;
      case Kind::kBool:
        if (json_ != nullptr) out_ += value.boolean() ? "true" : "false";
        if (json_ == nullptr) out_ += value.boolean() ? "True" : "False";
        return;
      case Kind::kInt:
        out_ += std::to_string(value.integer());
        return;
      case Kind::kFloat:
        out_ += json_ != nullptr ? JsonFloat(value.real()) : FloatRepr(value.real());
        return;
      case Kind::kString:
        WriteText(value);
        return;
      case Kind::kList:
        WriteItems(value.items(), level, "[", "]");
        return;
      case Kind::kTuple:
        if (json_ != nullptr) return WriteItems(value.items(), level, "[", "]");
        return WriteItems(value.items(), level, "(", value.items().size() == 1 ? ",)" : ")");
      case Kind::kDict:
        WriteDict(value.entries(), level);
        return;
      case Kind::kMissing:
      case Kind::kUndefined:
      case Kind::kObject:
        WriteOther(value);
        return;
    }
  }

  void WriteDict(const Dict& dict, int level) {
    std::vector<Value> keys;
    for (const auto& entry : dict.entries()) keys.push_back(entry.first);
    if (json_ != nullptr && json_->sort_keys) keys = SortByKeys(rt_, keys, keys, false);
    out_ += '{';
    for (size_t i = 0; i < keys.size() && !rt_.failed(); ++i) {
      if (i > 0) out_ += item_separator_;
      NewLine(level + 1);
      WriteKey(keys[i]);
      out_ += key_separator_;
      if (const Value* value = dict.Find(rt_, keys[i])) Write(*value, level + 1);
    }
    if (!keys.empty()) NewLine(level);
    out_ += '}';
  }

 private:
  void WriteText(const Value& value) {
    const std::string& text = value.text();
    if (!rt_.Charge(static_cast<int64_t>(text.size()) / kScanBytesPerStep)) return;
    if (json_ != nullptr) {
      out_ += nlohmann::json(text).dump(-1, ' ', json_->ascii);
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
      if (i > 0) out_ += item_separator_;
      NewLine(level + 1);
      Write(items[i], level + 1);
    }
    if (!items.empty()) NewLine(level);
    out_ += close;
  }

  void WriteKey(const Value& key) {
    if (json_ == nullptr || key.string()) return Write(key, 0);
    if (!key.none() && !key.number()) {
      rt_.Fail(fmt::format("keys must be str, int, float, bool or None, not {}", TypeName(key)));
    }
    out_ += '"';
    Write(key, 0);
    out_ += '"';
  }

  void WriteOther(const Value& value) {
    if (json_ != nullptr) {
      rt_.Fail(fmt::format("object of type {} is not JSON serializable", TypeName(value)));
    } else if (value.is(Kind::kObject)) {
      value.object()->Repr(rt_, &out_);
    } else {
      out_ += "Undefined";
    }
  }

  void NewLine(int level) {
    if (json_ == nullptr || !json_->indent.has_value()) return;
    out_ += '\n';
    for (int i = 0; i < level && rt_.CheckSize(static_cast<int64_t>(out_.size())); ++i) {
      out_ += *json_->indent;
    }
  }

  Runtime& rt_;
  const JsonStyle* const json_;  // null for Python's notation
  std::string& out_;
  std::string_view item_separator_ = ", ";
  std::string_view key_separator_ = ": ";
};

}  // namespace

std::string TypeName(const Value& value) {
  constexpr const char* kNames[] = {"Undefined", "Undefined", "NoneType", "bool",  "int",
                                    "float",     "str",       "list",     "tuple", "dict"};
  if (value.is(Kind::kObject)) return value.object()->type_name();
  return value.markup() ? "Markup" : kNames[static_cast<size_t>(value.kind())];
}

void AppendRepr(Runtime& rt, const Dict& dict, std::string* out) {
  Writer(rt, nullptr, out).WriteDict(dict, 0);
}

void AppendRepr(Runtime& rt, const Value& value, std::string* out) {
  Writer(rt, nullptr, out).Write(value, 0);
}

void AppendJson(Runtime& rt, const Value& value, const JsonStyle& style, std::string* out) {
  Writer(rt, &style, out).Write(value, 0);
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
