// Compares with jinja2: tests/golden/template/*.json, written by scripts/make_template_golden.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "base/env.h"
#include "text/template/chat_template.h"

namespace headway {
namespace {

// 2024-07-04 05:06:07 UTC, as in the script.
constexpr int64_t kNow = 1720069567;

// What jinja2 has and no published chat template uses: docs/decisions/template-subset.md. A case
// that uses one is refused by this name.
constexpr const char* kRefused[] = {"tag 'with'",
                                    "tag 'print'",
                                    "'attr'",
                                    "'batch'",
                                    "'center'",
                                    "'forceescape'",
                                    "'slice'",
                                    "'truncate'",
                                    "'wordcount'",
                                    "'lower'",
                                    "'filter'",
                                    "'escaped'",
                                    "'**'",
                                    "'cycler'",
                                    "'joiner'",
                                    "'zfill'",
                                    "'swapcase'",
                                    "'partition'",
                                    "'isdecimal'",
                                    "'index'",
                                    "'varargs'",
                                    "'base'",
                                    "'method'",
                                    "'start'",
                                    "of macros",
                                    "slice ranges",
                                    "print a 'range'",
                                    "print a 'LoopContext'",
                                    "print a 'Macro'",
                                    "'loop.",
                                    "of floats",
                                    "the sign '+'",
                                    "tuples as subscripts",
                                    "of one dict and names",
                                    "several attributes",
                                    "safe text",
                                    "no filter named 'nope'",
                                    "'abs'",
                                    "'copy'",
                                    "'count'",
                                    "'isalnum'",
                                    "'min'",
                                    "'removeprefix'",
                                    "'round'",
                                    "'rsplit'",
                                    "'sameas'",
                                    "'splitlines'",
                                    "'sum'",
                                    "numbers in decimal",
                                    "such a character",
                                    "in formats",
                                    "round to tens and hundreds"};

// Where a name is looked up when it is read, and jinja2 decides before the template runs: a name
// that is set further down is undefined there until then, and no argument of a set block's filter.
constexpr const char* kReadsAtRunTime[] = {
    "{% for i in [1] %}{{ name }}{% endfor %}{% set name = 5 %}{{ name }}",
    "{% macro m() %}{{ name }}{% endmacro %}{{ m() }}{% set name = 'later' %}{{ m() }}",
    "{% set x | replace(name, 'b') %}banana{% endset %}{{ x }}"};

bool IsRefusal(const Status& status) {
  return status.code() == StatusCode::kUnsupported &&
         std::any_of(std::begin(kRefused), std::end(kRefused), [&](const char* name) {
           return status.message().find(name) != std::string::npos;
         });
}

Result<std::string> Rendered(const std::string& source, const nlohmann::ordered_json& context) {
  const auto parsed = ChatTemplate::Parse(source, "golden");
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->Render(context, {.now_s = kNow});
}

// `refused`: the number of cases that use what Headway leaves out.
void CompareFile(const std::string& name, size_t least, int refused) {
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
    const auto is_source = [&](const char* other) { return source == other; };
    if (std::any_of(std::begin(kReadsAtRunTime), std::end(kReadsAtRunTime), is_source)) {
      EXPECT_TRUE(Rendered(source, context).ok());
      continue;
    }
    const Result<std::string> output = Rendered(source, context);
    if (!output.ok() && !item.contains("error") && IsRefusal(output.status())) {
      --refused;
      continue;
    }
    EXPECT_EQ(output.ok(), !item.contains("error")) << output.status().message();
    if (output.ok() && item.contains("output")) {
      EXPECT_EQ(*output, item["output"].get<std::string>());
    }
    if (!output.ok() && item.contains("raised")) {
      EXPECT_EQ(output.status().message(), item["raised"].get<std::string>());
    }
  }
  EXPECT_EQ(refused, 0);
}

// strftime_now shows local time; the golden files have that of Greenwich.
class TemplateGoldenTest : public testing::Test {
 protected:
  TemplateGoldenTest() {
    setenv("TZ", "UTC", 1);
    tzset();
  }
};

TEST_F(TemplateGoldenTest, Families) { CompareFile("families.json", 60, 15); }
TEST_F(TemplateGoldenTest, Snippets) { CompareFile("snippets.json", 500, 92); }

}  // namespace
}  // namespace headway
