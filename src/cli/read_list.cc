#include "cli/read_list.h"

#include <fmt/format.h>

#include <string_view>

#include "cli/flags.h"
#include "cli/read_number.h"

namespace headway::cli {
std::vector<std::string> SplitAtCommas(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

Status ReadLengths(const std::string& text, std::vector<int64_t>* lengths) {
  lengths->clear();
  for (std::string part : SplitAtCommas(text)) {
    const std::string whole = part;
    int64_t unit = 1, length = 0;
    if (part.ends_with('k') || part.ends_with('K')) unit = int64_t{1} << 10;
    if (part.ends_with('m') || part.ends_with('M')) unit = int64_t{1} << 20;
    if (unit > 1) part.pop_back();
    if (!ReadNumber<int64_t>(part, 1, kMaxCount / unit, &length).ok()) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("'{}' is not a number of tokens from 1 to {}, such as 4096, 64k "
                                "or 1m",
                                whole, kMaxCount));
    }
    lengths->push_back(length * unit);
  }
  return OkStatus();
}

Status ReadPercents(const std::string& text, std::vector<double>* percents) {
  percents->clear();
  for (const std::string& part : SplitAtCommas(text)) {
    double percent = 0.0;
    if (Status s = ReadNumber<double>(part, 0.0, 100.0, &percent); !s.ok()) return s;
    percents->push_back(percent);
  }
  return OkStatus();
}

}  // namespace headway::cli
