#include "text/template/json.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "text/template/filters.h"
#include "text/template/operators.h"
#include "text/template/runtime.h"

namespace headway::jinja {
namespace {

// json.dumps(value, ensure_ascii, indent, separators, sort_keys) of Python.
struct JsonStyle {
  bool ascii = false;
  bool pretty = false;  // a line for every element, `indent` at each level
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

void AppendUnit(uint32_t unit, std::string* out) { *out += fmt::format("\\u{:04x}", unit); }

void AppendJsonText(std::string_view text, bool ascii, std::string* out) {
  *out += '"';
  for (size_t i = 0; i < text.size(); i += CharBytes(text, i)) {
    const auto c = static_cast<uint32_t>(CharAt(text, i));
    if (c == '"' || c == '\\') {
      *out += '\\';
      *out += static_cast<char>(c);
    } else if (c == '\n') {
      *out += "\\n";
    } else if (c == '\r') {
      *out += "\\r";
    } else if (c == '\t') {
      *out += "\\t";
    } else if (c == '\f') {
      *out += "\\f";
    } else if (c == '\b') {
      *out += "\\b";
    } else if (c < 0x20 || (ascii && c >= 0x7F && c < 0x10000)) {
      AppendUnit(c, out);
    } else if (ascii && c >= 0x10000) {
      AppendUnit(0xD800 + ((c - 0x10000) >> 10), out);
      AppendUnit(0xDC00 + ((c - 0x10000) & 0x3FF), out);
    } else {
      *out += text.substr(i, CharBytes(text, i));
    }
  }
  *out += '"';
}

std::string JsonFloat(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return FloatRepr(value);
}

class Dumper {
 public:
  Dumper(Runtime& rt, const JsonStyle& style) : rt_(rt), style_(style) {}

  void Dump(const Value& value, int level) {
    const Nested nested(rt_);
    if (!nested.ok() || !rt_.Charge(1)) return;
    if (!rt_.CheckSize(static_cast<int64_t>(out_.size()))) return;
    switch (value.kind()) {
      case Kind::kNone:
        out_ += "null";
        return;
      case Kind::kBool:
        out_ += value.boolean() ? "true" : "false";
        return;
      case Kind::kInt:
        out_ += std::to_string(value.integer());
        return;
      case Kind::kFloat:
        out_ += JsonFloat(value.real());
        return;
      case Kind::kString:
        Text(value.text());
        return;
      case Kind::kList:
      case Kind::kTuple:
        DumpItems(value.items(), level);
        return;
      case Kind::kDict:
        DumpDict(value.entries(), level);
        return;
      case Kind::kMissing:
      case Kind::kUndefined:
      case Kind::kObject:
        rt_.Fail(fmt::format("object of type {} is not JSON serializable", TypeName(value)));
        return;
    }
  }

  std::string Take() { return std::move(out_); }

 private:
  void Text(std::string_view text) {
    if (!rt_.Charge(static_cast<int64_t>(text.size()) / kScanBytesPerStep)) return;
    AppendJsonText(text, style_.ascii, &out_);
  }

  void NewLine(int level) {
    if (!style_.pretty) return;
    out_ += '\n';
    for (int i = 0; i < level; ++i) {
      out_ += style_.indent;
      if (!rt_.CheckSize(static_cast<int64_t>(out_.size()))) return;
    }
  }

  void DumpItems(const std::vector<Value>& items, int level) {
    if (items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      NewLine(level + 1);
      Dump(items[i], level + 1);
      if (rt_.failed()) return;
    }
    NewLine(level);
    out_ += ']';
  }

  void DumpKey(const Value& key) {
    if (key.string()) {
      Text(key.text());
    } else if (key.none() || key.number()) {
      out_ += '"';
      Dump(key, 0);
      out_ += '"';
    } else {
      rt_.Fail(fmt::format("keys must be str, int, float, bool or None, not {}", TypeName(key)));
    }
  }

  void DumpDict(const Dict& dict, int level) {
    if (dict.size() == 0) {
      out_ += "{}";
      return;
    }
    std::vector<Value> keys;
    for (const auto& entry : dict.entries()) keys.push_back(entry.first);
    if (style_.sort_keys) {
      const std::vector<Value> by = keys;
      keys = SortByKeys(rt_, std::move(keys), by, false);
    }
    out_ += '{';
    bool first = true;
    for (const Value& key : keys) {
      if (!first) out_ += style_.item_separator;
      first = false;
      NewLine(level + 1);
      DumpKey(key);
      out_ += style_.key_separator;
      if (const Value* value = dict.Find(rt_, key)) Dump(*value, level + 1);
      if (rt_.failed()) return;
    }
    NewLine(level);
    out_ += '}';
  }

