// Holds the sizes of files and functions, which do more than one thing where they are longer, and
// the number of a call's parameters, which want names where they are more.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "support/sources.h"

namespace headway {
namespace {

constexpr int kFileLines = 500;
constexpr int kFunctionLines = 70;
constexpr int kKernelLines = 150;  // of functions in src/kernels

// What may be longer, and why.
const std::map<std::string, std::string> kExceptions = {
    {"src/engine/eval/tasks/prose.cc", "a table of words"},
};

constexpr int kParameters = 6;  // of a function, kernels of a GPU excepted

// What may have more, and why: the inner steps of kernels, whose operands stay in registers.
const std::map<std::string, std::string> kManyParameters = {
    {"src/kernels/cpu/attention_math-inl.h: FinishLogits", "a step of the softmax"},
    {"src/kernels/cpu/attention_strips_load-inl.h: DecodeRows", "a step of loading keys"},
    {"src/kernels/cuda/attention_codes_copy.h: CopyParams", "a step of loading keys"},
    {"src/parallel/nccl/nccl_library.h: ", "NCCL's own functions"},
};

bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// The end of a text between quotation marks that opens at `at`, behind its second mark.
size_t EndOfQuoted(std::string_view code, size_t at) {
  const char mark = code[at];
  for (++at; at < code.size() && code[at] != mark && code[at] != '\n'; ++at) {
    if (code[at] == '\\') ++at;
  }
  return std::min(at + 1, code.size());
}

// The same of R"x(...)x", whose mark is at `at`.
size_t EndOfRaw(std::string_view code, size_t at) {
  const size_t open = code.find('(', at);
  const std::string close = ")" + std::string(code.substr(at + 1, open - at - 1)) + "\"";
  const size_t end = code.find(close, open);
  return end == std::string_view::npos ? code.size() : end + close.size();
}

// The end of the line, or of the last of lines that a backslash joins.
size_t EndOfDirective(std::string_view code, size_t at) {
  while (at < code.size() && code[at] != '\n') at += code[at] == '\\' ? 2 : 1;
  return std::min(at, code.size());
}

// Whether the mark at `at` divides the digits of a number.
bool DividesDigits(std::string_view code, size_t at) {
  size_t begin = at;
  while (begin > 0 && (IsWord(code[begin - 1]) || code[begin - 1] == '\'')) --begin;
  return begin < at && std::isdigit(static_cast<unsigned char>(code[begin])) != 0;
}

// The end of what has no braces of the code's own and begins here: a comment, a directive, a text
// or a character. `at` where there is nothing such.
size_t EndOfOpaque(std::string_view code, size_t at) {
  const std::string_view rest = code.substr(at);
  if (rest.starts_with("//")) return std::min(code.find('\n', at), code.size());
  if (rest.starts_with("/*")) return std::min(code.find("*/", at), code.size() - 2) + 2;
  if (rest.starts_with("\"") && at > 0 && code[at - 1] == 'R') return EndOfRaw(code, at);
  if (rest.starts_with("\"")) return EndOfQuoted(code, at);
  if (rest.starts_with("'") && !DividesDigits(code, at)) return EndOfQuoted(code, at);
  if (rest.starts_with("#")) return EndOfDirective(code, at);
  return at;
}

// The code with nothing of that in it, line by line as before.
std::string Bare(std::string_view code) {
  std::string bare;
  for (size_t at = 0; at < code.size();) {
    const size_t end = EndOfOpaque(code, at);
    if (end == at) {
      bare += code[at++];
      continue;
    }
    const std::string_view opaque = code.substr(at, end - at);
    bare += ' ';
    bare.append(static_cast<size_t>(std::count(opaque.begin(), opaque.end(), '\n')), '\n');
    at = end;
  }
  return bare;
}

struct Function {
  int line = 0;   // of its first, 1-based
  int lines = 0;  // 0: declared alone
  std::string head;
};

enum class Block { kScope, kFunction, kData };

// A head without the label of access and the template parameters that it begins with.
std::string_view WithoutPrefix(std::string_view head) {
  for (const std::string_view label : {"public:", "protected:", "private:"}) {
    if (head.starts_with(label)) head.remove_prefix(label.size());
  }
  head.remove_prefix(std::min(head.find_first_not_of(" \n"), head.size()));
  if (!head.starts_with("template")) return head;
  int depth = 0;
  for (size_t i = 0; i < head.size(); ++i) {
    if (head[i] == '<') ++depth;
    if (head[i] == '>' && --depth == 0) return WithoutPrefix(head.substr(i + 1));
  }
  return head;
}

// What a brace opens that stands behind `head`, outside of functions.
Block BlockOf(std::string_view head) {
  // A member of a constructor's list: the formatter has a blank before a body.
  if (!head.empty() && IsWord(head.back())) return Block::kData;
  head = WithoutPrefix(head);
  while (head.ends_with(' ') || head.ends_with('\n')) head.remove_suffix(1);
  // A function may return a struct, too.
  if (!head.ends_with(')')) {
    for (const std::string_view word :
         {"namespace", "class", "struct", "union", "enum", "extern"}) {
      if (head.starts_with(word)) return Block::kScope;
    }
  }
  const bool function = head.find('(') != std::string_view::npos && !head.ends_with('=');
  return function ? Block::kFunction : Block::kData;
}

// What stands outside of functions and has parentheses: the functions of a file, those of classes
// too, defined or declared, and some members with values. What is within a function, such as a
// lambda, is a part of it.
std::vector<Function> HeadsOf(std::string_view code) {
  std::vector<Function> functions;
  std::vector<Block> open;
  Function next;
  int line = 1, inside = 0;  // open blocks that are no scopes
  for (const char c : Bare(code)) {
    if (c == '\n') ++line;
    if (c == '{') {
      open.push_back(inside > 0 ? Block::kData : BlockOf(next.head));
      inside += open.back() != Block::kScope ? 1 : 0;
      if (open.back() == Block::kScope) next.head.clear();
    } else if (c == '}') {
      if (open.empty()) return {};
      const Block block = open.back();
      open.pop_back();
      inside -= block != Block::kScope ? 1 : 0;
      if (block == Block::kFunction) {
        next.lines = line - next.line + 1;
        functions.push_back(next);
      }
      if (inside == 0 && block != Block::kData) next.head.clear();
    } else if (inside == 0 && c == ';') {
      next.lines = 0;
      if (next.head.find('(') != std::string::npos) functions.push_back(next);
      next.head.clear();
    } else if (inside == 0 && (!next.head.empty() || (c != ' ' && c != '\n'))) {
      if (next.head.empty()) next.line = line;
      next.head += c;
    }
  }
  return open.empty() ? functions : std::vector<Function>();
}

std::vector<Function> FunctionsOf(std::string_view code) {
  std::vector<Function> functions = HeadsOf(code);
  std::erase_if(functions, [](const Function& function) { return function.lines == 0; });
  return functions;
}

// The word that ends at `end`.
std::string_view WordBefore(std::string_view head, size_t end) {
  while (end > 0 && (head[end - 1] == ' ' || head[end - 1] == '\n')) --end;
  size_t begin = end;
  while (begin > 0 && IsWord(head[begin - 1])) --begin;
  return head.substr(begin, end - begin);
}

struct Call {
  std::string name;
  int parameters = 0;
};

// The parameters in the parentheses that open at `open`, and in `*close` where these close.
int CountParameters(std::string_view head, size_t open, size_t* close) {
  int depth = 0, commas = 0;
  bool empty = true;
  for (*close = open; *close < head.size(); ++*close) {
    const char c = head[*close];
    if (c == '(' || c == '[' || c == '<') ++depth;
    if ((c == ')' || c == ']' || c == '>') && --depth == 0) break;
    if (c == ',' && depth == 1) ++commas;
    if (*close > open && c != ' ' && c != '\n') empty = false;
  }
  return empty ? 0 : commas + 1;
}

// The function that a head declares, or the pointer to one that it names; one of no parameters
// where it is something else, such as a member with a value.
Call CallOf(std::string_view head) {
  static const std::set<std::string_view> kNoNames = {
      "alignas", "__launch_bounds__", "__attribute__", "decltype", "explicit", "operator"};
  head = WithoutPrefix(head);
  int depth = 0;  // of template arguments
  for (size_t at = 0; at < head.size(); ++at) {
    if (head[at] == '<') ++depth;
    if (head[at] == '>') --depth;
    if (head[at] == '=' && !head.starts_with("using")) return {};
    if (head[at] != '(' || depth != 0) continue;
    size_t close = 0;
    const int parameters = CountParameters(head, at, &close);
    const std::string_view name = WordBefore(head, at);
    const bool pointer = head.substr(at).starts_with("(*");
    if (!pointer && kNoNames.count(name) == 0) return {std::string(name), parameters};
    at = close;
  }
  return {};
}

std::string ReadSource(const std::string& file) {
  std::ifstream in(testing::SourcePath(file));
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(Sizes, OfFilesAndFunctionsAreBounded) {
  std::set<std::string> longer;
  size_t count = 0;
  for (const std::string& file :
       testing::SourceFiles({"src", "include", "tests", "bench", "fuzz"})) {
    const std::string code = ReadSource(file);
    const bool excepted = kExceptions.count(file) > 0;
    const auto lines = std::count(code.begin(), code.end(), '\n');
    if (lines > kFileLines) {
      longer.insert(file);
      EXPECT_TRUE(excepted) << file << " has " << lines << " lines, more than " << kFileLines;
    }
    const int limit = file.starts_with("src/kernels/") ? kKernelLines : kFunctionLines;
    const std::vector<Function> functions = FunctionsOf(code);
    count += functions.size();
    for (const Function& function : functions) {
      if (function.lines <= limit) continue;
      longer.insert(file);
      EXPECT_TRUE(excepted) << file << ":" << function.line << ": a function has " << function.lines
                            << " lines, more than " << limit << ": " << function.head;
    }
  }
  EXPECT_GT(count, 4000u) << "the check found too few functions to mean anything";
  for (const auto& [file, reason] : kExceptions) {
    EXPECT_TRUE(longer.count(file) > 0) << file << " (" << reason << ") needs no exception";
  }
}

TEST(Sizes, OfCallsAreBounded) {
  std::set<std::string> more;
  size_t count = 0;
  for (const std::string& file :
       testing::SourceFiles({"src", "include", "tests", "bench", "fuzz"})) {
    for (const Function& function : HeadsOf(ReadSource(file))) {
      const Call call = CallOf(function.head);
      if (call.parameters > 0) ++count;
      if (call.parameters <= kParameters) continue;
      if (function.head.find("__global__") != std::string::npos) continue;
      const std::string name = file + ": " + call.name;
      more.insert(name);
      EXPECT_TRUE(kManyParameters.count(name) > 0)
          << file << ":" << function.line << ": " << call.name << " has " << call.parameters
          << " parameters, more than " << kParameters << "; give it a struct with named fields";
    }
  }
  EXPECT_GT(count, 1500u) << "the check found too few functions to mean anything";
  for (const auto& [name, reason] : kManyParameters) {
    EXPECT_TRUE(more.count(name) > 0) << name << " (" << reason << ") needs no exception";
  }
}

struct Found {
  int line, lines;
  bool operator==(const Found&) const = default;
};

std::vector<Found> Measure(std::string_view code) {
  std::vector<Found> found;
  for (const Function& function : FunctionsOf(code)) {
    found.push_back({function.line, function.lines});
  }
  return found;
}

TEST(Sizes, FunctionsAreFound) {
  using Expected = std::vector<Found>;
  EXPECT_EQ(Measure("namespace a {\nint f() {\n  if (x) {\n  }\n}\n}\n"), (Expected{{2, 4}}));
  EXPECT_EQ(Measure("template <class T>\nstruct A {\n  int f() {\n  }\n};\n"), (Expected{{3, 2}}));
  EXPECT_EQ(Measure("template <class T>\nint f(T) {\n}\n"), (Expected{{1, 3}}));
  EXPECT_EQ(Measure("struct A : B {\n  A(int x)\n      : a_{x}, b_(x) {\n  }\n};\n").back().lines,
            3);
  EXPECT_EQ(Measure("int a[] = {1, f(2)};\nint f() {\n  g([] {\n  });\n}\n"), (Expected{{2, 4}}));
  EXPECT_EQ(Measure("TEST(A, B) {\n  f(\"}\", '}', R\"(\n})\", 1'000);  // }\n}\n"),
            (Expected{{1, 4}}));
  EXPECT_EQ(Measure("#define A \\\n  {\nstruct B f(struct C c) {\n}\n"), (Expected{{3, 2}}));
}

int Parameters(std::string_view code) {
  int most = 0;
  for (const Function& function : HeadsOf(code)) {
    most = std::max(most, CallOf(function.head).parameters);
  }
  return most;
}

TEST(Sizes, ParametersAreCounted) {
  EXPECT_EQ(Parameters("void f();\n"), 0);
  EXPECT_EQ(
      Parameters("void f(int a,\n       std::map<int, int> b, int (*c)(int, int) = g(1, 2));"), 3);
  EXPECT_EQ(Parameters("struct A {\n  A(int a, int b) : a_{a}, b_(c(a, b, 3)) {}\n};\n"), 2);
  EXPECT_EQ(Parameters("struct A {\n public:\n  virtual int f(int, int, int) const = 0;\n};\n"), 3);
  EXPECT_EQ(Parameters("struct A {\n  bool operator()(int, int) const;\n};\n"), 2);
  EXPECT_EQ(Parameters("template <class T, int n>\ninline T f(T, int) {\n  g(1, 2, 3);\n}\n"), 2);
  EXPECT_EQ(Parameters("using F = void (*)(int, int, int, int);\n"), 4);
  EXPECT_EQ(Parameters("int a = f(1, 2, 3);\nstd::function<int(int, int)> b;\n"), 0);
}

}  // namespace
}  // namespace headway
