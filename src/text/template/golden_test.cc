// Compares with jinja2: tests/golden/template/*.json, written by scripts/make_template_golden.py.
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>

#include "base/env.h"
#include "text/template/chat_template.h"

namespace headway {
namespace {

// 2024-07-04 05:06:07 UTC, as in the script.
constexpr int64_t kNow = 1720069567;

Result<std::string> Rendered(const std::string& source, const nlohmann::ordered_json& context) {
  const auto parsed = ChatTemplate::Parse(source, "golden");
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->Render(context, {.now_s = kNow});
}

void CompareFile(const std::string& name, size_t least) {
  const std::string path = std::string(HEADWAY_SOURCE_DIR) + "/tests/golden/template/" + name;
  const Result<std::string> text = Env::Default()->ReadFile(path);
  ASSERT_TRUE(text.ok()) << text.status().message();
  const auto file = nlohmann::ordered_json::parse(*text, nullptr, false);
  ASSERT_TRUE(file.is_object());
  EXPECT_GE(file["cases"].size(), least);
  for (const auto& item : file["cases"]) {
    const auto source = file["templates"][item["template"].get<size_t>()].get<std::string>();
    const auto& context = file["contexts"][item["context"].get<size_t>()];
    SCOPED_TRACE(source);
    const Result<std::string> output = Rendered(source, context);
    EXPECT_EQ(output.ok(), !item.contains("error")) << output.status().message();
    if (output.ok() && item.contains("output")) {
      EXPECT_EQ(*output, item["output"].get<std::string>());
    }
    if (!output.ok() && item.contains("raised")) {
      EXPECT_EQ(output.status().message(), item["raised"].get<std::string>());
    }
  }
}

// strftime_now shows local time; the golden files have that of Greenwich.
class TemplateGoldenTest : public testing::Test {
 protected:
  TemplateGoldenTest() {
    setenv("TZ", "UTC", 1);
    tzset();
  }
};

TEST_F(TemplateGoldenTest, Families) { CompareFile("families.json", 60); }
TEST_F(TemplateGoldenTest, Snippets) { CompareFile("snippets.json", 500); }

}  // namespace
}  // namespace headway
