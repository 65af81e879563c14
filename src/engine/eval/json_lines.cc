#include "engine/eval/json_lines.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>

namespace headway::eval {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxKeyBytes = 60;
constexpr int kMaxDepth = 100;  // copying a value takes stack for each level

// In quotes, escaped, on one line.
std::string Quoted(const std::string& key) {
  std::string text = Json(key).dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() <= kMaxKeyBytes) return text;
  text.resize(kMaxKeyBytes);
  return text + "...\"";
}

}  // namespace

Status ForEachJsonLine(
    std::string_view text, const std::string& name,
    const std::function<Status(const Json& value, const std::string& where)>& take) {
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    std::set<std::string> keys;
    std::string twice;
    bool deep = false;
    // The parser keeps the last of equal keys and says nothing.
    const auto see = [&](int depth, Json::parse_event_t event, const Json& parsed) {
      if (event == Json::parse_event_t::key && depth == 1 &&
          !keys.insert(parsed.get<std::string>()).second && twice.empty()) {
        twice = Quoted(parsed.get<std::string>());
      }
      deep = deep || depth > kMaxDepth;
      return !deep;
    };
    const Json value = Json::parse(line, see, /*allow_exceptions=*/false);
    const std::string where = name + ", line " + std::to_string(number);
    if (deep) return Status(StatusCode::kInvalidArgument, where + " is nested too deeply");
    if (value.is_object() && !twice.empty()) {
      return Status(StatusCode::kInvalidArgument, where + ": the key " + twice + " is there twice");
    }
    if (Status s = take(value, where); !s.ok()) return s;
  }
  return OkStatus();
}

Status ForEachJsonItem(
    std::string_view text, const std::string& name,
    const std::function<Status(const Json& value, const std::string& where)>& take) {
  bool deep = false;
  const auto see = [&](int depth, Json::parse_event_t, const Json&) {
    deep = deep || depth > kMaxDepth;
    return !deep;
  };
  const Json list = Json::parse(text, see, /*allow_exceptions=*/false);
  if (deep) return Status(StatusCode::kInvalidArgument, name + " is nested too deeply");
  if (!list.is_array()) return Status(StatusCode::kInvalidArgument, name + " is no JSON list");
  int64_t number = 0;
  for (const Json& item : list) {
    if (Status s = take(item, name + ", item " + std::to_string(++number)); !s.ok()) return s;
  }
  return OkStatus();
}

std::vector<std::string> OtherKeys(const Json& object,
                                   std::initializer_list<std::string_view> known) {
  std::vector<std::string> others;
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) others.push_back(Quoted(key));
  }
  return others;
}

}  // namespace headway::eval
