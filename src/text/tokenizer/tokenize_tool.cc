// Runs a tokenizer over texts or token lists from standard input, for scripts/check_tokenizer.py:
//   tokenize_tool TOKENIZER_JSON        reads requests, answers each
//   tokenize_tool TOKENIZER_JSON FILE   encodes FILE and prints the speed
// A request is a line "e FLAGS BYTES" (FLAGS: 1 adds special tokens, 2 parses them) and BYTES bytes
// of text, answered by a line of ids; or a line "d SKIP_SPECIAL ID ID ...", answered by a line
// "BYTES" and the text. An error is answered by a line "error MESSAGE".
#include <cstdio>
#include <ctime>
#include <iostream>
#include <sstream>
#include <string>

#include "base/env.h"
#include "text/tokenizer/tokenizer.h"

namespace headway {
namespace {

void AnswerEncode(const Tokenizer& tokenizer, std::istream& request) {
  int flags = 0;
  size_t bytes = 0;
  request >> flags >> bytes;
  std::string text(bytes, '\0');
  std::cin.read(text.data(), static_cast<std::streamsize>(bytes));
  const Result<std::vector<TokenId>> tokens = tokenizer.Encode(
      text, {.add_special_tokens = (flags & 1) != 0, .parse_special = (flags & 2) != 0});
  if (!tokens.ok()) {
    std::cout << "error " << tokens.status().message() << "\n";
    return;
  }
  std::string line;
  for (TokenId token : *tokens) line += std::to_string(token) + " ";
  std::cout << line << "\n";
}

void AnswerDecode(const Tokenizer& tokenizer, std::istream& request) {
  int skip_special = 0;
  request >> skip_special;
  std::vector<TokenId> tokens;
  for (TokenId token = 0; request >> token;) tokens.push_back(token);
  const std::string text =
      tokenizer.Decode(tokens, skip_special != 0 ? SpecialTokens::kSkip : SpecialTokens::kKeep);
  std::cout << text.size() << "\n" << text;
}

int Measure(const Tokenizer& tokenizer, const std::string& path) {
  const Result<std::string> text = Env::Default()->ReadFile(path);
  if (!text.ok()) {
    std::cerr << text.status().message() << "\n";
    return 1;
  }
  // CPU time: encoding uses one thread, and other processes should not count.
  const std::clock_t begin = std::clock();
  const Result<std::vector<TokenId>> tokens = tokenizer.Encode(*text, {});
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  if (!tokens.ok()) {
    std::cerr << tokens.status().message() << "\n";
    return 1;
  }
  std::printf("%zu bytes, %zu tokens, %.3f s of CPU time, %.1f MB/s\n", text->size(),
              tokens->size(), seconds, static_cast<double>(text->size()) * 1e-6 / seconds);
  return 0;
}

int Main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::cerr << "usage: tokenize_tool TOKENIZER_JSON [FILE]\n";
    return 2;
  }
  const Result<std::string> json = Env::Default()->ReadFile(argv[1]);
  if (!json.ok()) {
    std::cerr << json.status().message() << "\n";
    return 1;
  }
  const Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::FromJson(*json, argv[1]);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status().message() << "\n";
    return 1;
  }
  if (argc == 3) return Measure(**tokenizer, argv[2]);
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream request(line);
    char kind = 0;
    request >> kind;
    if (kind == 'e') AnswerEncode(**tokenizer, request);
    if (kind == 'd') AnswerDecode(**tokenizer, request);
    std::cout.flush();
  }
  return 0;
}

}  // namespace
}  // namespace headway

int main(int argc, char** argv) { return headway::Main(argc, argv); }