  Runtime& rt_;
  const JsonStyle& style_;
  std::string out_;
};

bool ReadSeparators(Runtime& rt, const Value& separators, JsonStyle* style) {
  const std::vector<Value> parts = Drain(rt, separators);
  if (rt.failed()) return false;
  if (parts.size() != 2 || !parts[0].string() || !parts[1].string()) {
    rt.Fail("tojson needs two strings as separators");
    return false;
  }
  style->item_separator = parts[0].text();
  style->key_separator = parts[1].text();
  return true;
}

bool ReadIndent(Runtime& rt, const Value& indent, JsonStyle* style) {
  style->pretty = true;
  style->item_separator.assign(1, ',');
  if (indent.string()) {
    style->indent = indent.text();
    return true;
  }
  int64_t width = 0;
  if (!AsIndex(rt, indent, &width) || !rt.CheckSize(width)) return false;
  style->indent.assign(static_cast<size_t>(std::max<int64_t>(0, width)), ' ');
  return true;
}

Value TextFromJson(Runtime& rt, const std::string& text) {
  size_t bad = 0;
  if (!IsValidUtf8(text, &bad)) {
    return rt.Fail(fmt::format("a text of the context is not UTF-8 (byte {})", bad));
  }
  return rt.Str(text);
}

Value NumberFromJson(Runtime& rt, const nlohmann::ordered_json& json) {
  if (json.is_number_float()) return Value::Float(json.get<double>());
  if (json.is_number_unsigned() &&
      json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return rt.Fail(StatusCode::kUnsupported, "an integer of the context does not fit in 64 bits");
  }
  return Value::Int(json.get<int64_t>());
}

}  // namespace

Value ToJsonFilter(Runtime& rt, const Value& self, const Args& args) {
  const Bound bound(rt, args, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  if (!bound.ok()) return {};
  JsonStyle style;
  style.ascii = Truthy(bound[0]);
  style.sort_keys = Truthy(bound[3]);
  if (bound.has(1) && !bound[1].none() && !ReadIndent(rt, bound[1], &style)) return {};
  if (bound.has(2) && !bound[2].none() && !ReadSeparators(rt, bound[2], &style)) return {};
  Dumper dumper(rt, style);
  dumper.Dump(self, 0);
  return rt.failed() ? Value() : rt.Str(dumper.Take());
}

Value FromJson(Runtime& rt, const nlohmann::ordered_json& json) {
  const Nested nested(rt);
  if (!nested.ok()) return {};
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::null:
      return Value::None();
    case Type::boolean:
      return Value::Bool(json.get<bool>());
    case Type::number_integer:
    case Type::number_unsigned:
    case Type::number_float:
      return NumberFromJson(rt, json);
    case Type::string:
      return TextFromJson(rt, json.get_ref<const std::string&>());
    case Type::array: {
      std::vector<Value> items;
      for (const auto& item : json) {
        items.push_back(FromJson(rt, item));
        if (rt.failed()) return {};
      }
      return rt.List(std::move(items));
    }
    case Type::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& [name, item] : json.items()) {
        const Value key = TextFromJson(rt, name);
        Value value = FromJson(rt, item);
        if (rt.failed()) return {};
        dict->Set(rt, key, std::move(value));
      }
      return rt.MakeDict(std::move(dict));
    }
    case Type::binary:
    case Type::discarded:
      break;
  }
  return rt.Fail("the context holds what is no JSON");
}

int64_t JsonBytes(const nlohmann::ordered_json& json) {
  // Iterative: nothing has bounded the nesting yet.
  int64_t bytes = 0;
  std::vector<const nlohmann::ordered_json*> open = {&json};
  while (!open.empty()) {
    const nlohmann::ordered_json& value = *open.back();
    open.pop_back();
    ++bytes;
    if (value.is_string())
      bytes += static_cast<int64_t>(value.get_ref<const std::string&>().size());
    if (value.is_object()) {
      for (const auto& [name, item] : value.items()) {
        bytes += static_cast<int64_t>(name.size());
        open.push_back(&item);
      }
    } else if (value.is_array()) {
      for (const auto& item : value) open.push_back(&item);
    }
  }
  return bytes;
}

}  // namespace headway::jinja
