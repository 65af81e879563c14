// template_render FILE [MAX_STEPS]: renders each of a JSON list of {"template", "context"} and
// prints a list of {"output"} or {"error"}. scripts/check_template.py compares it with jinja2.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/env.h"
#include "text/template/chat_template.h"

namespace {

// 2024-07-04 05:06:07 UTC, as in the script.
constexpr int64_t kNow = 1720069567;

nlohmann::ordered_json RenderCase(const nlohmann::ordered_json& item,
                                  const headway::RenderOptions& options) {
  const auto parsed = headway::ChatTemplate::Parse(item["template"].get<std::string>(), "case");
  const headway::Result<std::string> output =
      parsed.ok() ? (*parsed)->Render(item["context"], options) : parsed.status();
  if (output.ok()) return {{"output", *output}};
  return {{"error", output.status().message()},
          {"code", headway::StatusCodeName(output.status().code())}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  headway::RenderOptions options{.now_s = kNow};
  if (argc > 2) options.max_steps = std::atoll(argv[2]);
  const auto text = headway::Env::Default()->ReadFile(argv[1]);
  if (!text.ok()) {
    std::fprintf(stderr, "%s\n", text.status().message().c_str());
    return 1;
  }
  const auto cases = nlohmann::ordered_json::parse(*text, nullptr, false);
  if (!cases.is_array()) return 2;
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const auto& item : cases) results.push_back(RenderCase(item, options));
  std::cout << results.dump() << "\n";
  return 0;
}
