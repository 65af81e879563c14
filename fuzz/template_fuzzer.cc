// Chat templates: the input is a template, and after the first zero byte a JSON context. Without
// one a conversation with tools stands in.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/utf8.h"
#include "text/template/chat_template.h"

namespace {

constexpr const char* kContext = R"({
  "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": true, "n": 3, "pi": 3.5,
  "messages": [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " Hé, 世界 \n"},
    {"role": "assistant", "content": null, "tool_calls": [
      {"id": "abcdefghi", "function": {"name": "f", "arguments": {"x": 1, "y": [true, "z"]}}}]},
    {"role": "tool", "content": "{}", "tool_call_id": "abcdefghi"},
    {"role": "user", "content": [{"type": "text", "text": "more"}, {"type": "image"}]}],
  "tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {}}}}]})";

void CheckError(const headway::Status& status, bool may_raise) {
  if (status.message().empty() && !may_raise) abort();
  // What raise_exception says is the template's own; other messages are one line.
  if (!may_raise && status.message().find('\n') != std::string::npos) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view source = input.substr(0, zero);
  const auto parsed = headway::ChatTemplate::Parse(source, "fuzz");
  if (!parsed.ok()) {
    CheckError(parsed.status(), false);
    return 0;
  }
  const std::string json(zero == std::string_view::npos ? kContext : input.substr(zero + 1));
  const auto context = nlohmann::ordered_json::parse(json, nullptr, false);
  if (!context.is_object()) return 0;
  constexpr int64_t kMaxOutput = int64_t{1} << 20;
  const headway::RenderOptions options{
      .now_s = 1720069567, .max_steps = 200'000, .max_output_bytes = kMaxOutput};
  const headway::Result<std::string> output = (*parsed)->Render(context, options);
  if (!output.ok()) {
    CheckError(output.status(), source.find("raise_exception") != std::string_view::npos);
    return 0;
  }
  // The context adds to the limit: four bytes for each of its own, and one for each value.
  if (static_cast<int64_t>(output->size()) > kMaxOutput + 8 * static_cast<int64_t>(json.size())) {
    abort();
  }
  if (!headway::IsValidUtf8(*output)) abort();
  const headway::Result<std::string> again = (*parsed)->Render(context, options);
  if (!again.ok() || *again != *output) abort();
  return 0;
}
