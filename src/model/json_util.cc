#include "model/json_util.h"

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/utf8.h"

namespace headway {

namespace {
// Parsed JSON takes some twenty times its text; nothing that this reads is near this size.
constexpr size_t kMaxText = kMaxConfigBytes;
constexpr size_t kMaxPrinted = 80;
}  // namespace

Result<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& where) {
  if (text.size() > kMaxText) {
    return Status(
        StatusCode::kCorrupt,
        fmt::format("{}: {} of JSON, more than the limit of {}", where,
                    FormatBytes(static_cast<int64_t>(text.size())), FormatBytes(kMaxText)));
  }
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return Status(StatusCode::kCorrupt, fmt::format("{}: not valid JSON", where));
  }
  if (!json.is_object()) {
    return Status(StatusCode::kCorrupt, fmt::format("{}: not a JSON object", where));
  }
  return json;
}

Result<nlohmann::json> ReadJsonObject(Env& env, const std::string& path) {
  Result<std::string> text = env.ReadFile(path, kMaxText);
  if (!text.ok()) return text.status();
  return ParseJsonObject(*text, path);
}

std::string Printable(std::string_view text) {
  std::string printed = ReplaceInvalidUtf8(text.substr(0, kMaxPrinted));
  for (char& c : printed) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  if (text.size() > kMaxPrinted) printed += "...";
  return printed;
}

}  // namespace headway
