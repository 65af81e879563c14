#include "text/template/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/utf8.h"

namespace headway::jinja {

Status TemplateError(StatusCode code, std::string_view name, int line, std::string_view message) {
  constexpr size_t kMaxBytes = 400;
  std::string shown(message.substr(0, kMaxBytes));
  shown.resize(shown.size() - IncompleteUtf8Suffix(shown));
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  if (message.size() > kMaxBytes) shown += "...";
  return Status(code, fmt::format("chat template {}, line {}: {}", name, line, shown));
}

}  // namespace headway::jinja
