#include "base/json/json.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/utf8.h"

namespace headway {

namespace {
// Parsed JSON takes some twenty times its text; nothing that this reads is near this size.
constexpr size_t kMaxText = kMaxConfigBytes;
constexpr size_t kMaxPrinted = 80;
constexpr size_t kNear = 24;  // bytes shown before the place of an error

// Finds out where a parser stops.
class ErrorFinder : public nlohmann::json_sax<nlohmann::json> {
 public:
  size_t position = 0;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
    position = at;
    return false;
  }
};

}  // namespace

bool IsLfsPointer(std::string_view file) { return file.starts_with("version https://git-lfs"); }

std::string DescribeJsonError(std::string_view text, size_t position) {
  if (IsLfsPointer(text)) return kLfsPointer;
  constexpr std::string_view kSpace = " \t\r\n";
  if (text.find_first_not_of(kSpace) == std::string_view::npos) return "an empty file";
  // The last byte that was read; one behind the end stands for the end.
  const size_t at = std::min(position == 0 ? 0 : position - 1, text.size());
  const std::string_view before = text.substr(0, at);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_begin = before.find_last_of('\n') + 1;  // npos + 1 is 0
  if (text.find_first_not_of(kSpace, at) == std::string_view::npos) {
    return fmt::format("not valid JSON: it ends too early, in line {}; get the file again", line);
  }
  const size_t near = std::max(line_begin, at - std::min(at, kNear));
  const size_t line_end = std::min(text.find('\n', at), text.size());
  const auto column = 1 + std::count_if(before.begin() + static_cast<ptrdiff_t>(line_begin),
                                        before.end(), [](char c) { return (c & 0xC0) != 0x80; });
  return fmt::format("not valid JSON at line {}, column {}, near '{}'", line, column,
                     Printable(text.substr(near, std::min(line_end - near, 2 * kNear))));
}

Result<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& where) {
  if (text.size() > kMaxText) {
    return Status(
        StatusCode::kCorrupt,
        fmt::format("{}: {} of JSON, more than the limit of {}", where,
                    FormatBytes(static_cast<int64_t>(text.size())), FormatBytes(kMaxText)));
  }
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    ErrorFinder finder;
    nlohmann::json::sax_parse(text, &finder);
    return Status(StatusCode::kCorrupt,
                  fmt::format("{}: {}", where, DescribeJsonError(text, finder.position)));
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
